// Proofs of the base and restores (docs/PROTOCOL.md "Receiver").
#include "protocol/test_receiver.h"

namespace dcr {
namespace {

using RestoreTest = ReceiverTest;

constexpr const char* kBegins =
    "begin restore 1 overwrite\nengine: gate_close 1\n"
    "owner-0: restore_request 0\nowner-1: restore_request 0\n";

class RestoringTest : public ReceiverTest {
 public:
  void SetUp() override {
    EXPECT_EQ(step(Started{}), kBegins);
    stream = {true, 1};
    EXPECT_EQ(done(Kind::kBeginStream), "node-0: credit restore 1 next 0 room 8/100\n");
  }
  void come() {
    EXPECT_EQ(hand_over(0, 0), "ingest 0/0\n");
    EXPECT_EQ(from_node(OwnerEnd{stream, 0, 1}), "");
    EXPECT_EQ(from_node(OwnerEnd{stream, 1, 0}), "");
  }
};

TEST_F(RestoringTest, RestoresKWholeAndJoins) {
  EXPECT_EQ(machine->status().state, "restoring");
  EXPECT_EQ(hear(owners[0], RestoreSent{{}, 1, {}}), "");
  EXPECT_EQ(pass(200),
            "engine: gate_close 1\nnode-0: credit restore 1 next 0 room 8/100\n"
            "owner-1: restore_request 0\n");
  come();
  EXPECT_EQ(ingested(0, 0), "end 0/1\nnode-0: credit restore 1 next 1 room 7/90\n");
  EXPECT_EQ(ended(0), "end 1/0\n");
  EXPECT_EQ(ended(1), "");
  // Nothing is written before the gate is closed.
  EXPECT_EQ(machine->status().detail,
            "waits for gate engine to close; waits for the application of payloads");
  EXPECT_EQ(gate_closes(1), "apply\n");
  EXPECT_EQ(applied_payloads(1), "finish\nnode-0: credit restore 1 next 1 room 8/100\n");
  EXPECT_EQ(done(Kind::kFinishStream), "engine: gate_proof 2 version 0\n");
  EXPECT_EQ(machine->status().state, "member");
  EXPECT_EQ((**control.read_member("receiver-0")).restored, VersionId{});
}

TEST_F(RestoringTest, RefusesPreparesUntilItIsDone) {
  Prepare message;
  message.attempt = 1;
  message.receivers = {{{"receiver-0", machine->incarnation()}, "engine", "node-0"}};
  EXPECT_EQ(from_leader(message), "");
  EXPECT_EQ(from_leader(StopAndWait{1}), "leader: stopped 1\n");
  EXPECT_EQ(machine->status().state, "restoring");
}

TEST_F(RestoringTest, AnOwnerThatCannotSendIsAskedAgain) {
  EXPECT_EQ(hear(owners[0], RestoreSent{{}, 0, Failure{Code::kMismatch, "", "no baseline"}}), "");
  EXPECT_EQ(machine->status().detail,
            "waits for gate engine to close; waits for payload 0 or the "
            "end of owner 0");
  gate_closes(1);
  EXPECT_EQ(machine->status().detail,
            "owner-0 sends no baseline: no baseline; waits for payload 0 "
            "or the end of owner 0");
  EXPECT_EQ(pass(499), "node-0: credit restore 1 next 0 room 8/100\n");
  EXPECT_EQ(pass(1), "owner-0: restore_request 0\nowner-1: restore_request 0\n");
}

TEST_F(RestoringTest, SaysWhatThisLifeWaitsForWhenItStandsStill) {
  const auto stand_still = [this] {
    const std::uint64_t before = machine->incarnation();
    pass(options.waits.restore_ms);
    done(Kind::kStopApplying);
    EXPECT_GT(machine->incarnation(), before);
    done(Kind::kBeginStream);
    return why;
  };
  const std::string said = "its restore made no progress for 600000 ms: ";
  EXPECT_EQ(stand_still(), said + "gate engine stays open");
  gate_closes(1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(stand_still(), said + "waits for payload 0 or the end of owner 0");
    gate_closes(1);
  }
}

// What first makes the storage whole comes a second time, and is compared.
class AuditedTest : public RestoringTest {
 public:
  void SetUp() override {
    options.audit = true;
    RestoringTest::SetUp();
    gate_closes(1);
  }
  void take() {
    come();
    ingested(0, 0);
    ended(0);
    ended(1);
  }
  void write() {
    take();
    EXPECT_EQ(applied_payloads(1), "finish\nnode-0: credit restore 1 next 1 room 8/100\n");
    EXPECT_EQ(done(Kind::kFinishStream), "begin restore 1 overwrite audit\n");
    EXPECT_TRUE(machine->status().detail.ends_with("audits what came"));
    EXPECT_EQ(done(Kind::kBeginStream), "node-0: credit restore 1 next 0 room 8/100 again\n");
  }
};

TEST_F(AuditedTest, ARestoreIsComparedBeforeItCounts) {
  write();
  EXPECT_EQ((**control.read_member("receiver-0")).restored, std::nullopt);
  take();
  EXPECT_EQ(applied_payloads(1), "finish\nnode-0: credit restore 1 next 1 room 8/100 again\n");
  EXPECT_EQ(done(Kind::kFinishStream), "engine: gate_proof 2 version 0\n");
  EXPECT_EQ((**control.read_member("receiver-0")).restored, VersionId{});
}

TEST_F(AuditedTest, AWordThatDiffersFailsTheRestoreAndIsSaidToTheGate) {
  write();
  take();
  applied_payloads(1);
  EXPECT_EQ(done(Kind::kFinishStream, {Code::kMismatch, "tensor \"a\" differs", "a"}), "stop\n");
  done(Kind::kStopApplying);
  EXPECT_EQ(machine->status().state, "enrolling");
  EXPECT_EQ(pass(options.waits.restore_again_ms), kBegins);
  EXPECT_EQ(why, "its restore failed: tensor \"a\" differs");
  // It is audited again.
  done(Kind::kBeginStream);
  gate_closes(1);
  write();
  take();
  applied_payloads(1);
  EXPECT_EQ(done(Kind::kFinishStream), "engine: gate_proof 2 version 0\n");
}

// However long it takes, as long as it goes on.
TEST_F(AuditedTest, OneThatStandsStillFailsTheRestoreAndSaysWhatItWaitsFor) {
  write();
  const std::uint64_t before = machine->incarnation();
  hand_over(0, 0);
  pass(options.waits.restore_ms - 1);
  ingested(0, 0);
  pass(options.waits.restore_ms - 1);
  EXPECT_EQ(applied_payloads(1), "node-0: credit restore 1 next 1 room 8/100 again\n");
  pass(options.waits.restore_ms - 1);
  EXPECT_EQ(machine->incarnation(), before);
  pass(1);
  EXPECT_GT(machine->incarnation(), before);
  EXPECT_EQ(why,
            "its restore made no progress for 600000 ms: audits what came and waits for "
            "payload 0 or the end of owner 1");
}

TEST_F(AuditedTest, LaterStreamsAreNot) {
  write();
  take();
  applied_payloads(1);
  done(Kind::kFinishStream);
  from_gate(GateState{true, {}, "", 2});
  become_prepared(AttemptMode::kDense);
  close_gate_and_open(1, 3);
  end_without_payloads();
  from_leader(Flush{1});
  EXPECT_EQ(done(Kind::kFinishStream), "leader: completed 1 2\n");
}

// K can be had from nobody: an attempt that sends all makes it whole.
class RefusedTest : public RestoringTest {
 public:
  void SetUp() override {
    RestoringTest::SetUp();
    gate_closes(1);
  }
  std::string refuse() {
    return hear(owners[0], RestoreSent{{}, 0, Failure{Code::kMismatch, "", "no baseline"}});
  }
  void join_without_version() {
    refuse();
    pass(5'000);
    EXPECT_EQ(machine->status().state, "restoring");
    EXPECT_EQ(refuse(), "stop\n");
    EXPECT_EQ(done(Kind::kStopApplying), "");
    EXPECT_EQ(machine->status().state, "joining");
  }
  Milliseconds patience() const {
    return options.waits.prepare_ms + options.waits.restore_again_ms;
  }
};

TEST_F(RefusedTest, ADenseAttemptMakesWhatNobodyCanSend) {
  join_without_version();
  EXPECT_EQ(
      machine->status().detail,
      "holds unknown bits; waits for a dense attempt: owner-0 sends no baseline: no baseline");
  const Member row = **control.read_member("receiver-0");
  EXPECT_EQ(row.state, MemberState::kWaiting);
  EXPECT_EQ(row.restored, std::nullopt);
  become_prepared(AttemptMode::kDense);
  EXPECT_EQ(from_leader(CloseGate{1}), "leader: gate_closed 1\n");
  ASSERT_TRUE(control.open(1).ok());
  from_leader(OpenApply{1});
  // It waits for a retry as long as anybody else.
  pass(60'000);
  ASSERT_TRUE(control.mark_obsolete(1).ok());
  from_leader(StopAndWait{1});
  done(Kind::kStopApplying);
  pass(60'000);
  become_prepared(AttemptMode::kDense);
  from_leader(CloseGate{2});
  ASSERT_TRUE(control.open(2).ok());
  from_leader(OpenApply{2});
  end_without_payloads();
  from_leader(Flush{2});
  EXPECT_EQ(done(Kind::kFinishStream), "leader: completed 2 2\n");
  EXPECT_EQ(machine->status().gate_open, false);
  ASSERT_TRUE(control.commit(2).ok());
  EXPECT_EQ(from_leader(Look{}), "engine: gate_proof 2 version 1\n");
  EXPECT_EQ(machine->status().state, "member");
  EXPECT_EQ(machine->status().detail, "");
}

class RefusedAndAuditedTest : public RefusedTest {
 public:
  void SetUp() override {
    options.audit = true;
    RefusedTest::SetUp();
    join_without_version();
    become_prepared(AttemptMode::kDense);
    from_leader(CloseGate{1});
    ASSERT_TRUE(control.open(1).ok());
    from_leader(OpenApply{1});
  }
  void write() {
    end_without_payloads();
    from_leader(Flush{1});
    EXPECT_EQ(done(Kind::kFinishStream), "begin 1 overwrite audit\n");
    EXPECT_EQ(done(Kind::kBeginStream), "node-0: credit 1 next 0 room 8/100 again\n");
    end_without_payloads();
  }
};

TEST_F(RefusedAndAuditedTest, ItIsComparedBeforeItIsCompleted) {
  write();
  EXPECT_EQ(done(Kind::kFinishStream), "leader: completed 1 2\n");
  ASSERT_TRUE(control.commit(1).ok());
  EXPECT_EQ(from_leader(Look{}), "engine: gate_proof 2 version 1\n");
}

TEST_F(RefusedAndAuditedTest, AWordThatDiffersFailsTheAttempt) {
  write();
  EXPECT_EQ(done(Kind::kFinishStream, {Code::kMismatch, "tensor \"a\" differs", "a"}),
            "stop\nengine: gate_close 2\n"
            "leader: attempt_failed 1: tensor \"a\" differs\n");
  EXPECT_EQ(why, "tensor \"a\" differs");
}

// Else the next incarnation, which waits for an attempt, would tell of nothing but its waiting.
TEST_F(RefusedAndAuditedTest, ItsNextIncarnationStillSaysWhatFailed) {
  write();
  done(Kind::kFinishStream, {Code::kMismatch, "tensor \"a\" differs", "a"});
  ASSERT_TRUE(control.mark_obsolete(1).ok());
  ASSERT_TRUE(control.bar(token, {{"receiver-0", machine->incarnation()}}).ok());
  pass(500);
  EXPECT_EQ(why, "it was barred; attempt 1 failed: tensor \"a\" differs");
}

TEST_F(RefusedAndAuditedTest, WhatFailedIsForgottenOnceTheBitsAreWhole) {
  write();
  EXPECT_EQ(done(Kind::kFinishStream), "leader: completed 1 2\n");
  ASSERT_TRUE(control.commit(1).ok());
  from_leader(Look{});
  ASSERT_TRUE(control.bar(token, {{"receiver-0", machine->incarnation()}}).ok());
  pass(500);
  EXPECT_EQ(why, "it was barred");
}

// So that the leader does not take it for one that stands still.
TEST_F(RefusedAndAuditedTest, ItSaysHowFarItIsInBothPasses) {
  hand_over(0, 0);
  ingested(0, 0);
  EXPECT_EQ(from_leader(Flush{1}), "");  // not where one is enough
  EXPECT_EQ(from_leader(Flush{1}),
            "leader: applying 1 0: waits for payload 0 or the end of owner 1\n");
  applied_payloads(1);
  EXPECT_EQ(from_leader(Flush{1}),
            "leader: applying 1 1: waits for payload 0 or the end of owner 1\n");
  from_node(OwnerEnd{stream, 0, 1});
  ended(0);
  from_node(OwnerEnd{stream, 1, 0});
  EXPECT_EQ(ended(1), "finish\n");
  EXPECT_EQ(from_leader(Flush{1}), "leader: applying 1 1: finishes what came\n");
  done(Kind::kFinishStream);
  EXPECT_EQ(from_leader(Flush{1}), "leader: applying 1 1: audits what came\n");
  done(Kind::kBeginStream);
  EXPECT_EQ(from_leader(Flush{1}),
            "leader: applying 1 1: audits what came and waits for payload 0 or the end of owner "
            "0\n");
  hand_over(0, 0);
  ingested(0, 0);
  applied_payloads(1);
  EXPECT_EQ(from_leader(Flush{1}),
            "leader: applying 1 2: audits what came and waits for payload 0 or the end of owner "
            "1\n");
}

TEST_F(RefusedTest, IfNoSuchAttemptComesItAsksOwnersAgain) {
  join_without_version();
  const std::uint64_t before = machine->incarnation();
  pass(patience() - 1);
  EXPECT_EQ(machine->incarnation(), before);
  EXPECT_EQ(pass(options.waits.look_ms), kBegins);
  EXPECT_GT(machine->incarnation(), before);
}

// To leave then would fail it.
TEST_F(RefusedTest, AnAttemptThatBindsItIsWaitedForThoughItsPrepareIsLate) {
  join_without_version();
  pass(patience() - 1);
  hold_calls = true;
  const Prepare message = prepare(AttemptMode::kDense);
  pass(10'000);
  ASSERT_EQ(held_calls.size(), 1U);
  EXPECT_GT(machine->wake_at(), now);
  hold_calls = false;
  step(ControlAnswered{held_calls[0].call, call_control(control, held_calls[0].request)});
  pass(10'000);
  EXPECT_EQ(from_leader(message), "begin 1 overwrite\n");
}

TEST_F(RefusedTest, AVersionThatIsCommittedWithoutItIsRestoredAtOnce) {
  join_without_version();
  const std::uint64_t given = control.enrol({"other", Role::kReceiver, "e"})->incarnation;
  ASSERT_TRUE(control.join({{"other", given}, VersionId{}, {}}).ok());
  prepare();
  ASSERT_TRUE(control.commit(1).ok());
  EXPECT_EQ(pass(500),
            "begin restore 2 overwrite\nengine: gate_close 1\n"
            "owner-0: restore_request 1\nowner-1: restore_request 1\n");
}

TEST_F(RefusedTest, AnOwnerThatSendsAfterAllIsWaitedFor) {
  refuse();
  pass(4'999);
  hear(owners[0], RestoreSent{{}, 1, {}});
  pass(4'999);
  EXPECT_EQ(machine->status().state, "restoring");
  // A word from before, or from its next life.
  refuse();
  pass(5'000);
  refuse();
  EXPECT_EQ(machine->status().state, "restoring");
  come();
  ingested(0, 0);
  ended(0);
  ended(1);
  applied_payloads(1);
  EXPECT_EQ(done(Kind::kFinishStream), "engine: gate_proof 2 version 0\n");
  refuse();
  pass(5'000);
  EXPECT_EQ(machine->status().state, "member");
  EXPECT_GT(machine->wake_at(), now);
}

TEST_F(RefusedTest, ARefusalIsForgottenWhenACommitOvertakesTheRestore) {
  const std::uint64_t given = control.enrol({"other", Role::kReceiver, "e"})->incarnation;
  ASSERT_TRUE(control.join({{"other", given}, VersionId{}, {}}).ok());
  refuse();
  prepare();
  ASSERT_TRUE(control.commit(1).ok());
  pass(500);
  hold_calls = true;
  pass(5'000);
  EXPECT_GT(machine->wake_at(), now);
  EXPECT_EQ(machine->status().state, "restoring");
}

// Whatever fails, the next try has an incarnation and a fence of its own.
TEST_F(RestoringTest, AFailedRestoreBeginsAnewAfterAWhile) {
  const std::uint64_t before = machine->incarnation();
  EXPECT_EQ(from_node(StreamFailed{stream, {Code::kCorrupt, "", "an end is damaged"}}), "stop\n");
  EXPECT_EQ(machine->status().detail, "its restore failed: node node-0: an end is damaged");
  EXPECT_EQ(done(Kind::kStopApplying), "");
  EXPECT_EQ(pass(4'999), "engine: gate_close 1\n");
  EXPECT_EQ(pass(1), kBegins);
  EXPECT_GT(machine->incarnation(), before);
}

TEST_F(RestoringTest, ARestoreWithoutProgressBeginsAnew) {
  gate_closes(1);
  hear(owners[0], RestoreSent{{}, 1, {}});
  hear(owners[1], RestoreSent{{}, 1, {}});
  const Milliseconds until = now + options.waits.restore_ms;
  while (now + 200 < until) {
    EXPECT_EQ(pass(200), "node-0: credit restore 1 next 0 room 8/100\n");
  }
  const std::uint64_t before = machine->incarnation();
  EXPECT_EQ(pass(200),
            "stop\nengine: gate_close 1\n"
            "owner-0: restore_request 0\nowner-1: restore_request 0\n");
  EXPECT_GT(machine->incarnation(), before);
}

class CommitsTest : public RestoringTest {
 public:
  // Another receiver, so that versions are committed meanwhile.
  void SetUp() override {
    const std::uint64_t given = control.enrol({"other", Role::kReceiver, "e"})->incarnation;
    ASSERT_TRUE(control.join({{"other", given}, VersionId{}, {}}).ok());
    RestoringTest::SetUp();
    gate_closes(1);
  }
};

// Rule 7: it is counted, so that the next prepare waits for the next restore.
TEST_F(CommitsTest, ARestoreThatACommitOvertookIsCountedAndBeginsAnew) {
  const std::uint64_t before = machine->incarnation();
  prepare();
  ASSERT_TRUE(control.commit(1).ok());
  EXPECT_EQ(pass(500),
            "node-0: credit restore 1 next 0 room 8/100\n"
            "owner-0: restore_request 0\nowner-1: restore_request 0\nstop\nengine: gate_close 1\n"
            "owner-0: restore_request 1\nowner-1: restore_request 1\n");
  EXPECT_GT(machine->incarnation(), before);
  EXPECT_EQ((**control.read_member("receiver-0")).overtaken, 1U);
  stream = {true, 1};
  EXPECT_EQ(done(Kind::kStopApplying), "begin restore 2 overwrite\n");
}

// Rule 6: a join while an attempt is active waits for the next prepare, and the gate for its
// commit.
TEST_F(CommitsTest, AJoinInMidAttemptIsAdmittedByTheNextPrepare) {
  prepare();
  stream = {true, 1};
  end_without_payloads();
  EXPECT_EQ(done(Kind::kFinishStream), "");
  EXPECT_EQ(machine->status().state, "joining");
  EXPECT_EQ((**control.read_member("receiver-0")).state, MemberState::kWaiting);
  ASSERT_TRUE(control.mark_obsolete(1).ok());
  become_prepared();
  EXPECT_EQ(pass(500), "node-0: credit 2 next 0 room 8/100\n");  // and no proof
  EXPECT_EQ(from_leader(CloseGate{2}), "leader: gate_closed 2\n");
  ASSERT_TRUE(control.open(2).ok());
  from_leader(OpenApply{2});
  end_without_payloads();
  from_leader(Flush{2});
  EXPECT_EQ(done(Kind::kFinishStream), "leader: completed 2 2\n");
  ASSERT_TRUE(control.commit(2).ok());
  EXPECT_EQ(from_leader(Look{}), "engine: gate_proof 2 version 1\n");
}

// Its attempt came to nothing: its proof holds still.
TEST_F(CommitsTest, ThatAttemptEndedWithoutACommitOpensTheGateForItsVersion) {
  prepare();
  stream = {true, 1};
  end_without_payloads();
  done(Kind::kFinishStream);
  ASSERT_TRUE(control.mark_obsolete(1).ok());
  become_prepared(AttemptMode::kMixed, true);
  EXPECT_EQ(pass(500), "");
  ASSERT_TRUE(control.mark_obsolete(2).ok());
  EXPECT_EQ(pass(500), "stop\n");
  EXPECT_EQ(done(Kind::kStopApplying), "engine: gate_proof 2 version 0\n");
}

TEST_F(RestoreTest, ABaseThatDiffersIsRestoredAndTheTensorNamed) {
  options.base_loaded = true;
  start();
  hear(owners[0], BaseDigests{});
  EXPECT_EQ(hear(owners[1], BaseDigests{}), "check_base\n");
  stream = {};
  EXPECT_EQ(done(Kind::kCheckBase, {Code::kMismatch, "tensor \"w\" differs", "w"}),
            "begin restore 1 overwrite\nowner-0: restore_request 0\nowner-1: restore_request 0\n");
  EXPECT_EQ(machine->status().detail, "waits for gate engine to close");
  gate_closes(1);
  EXPECT_EQ(machine->status().detail,
            "the base that it loaded is not the owners': tensor \"w\" differs");
}

TEST_F(RestoreTest, ABaseIsNotProvenAgainstALaterVersion) {
  const std::uint64_t given = control.enrol({"other", Role::kReceiver, "e"})->incarnation;
  ASSERT_TRUE(control.join({{"other", given}, VersionId{}, {}}).ok());
  options.base_loaded = true;
  start();
  EXPECT_EQ(machine->status().state, "proving_base");
  hear(owners[0], BaseDigests{{}, Failure{Code::kMismatch, "", "no base"}});
  EXPECT_EQ(machine->status().detail, "owner-0 has no digests of the base: no base");
  prepare();
  ASSERT_TRUE(control.commit(1).ok());
  EXPECT_EQ(pass(500),
            "engine: gate_close 1\n"
            "owner-0: base_digests_request\nowner-1: base_digests_request\n"
            "begin restore 2 overwrite\n"
            "owner-0: restore_request 1\nowner-1: restore_request 1\n");
}

TEST_F(RestoreTest, ABaseThatNobodyCanTellIsMadeByADenseAttempt) {
  options.base_loaded = true;
  start();
  hear(owners[1], BaseDigests{});
  const BaseDigests refusal{{}, Failure{Code::kMismatch, "", "no base"}};
  for (int second = 0; second < 5; ++second) {
    hear(owners[0], refusal);
    EXPECT_EQ(machine->status().state, "proving_base");
    pass(1'000);
  }
  hear(owners[0], refusal);
  EXPECT_EQ(machine->status().state, "joining");
  EXPECT_EQ(machine->status().detail,
            "holds unknown bits; waits for a dense attempt: owner-0 has no digests of the base: no "
            "base");
  gate_closes(1);
  become_prepared(AttemptMode::kDense);
}

// A mixture that no attempt comes to repair does not stay for ever.
TEST_F(RestoreTest, AMixtureThatNobodyRepairsIsRestored) {
  become_member();
  become_prepared();
  close_gate_and_open(1, 3);
  hand_over(0, 0);
  ingested(0, 0);
  ASSERT_TRUE(control.mark_obsolete(1).ok());
  from_leader(StopAndWait{1});
  done(Kind::kStopApplying);
  EXPECT_EQ(done(Kind::kApplyQueued, {Code::kCancelled, ""}), "leader: stopped 1\n");
  EXPECT_EQ(pass(options.waits.restore_ms - 1), "");
  EXPECT_EQ(pass(1), kBegins);
}

}  // namespace
}  // namespace dcr
