// Attempts at a receiver (docs/PROTOCOL.md "Receiver"; paper B.1, B.2).
#include "protocol/test_receiver.h"

namespace dcr {
namespace {

using AttemptTest = ReceiverTest;

// The whole of a synchronous attempt: payloads come while requests drain, are applied as they come
// once it is open, and are acknowledged when all is done.
TEST_F(AttemptTest, ASynchronousAttempt) {
  become_member();
  become_prepared();
  EXPECT_EQ(from_leader(CloseGate{1}), "engine: gate_close 3\n");
  EXPECT_EQ(hand_over(0, 0), "ingest 0/0\n");
  EXPECT_EQ(ingested(0, 0), "node-0: credit 1 next 1 room 7/90\n");
  EXPECT_EQ(gate_closes(3), "leader: gate_closed 1\n");
  ASSERT_TRUE(control.open(1).ok());
  EXPECT_EQ(machine->status().held, VersionId{});
  EXPECT_EQ(from_leader(OpenApply{1}), "apply\n");
  EXPECT_EQ(machine->status().held, std::nullopt);
  EXPECT_EQ(hand_over(1, 0), "");
  EXPECT_EQ(applied_payloads(1), "ingest 1/0\n");  // its room is what it was before
  EXPECT_EQ(from_node(OwnerEnd{{false, 1}, 0, 1}), "");
  EXPECT_EQ(ingested(1, 0), "end 0/1\nnode-0: credit 1 next 2 room 7/90\n");
  EXPECT_EQ(ended(0), "apply\nnode-0: credit 1 next 3 room 7/90\n");
  EXPECT_EQ(from_leader(Flush{1}), "");
  EXPECT_EQ(applied_payloads(1), "node-0: credit 1 next 3 room 8/100\n");
  EXPECT_EQ(from_node(OwnerEnd{{false, 1}, 1, 1}), "end 1/1\n");
  EXPECT_EQ(ended(1), "finish\n");
  EXPECT_EQ(done(Kind::kFinishStream), "leader: completed 1 2\n");
  EXPECT_EQ(machine->status().state, "finished");
  EXPECT_EQ(from_leader(Flush{1}), "leader: completed 1 2\n");
  // Finished is not committed: only K says so.
  EXPECT_EQ(from_leader(Look{}), "");
  EXPECT_EQ(machine->status().held, std::nullopt);
  ASSERT_TRUE(control.commit(1).ok());
  EXPECT_EQ(from_leader(Look{}), "engine: gate_proof 4 version 1\n");
  EXPECT_EQ(machine->status().held, (VersionId{1, 1}));
}

// A credit, or what it asks for, may get lost: the same one is said again after a while, which
// tells the node so.
TEST_F(AttemptTest, TheSameCreditIsSaidAgainAfterAWhile) {
  become_member();
  become_prepared();
  EXPECT_EQ(hand_over(0, 0), "ingest 0/0\n");
  EXPECT_EQ(ingested(0, 0), "node-0: credit 1 next 1 room 7/90\n");
  EXPECT_EQ(pass(199), "");
  EXPECT_EQ(pass(1), "node-0: credit 1 next 1 room 7/90\n");
  EXPECT_EQ(pass(199), "");
  EXPECT_EQ(pass(1), "node-0: credit 1 next 1 room 7/90\n");
}

TEST_F(AttemptTest, ATransitionWithoutChangesMovesTheVersion) {
  become_member();
  become_prepared();
  close_gate_and_open(1, 3);
  end_without_payloads();
  EXPECT_EQ(from_leader(Flush{1}), "finish\n");
  EXPECT_EQ(done(Kind::kFinishStream), "leader: completed 1 2\n");
  EXPECT_EQ(machine->status().held, VersionId{});
  ASSERT_TRUE(control.commit(1).ok());
  EXPECT_EQ(from_leader(Look{}), "engine: gate_proof 4 version 1\n");
}

// Asynchronous: no credit, and the gate stays open, until everything is staged and it is opened.
TEST_F(AttemptTest, AnAsynchronousAttemptGivesCreditWhenItIsOpened) {
  become_member();
  become_prepared(AttemptMode::kMixed, true);
  EXPECT_EQ(pass(200), "");
  EXPECT_EQ(from_leader(CloseGate{1}), "engine: gate_close 3\n");
  EXPECT_EQ(gate_closes(3), "leader: gate_closed 1\n");
  ASSERT_TRUE(control.open(1).ok());
  EXPECT_EQ(from_leader(OpenApply{1}), "node-0: credit 1 next 0 room 8/100\n");
  EXPECT_EQ(pass(200), "node-0: credit 1 next 0 room 8/100\n");
}

TEST_F(AttemptTest, AFlushSaysThatItWasOpened) {
  become_member();
  become_prepared(AttemptMode::kMixed, true);
  from_leader(CloseGate{1});
  gate_closes(3);
  EXPECT_EQ(from_leader(Flush{1}), "node-0: credit 1 next 0 room 8/100\n");
}

// Rule 3.
TEST_F(AttemptTest, PrepareIsTakenAboveTheFenceAndAnsweredAgainForTheCurrent) {
  become_member();
  const Prepare first = become_prepared();
  EXPECT_EQ(from_leader(first), "leader: prepared 1\n");
  const Endpoint other{"other", 99};  // whoever asks is answered
  EXPECT_EQ(hear(other, first), "other: prepared 1\n");
  EXPECT_EQ(from_leader(StopAndWait{1}), "stop\n");
  EXPECT_EQ(done(Kind::kStopApplying), "leader: stopped 1\n");
  EXPECT_EQ(from_leader(first), "");
  for (const Message& late : {Message(CloseGate{1}), Message(OpenApply{1}), Message(Flush{1})}) {
    EXPECT_EQ(from_leader(late), "");
  }
  EXPECT_EQ(from_node(OwnerEnd{{false, 1}, 0, 0}), "");
  EXPECT_EQ(hand_over(0, 0), "");
}

TEST_F(AttemptTest, PrepareOfAnotherIncarnationIsNotForIt) {
  become_member();
  Prepare message = prepare();
  message.receivers[0].endpoint.incarnation += 1;
  EXPECT_EQ(from_leader(message), "");
  message.receivers.clear();
  EXPECT_EQ(from_leader(message), "");
}

TEST_F(AttemptTest, StopIsAnsweredAfterTheDrainAndForLaterAttemptsWithoutOne) {
  become_member();
  become_prepared();
  close_gate_and_open(1, 3);
  hand_over(0, 0);
  EXPECT_EQ(ingested(0, 0), "apply\nnode-0: credit 1 next 1 room 7/90\n");
  EXPECT_EQ(from_leader(StopAndWait{1}), "stop\n");
  const Endpoint other{"other", 99};
  EXPECT_EQ(hear(other, StopAndWait{1}), "");
  EXPECT_EQ(from_leader(StopAndWait{1}), "");
  EXPECT_EQ(done(Kind::kStopApplying), "");  // what ran has not ended yet
  EXPECT_EQ(done(Kind::kApplyQueued, {Code::kCancelled, "stopped"}),
            "leader: stopped 1\nother: stopped 1\n");
  EXPECT_EQ(from_leader(StopAndWait{1}), "leader: stopped 1\n");
  // A later attempt is not disturbed by a stop of an earlier one.
  ASSERT_TRUE(control.mark_obsolete(1).ok());
  become_prepared(AttemptMode::kOverwrite);
  EXPECT_EQ(from_leader(StopAndWait{1}), "leader: stopped 1\n");
  EXPECT_EQ(machine->status().state, "prepared");
  // One that it never heard of raises the fence.
  EXPECT_EQ(from_leader(StopAndWait{9}), "stop\n");
  EXPECT_EQ(done(Kind::kStopApplying), "leader: stopped 9\n");
}

TEST_F(AttemptTest, ALaterPrepareReplacesTheCurrent) {
  become_member();
  become_prepared();
  hand_over(0, 0);
  ASSERT_TRUE(control.mark_obsolete(1).ok());
  EXPECT_EQ(from_leader(prepare()), "stop\n");
  stream = {false, 1};
  EXPECT_EQ(ingested(0, 0), "");
  EXPECT_EQ(done(Kind::kStopApplying), "begin 2\n");
}

// Rule 5: the applier writes to nothing while its gate is not known to be closed.
TEST_F(AttemptTest, NothingIsAppliedBeforeItsOwnGateIsClosed) {
  become_member();
  become_prepared();
  hand_over(0, 0);
  ingested(0, 0);
  EXPECT_EQ(from_leader(CloseGate{1}), "engine: gate_close 3\n");
  EXPECT_EQ(gate_closes(1), "");
  ASSERT_TRUE(control.open(1).ok());
  EXPECT_EQ(from_leader(OpenApply{1}),
            "stop\nleader: attempt_failed 1: attempt 1 was opened while gate engine is not known "
            "to be closed; nothing was written\n");
  EXPECT_EQ(machine->status().held, VersionId{});
}

TEST_F(AttemptTest, RepeatsItsFailureUntilItIsStopped) {
  become_member();
  become_prepared();
  hand_over(0, 0);
  ReceiverWorkDone work;
  work.kind = Kind::kIngestPayload;
  work.stream = stream;
  work.status = {Code::kMismatch, "tensor \"w\" is another", "w"};
  EXPECT_EQ(step(work), "stop\nleader: attempt_failed 1: tensor \"w\" is another\n");
  EXPECT_EQ(pass(200), "leader: attempt_failed 1: tensor \"w\" is another\n");
  EXPECT_EQ(from_leader(Flush{1}), "leader: attempt_failed 1: tensor \"w\" is another\n");
  EXPECT_EQ(machine->status().detail, "tensor \"w\" is another");
  EXPECT_EQ(from_leader(StopAndWait{1}), "");
  EXPECT_EQ(done(Kind::kStopApplying), "leader: stopped 1\n");
  EXPECT_EQ(pass(200), "");
}

TEST_F(AttemptTest, PrepareIsRejectedByName) {
  become_member();
  options.details.needs = {};
  Prepare message = prepare();
  message.owners.pop_back();
  EXPECT_EQ(from_leader(message),
            "leader: attempt_failed 1 rejected: attempt 1 has 1 owners; this receiver knows 2\n");
  EXPECT_EQ(from_leader(message),
            "leader: attempt_failed 1 rejected: attempt 1 has 1 owners; this receiver knows 2\n");
  EXPECT_EQ(from_leader(StopAndWait{1}), "leader: stopped 1\n");
  ASSERT_TRUE(control.mark_obsolete(1).ok());
  message = prepare();
  message.nodes.clear();
  EXPECT_EQ(from_leader(message),
            "leader: attempt_failed 2 rejected: attempt 2 does not bind node node-0, which feeds "
            "this receiver\n");
  ASSERT_TRUE(control.mark_obsolete(2).ok());
  message = prepare();
  message.base = {1, 1};
  EXPECT_EQ(from_leader(message),
            "leader: attempt_failed 3 rejected: the receiver holds version 0 of attempt 0, but "
            "attempt 3 changes version 1 of attempt 1: it needs a dense attempt, or a restore\n");
  ASSERT_TRUE(control.mark_obsolete(3).ok());
  EXPECT_EQ(from_leader(prepare()), "begin 4\n");
  EXPECT_EQ(done(Kind::kBeginStream, {Code::kMismatch, "parameters lie elsewhere"}),
            "stop\nleader: attempt_failed 4 rejected: parameters lie elsewhere\n");
  EXPECT_EQ(from_leader(StopAndWait{4}), "");
  EXPECT_EQ(done(Kind::kStopApplying), "leader: stopped 4\n");
  ASSERT_TRUE(control.mark_obsolete(4).ok());
  EXPECT_EQ(from_leader(prepare()), "begin 5\n");
  EXPECT_EQ(done(Kind::kBeginStream, {Code::kIo, "no memory just now"}),
            "stop\nleader: attempt_failed 5: no memory just now\n");
}

TEST_F(AttemptTest, NeedsThatAnAttemptDoesNotMeetAreRejected) {
  options.details.needs = {Need::kAny, Need::kOverwrite, Need::kDense, Need::kSkip};
  become_member();
  const std::vector<Need> short_of[] = {{Need::kAny, Need::kOverwrite, Need::kDense},
                                        {Need::kSkip, Need::kOverwrite, Need::kDense, Need::kSkip},
                                        {Need::kAny, Need::kAny, Need::kDense, Need::kSkip},
                                        {Need::kAny, Need::kDense, Need::kOverwrite, Need::kAny},
                                        {}};
  for (const std::vector<Need>& needs : short_of) {
    Prepare message = prepare();
    message.needs = needs;
    const std::string lines = from_leader(message);
    EXPECT_NE(lines.find("rejected: attempt"), std::string::npos) << lines;
    ASSERT_TRUE(control.mark_obsolete(message.attempt).ok());
  }
  Prepare message = prepare();
  message.needs = {Need::kOverwrite, Need::kDense, Need::kDense, Need::kDense};
  EXPECT_EQ(from_leader(message), "begin 6\n");
}

// Rule 4: after a write only what repairs it is taken.
TEST_F(AttemptTest, WhatWasWrittenIsRepairedByAnOverwriteOfTheSameCandidate) {
  become_member();
  become_prepared();
  close_gate_and_open(1, 3);
  hand_over(0, 0);
  ingested(0, 0);
  from_leader(StopAndWait{1});
  done(Kind::kStopApplying);
  EXPECT_EQ(done(Kind::kApplyQueued, {Code::kCancelled, ""}), "leader: stopped 1\n");
  EXPECT_EQ(machine->status().detail, "holds a mixture over version 0 of attempt 0");
  ASSERT_TRUE(control.mark_obsolete(1).ok());
  Prepare retry = prepare(AttemptMode::kOverwrite, 2);
  for (OwnerBinding& owner : retry.owners) owner.dense = false;
  EXPECT_EQ(from_leader(retry),
            "leader: attempt_failed 2 rejected: the receiver holds a mixture over version 0 of "
            "attempt 0, which attempt 2 does not repair: owner-1 wrote other weights and does not "
            "send all\n");
  ASSERT_TRUE(control.mark_obsolete(2).ok());
  become_prepared(AttemptMode::kOverwrite);
  // The gate is closed still, and known to be.
  EXPECT_EQ(from_leader(CloseGate{3}), "leader: gate_closed 3\n");
  EXPECT_EQ(from_leader(CloseGate{3}), "leader: gate_closed 3\n");
}

// In the order of retries, a gate stays closed through all of them; without a retry it opens again.
TEST_F(AttemptTest, AGateThatWasClosedForNothingOpensAgain) {
  become_member();
  become_prepared();
  from_leader(CloseGate{1});
  gate_closes(3);
  ASSERT_TRUE(control.mark_obsolete(1).ok());
  from_leader(StopAndWait{1});
  EXPECT_EQ(done(Kind::kStopApplying), "leader: stopped 1\n");
  EXPECT_EQ(machine->wake_at(), now + options.waits.look_ms);
  EXPECT_EQ(pass(options.waits.stop_ms - 1), "");
  EXPECT_EQ(pass(1), "engine: gate_proof 4 version 0\n");
  // Told that the transition is over, at once.
  become_prepared();
  from_leader(CloseGate{2});
  gate_closes(5);
  ASSERT_TRUE(control.mark_obsolete(2).ok());
  from_leader(StopAndWait{2});
  EXPECT_EQ(done(Kind::kStopApplying), "leader: stopped 2\n");
  EXPECT_EQ(from_leader(Look{}), "engine: gate_proof 6 version 0\n");
  // Where requests go on during attempts, at once too.
  become_prepared(AttemptMode::kMixed, true);
  from_leader(CloseGate{3});
  gate_closes(7);
  ASSERT_TRUE(control.mark_obsolete(3).ok());
  from_leader(StopAndWait{3});
  EXPECT_EQ(done(Kind::kStopApplying), "leader: stopped 3\nengine: gate_proof 8 version 0\n");
}

TEST_F(AttemptTest, ReadsByItselfThatItsAttemptIsOver) {
  become_member();
  become_prepared();
  ASSERT_TRUE(control.mark_obsolete(1).ok());
  EXPECT_EQ(pass(500), "node-0: credit 1 next 0 room 8/100\nstop\n");
  EXPECT_EQ(done(Kind::kStopApplying), "");
  EXPECT_EQ(machine->status().state, "member");
  EXPECT_EQ(from_leader(StopAndWait{1}), "leader: stopped 1\n");
}

// The commit is read before the next attempt is judged.
TEST_F(AttemptTest, ThePrepareAfterACommitWaitsForTheReadingOfK) {
  become_member();
  become_prepared();
  close_gate_and_open(1, 3);
  end_without_payloads();
  from_leader(Flush{1});
  hold_calls = true;
  EXPECT_EQ(done(Kind::kFinishStream), "leader: completed 1 2\n");
  ASSERT_TRUE(control.commit(1).ok());
  const Prepare next = prepare();
  EXPECT_EQ(from_leader(next), "");
  EXPECT_EQ(from_leader(next), "");
  ASSERT_EQ(held_calls.size(), 1U);
  hold_calls = false;
  EXPECT_EQ(step(ControlAnswered{held_calls[0].call, call_control(control, held_calls[0].request)}),
            "begin 2\n");
}

TEST_F(AttemptTest, ANodeThatCannotHaveTheStreamFailsIt) {
  become_member();
  become_prepared();
  EXPECT_EQ(
      hear({"node-0", node.incarnation + 1}, StreamFailed{{false, 1}, {Code::kIo, "", "gone"}}),
      "");
  EXPECT_EQ(from_node(StreamFailed{{false, 2}, {Code::kIo, "", "gone"}}), "");
  EXPECT_EQ(from_node(StreamFailed{{false, 1}, {Code::kCorrupt, "", "payload 0 is damaged"}}),
            "stop\nleader: attempt_failed 1: node node-0: payload 0 is damaged\n");
}

TEST_F(AttemptTest, APayloadWithoutRoomIsIngestedAfterTheNextApplication) {
  become_member();
  become_prepared();
  close_gate_and_open(1, 3);
  EXPECT_EQ(hand_over(1, 0), "ingest 1/0\n");
  EXPECT_EQ(hand_over(1, 0), "");
  EXPECT_EQ(ingested(1, 0, Ingested::kFull), "node-0: credit 1 next 0 room 7/90\n");
  EXPECT_EQ(hand_over(1, 0), "");
  EXPECT_EQ(hand_over(0, 0), "ingest 0/0\n");
  EXPECT_EQ(ingested(0, 0), "apply\nnode-0: credit 1 next 1 room 6/80\n");
  EXPECT_EQ(applied_payloads(1), "ingest 1/0\nnode-0: credit 1 next 1 room 7/90\n");
}

// Handed over to what the stream was before, it is gone by now; it comes again.
TEST_F(AttemptTest, APayloadThatWasLetGoOfIsIngestedWhenItComesAgain) {
  become_member();
  become_prepared();
  close_gate_and_open(1, 3);
  EXPECT_EQ(hand_over(0, 0), "ingest 0/0\n");
  ReceiverWorkDone gone;
  gone.kind = Kind::kIngestPayload;
  gone.stream = stream;
  gone.here = false;
  EXPECT_EQ(step(gone), "");
  EXPECT_EQ(pass(options.waits.repeat_ms), "node-0: credit 1 next 0 room 8/100\n");
  EXPECT_EQ(hand_over(0, 0), "ingest 0/0\n");
  EXPECT_EQ(ingested(0, 0), "apply\nnode-0: credit 1 next 1 room 7/90\n");
}

TEST_F(AttemptTest, APayloadOfAnotherAttemptFailsThis) {
  become_member();
  become_prepared();
  hand_over(0, 0);
  EXPECT_EQ(ingested(0, 0, Ingested::kOtherAttempt),
            "stop\nleader: attempt_failed 1: payload 0 of owner 0 says that it is of another "
            "attempt\n");
}

// One whose base was shown by digests has not shown what its runtime makes of what is written.
TEST_F(AttemptTest, AnAuditWaitsForAStreamThatBringsAll) {
  options.audit = true;
  become_member();
  become_prepared();
  close_gate_and_open(1, 3);
  end_without_payloads();
  from_leader(Flush{1});
  EXPECT_EQ(done(Kind::kFinishStream), "leader: completed 1 2\n");
  ASSERT_TRUE(control.commit(1).ok());
  EXPECT_EQ(from_leader(Look{}), "engine: gate_proof 4 version 1\n");
  become_prepared(AttemptMode::kDense);
  close_gate_and_open(2, 5);
  end_without_payloads();
  from_leader(Flush{2});
  EXPECT_EQ(done(Kind::kFinishStream), "begin 2 overwrite audit\n");
}

// Memory of a machine is bounded: what nobody gave credit for is not kept.
TEST_F(AttemptTest, WhatIsBeyondTheCreditIsNotTaken) {
  become_member();
  become_prepared();
  std::uint64_t ingests = 0;
  const auto count = [&ingests](const std::string& said) {
    if (said.find("ingest ") != std::string::npos) ++ingests;
  };
  for (std::uint64_t number = 0; number < 100; ++number) count(hand_over(1, number));
  for (std::uint64_t number = 0; number < 100; ++number) count(ingested(1, number));
  EXPECT_EQ(ingests, 8U);
  // Coordinators that ask to be told are remembered up to a number.
  from_leader(StopAndWait{1});
  for (std::uint64_t i = 1; i < 100; ++i) hear({"c", i}, StopAndWait{1});
  const std::string told = done(Kind::kStopApplying);
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 8);
}

}  // namespace
}  // namespace dcr
