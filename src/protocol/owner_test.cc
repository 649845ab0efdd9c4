#include "protocol/owner.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/prng.h"
#include "protocol/test_owner.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

using Kind = OwnerWorkDone::Kind;

TEST_F(OwnerEndpointTest, JoinsAndAsksTheLeaderUntilTheRefitEnds) {
  EXPECT_EQ(owner->machine.incarnation(),
            world.control.read_member("owner-0")->value().endpoint.incarnation);
  EXPECT_EQ(world.control.read_member("owner-0")->value().state, MemberState::kMember);
  EXPECT_EQ(owner->machine.status().state, "idle");
  call_refit();
  auto requests = owner->take<RefitRequest>();
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].first, "coordinator-0");
  EXPECT_EQ(requests[0].second,
            (RefitRequest{{owner->machine.incarnation(), 1}, "next", VersionId{}, false}));
  EXPECT_EQ(owner->machine.status().state, "waits_for_coordinator");
  owner->pass(1000);
  EXPECT_EQ(owner->take<RefitRequest>().size(), 5U);
}

TEST_F(OwnerEndpointTest, ConstructsWhatThePrepareSays) {
  call_refit();
  const Prepare message = prepare(AttemptMode::kOverwrite);
  owner->receive(world.leader, message);
  EXPECT_EQ(owner->take<Prepared>().size(), 1U);
  const Attempt attempt = owner->take_work<ConstructAndSend>().attempt;
  EXPECT_EQ(attempt.run, world.control.read()->run);
  EXPECT_EQ(attempt.attempt, 1U);
  EXPECT_EQ(attempt.base_version, 0U);
  EXPECT_EQ(attempt.target_version, 1U);
  EXPECT_EQ(attempt.mode, AttemptMode::kOverwrite);
  EXPECT_EQ(attempt.needs, message.needs);
  owner->step(OwnerProgress{2, 200});
  const auto hints = owner->take<PayloadsSent>();
  ASSERT_EQ(hints.size(), 1U);
  EXPECT_EQ(hints[0].first, "node-0");
  EXPECT_EQ(hints[0].second, (PayloadsSent{{false, 1}, 2, false}));
  owner->step(done_of(Kind::kConstructAndSend, 1));
  EXPECT_EQ(owner->take<PayloadsSent>()[0].second, (PayloadsSent{{false, 1}, 3, true}));
  const Sent sent{1, AttemptMode::kMixed, 3, 300, 1000, 30};
  EXPECT_EQ(owner->take<Sent>()[0].second, sent);
  owner->pass(400);
  EXPECT_EQ(owner->take<Sent>().size(), 2U);
}

// Rule 3: prepare(τ) iff τ > fence; a repeat for the current attempt is acknowledged again.
TEST_F(OwnerEndpointTest, FencesPrepares) {
  call_refit();
  const Prepare message = prepare();
  owner->receive(world.leader, message);
  owner->receive(world.leader, message);
  EXPECT_EQ(owner->take<Prepared>().size(), 2U);
  owner->take_work<ConstructAndSend>();
  EXPECT_TRUE(owner->work.empty());
  ASSERT_TRUE(world.control.mark_obsolete(1).ok());
  owner->receive(world.leader, StopAndWait{1});
  owner->step(done_of(Kind::kConstructAndSend, 1, {Code::kCancelled, "stopped"}));
  EXPECT_TRUE(owner->take<Stopped>().empty());
  owner->take_work<StopSending>();
  owner->step(done_of(Kind::kStopSending, 1));
  EXPECT_EQ(owner->take<Stopped>().size(), 1U);
  owner->receive(world.leader, message);
  EXPECT_TRUE(owner->take<Prepared>().empty());
  EXPECT_TRUE(owner->work.empty());
}

// … and an attempt that is stopped before its prepare comes is never prepared.
TEST_F(OwnerEndpointTest, AStopComesBeforeItsPrepare) {
  call_refit();
  const Prepare message = prepare();
  ASSERT_TRUE(world.control.mark_obsolete(1).ok());
  owner->receive(world.leader, StopAndWait{1});
  EXPECT_EQ(owner->take<Stopped>()[0].second.attempt, 1U);
  owner->receive(world.leader, message);
  EXPECT_TRUE(owner->take<Prepared>().empty());
  EXPECT_TRUE(owner->work.empty());
}

// … stop_and_wait of an earlier attempt is answered at once, and the current one goes on.
TEST_F(OwnerEndpointTest, AStopOfAnEarlierAttemptLeavesTheCurrentOne) {
  call_refit();
  prepare();
  ASSERT_TRUE(world.control.mark_obsolete(1).ok());
  const Prepare second = construct();
  EXPECT_EQ(second.attempt, 2U);
  owner->receive(world.leader, StopAndWait{1});
  EXPECT_EQ(owner->take<Stopped>()[0].second.attempt, 1U);
  EXPECT_EQ(owner->machine.status().state, "sent");
  commit(2);
  owner->receive(world.leader, Look{});
  EXPECT_EQ(owner->take_work<UpdateBaseline>().version, 1U);
}

TEST_F(OwnerEndpointTest, AnotherLifeOfTheOwnerIsNotBound) {
  call_refit();
  const Prepare message = prepare();
  start(std::nullopt);
  owner->receive(world.leader, message);
  EXPECT_TRUE(owner->messages.empty());
}

TEST_F(OwnerEndpointTest, RejectsACandidateThatNobodyWaitsFor) {
  call_refit();
  Prepare message = prepare();
  message.owners[0].candidate.counter = 9;
  owner->receive(world.leader, message);
  owner->receive(world.leader, message);
  const auto failed = owner->take<AttemptFailed>();
  ASSERT_EQ(failed.size(), 2U);
  EXPECT_TRUE(failed[0].second.rejected);
  EXPECT_EQ(failed[0].second.failure.code, Code::kConflict);
  EXPECT_EQ(failed[0].second.failure.message, "owner-0: no refit waits for candidate 9 any more");
  EXPECT_TRUE(owner->work.empty());
}

// Rule 4: an owner without K's baseline is dense, as is one that the binding says so of.
TEST_F(OwnerEndpointTest, IsDenseWithoutTheBaseline) {
  start(std::nullopt);
  call_refit();
  owner->receive(world.leader, prepare());
  EXPECT_EQ(owner->take_work<ConstructAndSend>().attempt.mode, AttemptMode::kDense);
}
TEST_F(OwnerEndpointTest, IsDenseWithAnotherBaselineOfTheSameVersion) {
  refit();
  start(VersionId{1, 7});
  call_refit();
  const Prepare message = prepare();
  remove_restores();
  owner->receive(world.leader, message);
  sweep(2);
  EXPECT_EQ(owner->take_work<ConstructAndSend>().attempt.mode, AttemptMode::kDense);
}
TEST_F(OwnerEndpointTest, IsDenseWhereItsBindingSaysSo) {
  call_refit();
  Prepare message = prepare();
  message.owners[0].dense = true;
  owner->receive(world.leader, message);
  EXPECT_EQ(owner->take_work<ConstructAndSend>().attempt.mode, AttemptMode::kDense);
}

TEST_F(OwnerEndpointTest, CandidatesHaveNumbersOfTheirOwn) {
  call_refit();
  owner->receive(world.leader, prepare());
  const std::uint64_t first = owner->take_work<ConstructAndSend>().attempt.candidate;
  start(VersionId{});
  call_refit();
  candidate();
  ASSERT_TRUE(world.control.mark_obsolete(1).ok());
  owner->receive(world.leader, prepare());
  sweep(2);
  EXPECT_NE(owner->take_work<ConstructAndSend>().attempt.candidate, first);
}

// What a crash left behind goes before the next attempt's first payload.
TEST_F(OwnerEndpointTest, RemovesWhatEarlierAttemptsLeft) {
  call_refit();
  prepare();
  ASSERT_TRUE(world.control.mark_obsolete(1).ok());
  start(VersionId{});
  call_refit();
  owner->receive(world.leader, prepare());
  EXPECT_EQ(owner->take_work<RemovePayloads>().attempt, 1U);
  EXPECT_TRUE(owner->work.empty());
  owner->step(done_of(Kind::kRemovePayloads, 1));
  EXPECT_EQ(owner->take_work<ConstructAndSend>().attempt.attempt, 2U);
}

TEST_F(OwnerEndpointTest, RemovesAtItsStartWhatAFinishedAttemptLeft) {
  call_refit();
  prepare();
  start(VersionId{});
  EXPECT_TRUE(owner->work.empty());
  ASSERT_TRUE(world.control.mark_obsolete(1).ok());
  owner->pass(500);  // now it is over
  EXPECT_EQ(owner->take_work<RemovePayloads>().attempt, 1U);
  owner->step(done_of(Kind::kRemovePayloads, 1, {Code::kIo, "busy"}));
  owner->pass(200);
  EXPECT_EQ(owner->take_work<RemovePayloads>().attempt, 1U);
  owner->step(done_of(Kind::kRemovePayloads, 1));
}

// Rule 10: should no cleanup ever come, or none succeed while the coordinator waits for it.
TEST_F(OwnerEndpointTest, RemovesWhatACommittedAttemptLeftWithoutACleanup) {
  refit_that_leaves_payloads();
  EXPECT_EQ(owner->take_work<RemovePayloads>().attempt, 1U);
  owner->step(done_of(Kind::kRemovePayloads, 1, {Code::kIo, "busy"}));
  owner->pass(199);
  EXPECT_TRUE(owner->work.empty());
  owner->pass(1);
  EXPECT_EQ(owner->take_work<RemovePayloads>().attempt, 1U);
  owner->step(done_of(Kind::kRemovePayloads, 1));
  owner->receive(world.leader, Cleanup{1});
  EXPECT_EQ(owner->take<CleanedUp>().size(), 1U);
  owner->pass(1'000);
  EXPECT_TRUE(owner->work.empty());
}

TEST_F(OwnerEndpointTest, RemovesWhatAFailedAttemptLeftWithoutACleanup) {
  call_refit();
  const Prepare message = construct();
  ASSERT_TRUE(world.control.mark_obsolete(message.attempt).ok());
  owner->receive(world.leader, StopAndWait{1});
  EXPECT_EQ(owner->take_work<StopSending>().attempt, 1U);
  owner->step(done_of(Kind::kStopSending, 1));
  owner->pass(500);
  EXPECT_TRUE(owner->work.empty());  // another attempt may follow
  owner->receive(world.leader,
                 RefitEnded{candidate_, {}, Failure{Code::kIo, "", "why"}, 1, {}, 1, {}});
  EXPECT_EQ(owner->take_work<RefitFinished>().status.code(), Code::kIo);
  EXPECT_EQ(owner->take_work<RemovePayloads>().attempt, 1U);
  owner->step(done_of(Kind::kRemovePayloads, 1));
  EXPECT_TRUE(owner->work.empty());
}

TEST_F(OwnerEndpointTest, RemovesNothingOfAnAttemptThatIsNotStoppedHere) {
  call_refit();
  owner->receive(world.leader, prepare());
  owner->take_work<ConstructAndSend>();
  ASSERT_TRUE(world.control.mark_obsolete(1).ok());
  owner->receive(world.leader,
                 RefitEnded{candidate_, {}, Failure{Code::kIo, "", "why"}, 1, {}, 1, {}});
  EXPECT_EQ(owner->take_work<StopSending>().attempt, 1U);
  owner->step(done_of(Kind::kStopSending, 1));
  owner->pass(500);
  EXPECT_TRUE(owner->work.empty());
  owner->step(done_of(Kind::kConstructAndSend, 1, {Code::kCancelled, "stopped"}));
  EXPECT_EQ(owner->take_work<RefitFinished>().status.code(), Code::kIo);
  EXPECT_EQ(owner->take_work<RemovePayloads>().attempt, 1U);
}

TEST_F(OwnerEndpointTest, RemovesOldRestoreStreamsUntilThatSucceeds) {
  call_refit();
  commit(construct().attempt);
  owner->receive(world.leader, Look{});
  owner->take_work<UpdateBaseline>();
  owner->step(done_of(Kind::kUpdateBaseline, 1));
  EXPECT_EQ(owner->take_work<RemoveRestores>().version, 1U);
  owner->step(done_of(Kind::kRemoveRestores, 1, {Code::kIo, "busy"}));
  EXPECT_TRUE(owner->work.empty());
  owner->pass(200);
  EXPECT_EQ(owner->take_work<RemoveRestores>().version, 1U);
  owner->step(done_of(Kind::kRemoveRestores, 1));
  EXPECT_TRUE(owner->work.empty());
}

TEST_F(OwnerEndpointTest, SaysWhatFailedUntilItIsStopped) {
  call_refit();
  const Prepare message = prepare();
  owner->receive(world.leader, message);
  owner->take_work<ConstructAndSend>();
  owner->step(done_of(Kind::kConstructAndSend, 1, {Code::kMismatch, "it changed", "w"}));
  owner->pass(200);
  const auto failed = owner->take<AttemptFailed>();
  ASSERT_EQ(failed.size(), 2U);
  EXPECT_EQ(failed[0].second, (AttemptFailed{1, false, {Code::kMismatch, "w", "it changed"}}));
  EXPECT_EQ(owner->machine.status().held, std::nullopt);
  // Nothing runs and nothing is prepared, so there is nothing to wait for.
  owner->receive(world.leader, StopAndWait{1});
  EXPECT_EQ(owner->take<Stopped>().size(), 1U);
  EXPECT_TRUE(owner->work.empty());
}

TEST_F(OwnerEndpointTest, StopsOnlyWhenNothingGoesOutAnyMore) {
  call_refit();
  owner->receive(world.leader, prepare());
  owner->take_work<ConstructAndSend>();
  ASSERT_TRUE(world.control.mark_obsolete(1).ok());
  owner->receive(world.leader, StopAndWait{1});
  EXPECT_EQ(owner->take_work<StopSending>().attempt, 1U);
  owner->step(done_of(Kind::kStopSending, 1, {Code::kIo, "busy"}));
  owner->step(done_of(Kind::kConstructAndSend, 1));  // too late to stop it
  EXPECT_TRUE(owner->take<Sent>().empty());
  EXPECT_TRUE(owner->take<Stopped>().empty());
  owner->pass(200);
  EXPECT_EQ(owner->take_work<StopSending>().attempt, 1U);
  owner->step(done_of(Kind::kStopSending, 1));
  EXPECT_EQ(owner->take<Stopped>().size(), 1U);
}

// The baseline is updated by the owner's own reading, also when no coordinator lives.
TEST_F(OwnerEndpointTest, UpdatesTheBaselineWithoutACoordinator) {
  call_refit();
  commit(construct().attempt);
  EXPECT_TRUE(owner->work.empty());
  owner->pass(500);
  EXPECT_EQ(owner->take_work<UpdateBaseline>().version, 1U);
  owner->take<RefitRequest>();
  owner->step(done_of(Kind::kUpdateBaseline, 1));
  owner->pass(0);
  EXPECT_EQ(owner->take<BaselineUpdated>()[0].second, (BaselineUpdated{{1, 1}, std::nullopt}));
  EXPECT_EQ(owner->machine.status().held, (VersionId{1, 1}));
  EXPECT_EQ(owner->machine.status().state, "committed");
  owner->take_work<RemoveRestores>();
  owner->pass(200);
  EXPECT_EQ(owner->take<BaselineUpdated>().size(), 1U);
  EXPECT_TRUE(owner->take<RefitRequest>().empty());
  owner->pass(Waits().baseline_ms);
  const RefitFinished finished = owner->take_work<RefitFinished>();
  EXPECT_TRUE(finished.status.ok());
  EXPECT_EQ(finished.committed, (CommitRecord{{1, 1}, "next"}));
  EXPECT_EQ(finished.without_baseline, (std::vector<std::string>{}));
}

TEST_F(OwnerEndpointTest, SaysThatItHasNoBaseline) {
  call_refit();
  commit(construct().attempt);
  owner->receive(world.leader, Look{});
  owner->take_work<UpdateBaseline>();
  owner->step(done_of(Kind::kUpdateBaseline, 1, {Code::kMismatch, "it changed", "w"}));
  EXPECT_EQ(owner->take<BaselineUpdated>()[0].second,
            (BaselineUpdated{{1, 1}, Failure{Code::kMismatch, "w", "it changed"}}));
  const EarlyClose early{"node-0 has no room", 1200};
  owner->receive(world.leader,
                 RefitEnded{candidate_, {{1, 1}, "next"}, std::nullopt, 2, {}, 1, early});
  while (!std::holds_alternative<RefitFinished>(owner->work.front())) owner->work.pop_front();
  const RefitFinished finished = owner->take_work<RefitFinished>();
  EXPECT_TRUE(finished.status.ok());
  EXPECT_EQ(finished.attempts, 2U);
  EXPECT_EQ(finished.gate_closed_early, early);
  EXPECT_EQ(finished.without_baseline, (std::vector<std::string>{"owner-0"}));
}

// A new leader asks by Look, and is told again.
TEST_F(OwnerEndpointTest, TellsANewLeaderOfItsBaseline) {
  refit();
  owner->messages.clear();
  owner->receive({"coordinator-1", 99}, Look{});
  const auto told = owner->take<BaselineUpdated>();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].first, "coordinator-1");
}

// The next attempt may come before the owner has read that the last one was committed; and were it
// about a candidate that is committed, it would be refused.
TEST_F(OwnerEndpointTest, UpdatesTheBaselineBeforeItConstructsTheNext) {
  call_refit();
  commit(construct().attempt);
  const Prepare second = prepare();
  owner->receive(world.leader, second);
  EXPECT_EQ(owner->take_work<UpdateBaseline>().version, 1U);
  owner->step(done_of(Kind::kUpdateBaseline, 1));
  sweep(2);
  remove_restores();
  const auto failed = owner->take<AttemptFailed>();
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_TRUE(failed[0].second.rejected);
  EXPECT_EQ(owner->machine.status().held, (VersionId{1, 1}));
}

TEST_F(OwnerEndpointTest, RemovesPayloadsWhenTheCoordinatorSaysSo) {
  call_refit();
  const Prepare message = construct();
  owner->receive(world.leader, Cleanup{1});  // neither stopped nor known to be committed
  EXPECT_TRUE(owner->work.empty());
  commit(message.attempt);
  owner->receive(world.leader, Cleanup{1});
  owner->take_work<UpdateBaseline>();
  owner->step(done_of(Kind::kUpdateBaseline, 1));
  owner->receive(world.leader, Cleanup{1});
  owner->take_work<RemoveRestores>();
  owner->step(done_of(Kind::kRemoveRestores, 1));
  EXPECT_EQ(owner->take_work<RemovePayloads>().attempt, 1U);
  owner->step(done_of(Kind::kRemovePayloads, 1, {Code::kIo, "busy"}));
  EXPECT_TRUE(owner->take<CleanedUp>().empty());
  owner->receive(world.leader, Cleanup{1});
  owner->take_work<RemovePayloads>();
  owner->step(done_of(Kind::kRemovePayloads, 1));
  owner->receive(world.leader, Cleanup{1});
  EXPECT_EQ(owner->take<CleanedUp>().size(), 2U);
  EXPECT_TRUE(owner->work.empty());
}

// ---- how the refit ends

TEST_F(OwnerEndpointTest, AFailedRefitEndsWhenNothingIsSentAnyMore) {
  call_refit();
  const Prepare message = construct();
  ASSERT_TRUE(world.control.mark_obsolete(message.attempt).ok());
  const RefitEnded ended{candidate_, {}, Failure{Code::kIo, "", "why"}, 5, {}, 1, {}};
  owner->receive(world.leader, ended);
  EXPECT_EQ(owner->take_work<StopSending>().attempt, 1U);
  EXPECT_TRUE(owner->work.empty());
  owner->step(done_of(Kind::kStopSending, 1));
  const RefitFinished finished = owner->take_work<RefitFinished>();
  EXPECT_EQ(finished.status.code(), Code::kIo);
  EXPECT_EQ(finished.status.message(), "why");
  EXPECT_EQ(finished.attempts, 5U);
}

// A coordinator that has lost its leadership ends nothing.
TEST_F(OwnerEndpointTest, ARefitThatAnAttemptBindsGoesOn) {
  call_refit();
  const Prepare message = construct();
  owner->receive({"coordinator-9", 77},
                 RefitEnded{candidate_, {}, Failure{Code::kIo, "", "why"}, 5, {}, 1, {}});
  owner->receive({"coordinator-9", 77}, RefitEnded{candidate_, {{1, 1}, "next"}, {}, 5, {}, 1, {}});
  owner->pass(1000);
  EXPECT_TRUE(owner->work.empty());
  commit(message.attempt);
  owner->receive(world.leader, Look{});
  owner->take_work<UpdateBaseline>();
}

TEST_F(OwnerEndpointTest, TheSameCandidateIsKeptForTheSameWeights) {
  call_refit();
  const Candidate first = candidate();
  owner->receive(world.leader, RefitEnded{first, {}, Failure{Code::kIo, "", "why"}, 1, {}, 1, {}});
  EXPECT_FALSE(owner->take_work<RefitFinished>().status.ok());
  call_refit(true);
  EXPECT_EQ(candidate(), first);
  // A late answer to the first.
  owner->receive(world.leader, RefitEnded{first, {}, Failure{Code::kIo, "", "why"}, 1, {}, 1, {}});
  EXPECT_TRUE(owner->work.empty());
  owner->receive(world.leader, RefitEnded{first, {}, Failure{Code::kIo, "", "why"}, 1, {}, 2, {}});
  owner->take_work<RefitFinished>();
  call_refit(false);
  EXPECT_EQ(candidate().counter, first.counter + 1);
}

TEST_F(OwnerEndpointTest, EndsWhenItIsBarred) {
  call_refit();
  const Prepare message = construct();
  ASSERT_TRUE(world.control.mark_obsolete(message.attempt).ok());
  ASSERT_TRUE(world.control.bar(world.token, {message.owners[0].endpoint}).ok());
  owner->pass(1000);
  EXPECT_EQ(owner->take_work<StopSending>().attempt, 1U);
  EXPECT_TRUE(owner->work.empty());
  owner->step(done_of(Kind::kStopSending, 1));
  EXPECT_EQ(owner->take_work<RefitFinished>().status.code(), Code::kConflict);
  EXPECT_EQ(owner->take_work<Ended>().status.code(), Code::kConflict);
  EXPECT_EQ(owner->machine.wake_at(), kNever);
  EXPECT_EQ(owner->machine.status().state, "ended");
}

// What is to be stopped is, while the read that decides what became of the refit takes its time.
TEST_F(OwnerEndpointTest, StopsWhileItAsksWhatBecameOfItsRefit) {
  constexpr std::uint64_t kFinalRead = ~std::uint64_t{0};
  call_refit();
  const Prepare message = prepare();
  owner->receive(world.leader, message);
  owner->take_work<ConstructAndSend>();
  ASSERT_TRUE(world.control.mark_obsolete(1).ok());
  owner->receive(world.leader, StopAndWait{1});
  EXPECT_EQ(owner->take_work<StopSending>().attempt, 1U);
  ASSERT_TRUE(world.control.bar(world.token, {message.owners[0].endpoint}).ok());
  owner->unanswered = kFinalRead;
  owner->pass(1000);
  EXPECT_TRUE(owner->work.empty());
  owner->step(done_of(Kind::kStopSending, 1, {Code::kIo, "busy"}));
  owner->pass(200);
  EXPECT_EQ(owner->take_work<StopSending>().attempt, 1U);
  owner->step(done_of(Kind::kStopSending, 1));
  EXPECT_EQ(owner->machine.wake_at(), kNever);
  EXPECT_TRUE(owner->work.empty());
}

// The commit came first: this refit's baseline is kept for the next life.
TEST_F(OwnerEndpointTest, UpdatesTheBaselineBeforeItEnds) {
  call_refit();
  const Prepare message = construct();
  commit(message.attempt);
  ASSERT_TRUE(world.control.bar(world.token, {message.owners[0].endpoint}).ok());
  owner->pass(1000);
  EXPECT_EQ(owner->take_work<UpdateBaseline>().version, 1U);
  EXPECT_TRUE(owner->work.empty());
  owner->step(done_of(Kind::kUpdateBaseline, 1));
  const RefitFinished finished = owner->take_work<RefitFinished>();
  EXPECT_TRUE(finished.status.ok());
  EXPECT_EQ(finished.committed.id, (VersionId{1, 1}));
  EXPECT_EQ(owner->take_work<Ended>().status.code(), Code::kConflict);
  EXPECT_EQ(owner->machine.status().held, (VersionId{1, 1}));
}

TEST_F(OwnerEndpointTest, DoesNotKnowWhatLaterAttemptsHide) {
  call_refit();
  const Prepare message = construct();
  owner->control_silent = true;
  commit(message.attempt);
  ASSERT_TRUE(world.control.bar(world.token, {message.owners[0].endpoint}).ok());
  const Endpoint successor = world.member("owner-0", Role::kOwner);
  const TransitionRecord next = world.prepare({{"owner-0", {successor.incarnation, 1}}});
  commit(next.attempt);
  owner->control_silent = false;
  owner->pass(1000);
  remove_restores();
  owner->pass(0);
  owner->take_work<StopSending>();
  owner->step(done_of(Kind::kStopSending, 1));
  EXPECT_EQ(owner->take_work<RefitFinished>().status.code(), Code::kUnknownOutcome);
}

// ---- restores and base proofs (docs/PROTOCOL.md "Owner")

TEST_F(OwnerEndpointTest, SendsTheCommittedBaselineOnce) {
  refit();
  owner->receive(receiver, RestoreRequest{{1, 1}});
  owner->receive(receiver, RestoreRequest{{1, 1}});
  owner->receive({"receiver-1", 50}, RestoreRequest{{1, 1}});
  EXPECT_EQ(owner->take_work<SendBaseline>().version, (VersionId{1, 1}));
  EXPECT_EQ(owner->machine.status().state, "restoring_receivers");
  OwnerWorkDone done = done_of(Kind::kSendBaseline, 1);
  done.payloads = 9;
  owner->step(done);
  const auto sent = owner->take<RestoreSent>();
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_EQ(sent[0].second, (RestoreSent{{1, 1}, 9, std::nullopt}));
  owner->receive(receiver, RestoreRequest{{1, 1}});
  EXPECT_EQ(owner->take<RestoreSent>()[0].second, (RestoreSent{{1, 1}, 9, std::nullopt}));
  EXPECT_TRUE(owner->work.empty());
}

TEST_F(OwnerEndpointTest, RestoresOnlyWhatIsCommitted) {
  owner->receive(receiver, RestoreRequest{{1, 1}});  // it may have read K later
  EXPECT_TRUE(owner->messages.empty());
  refit();
  owner->messages.clear();
  owner->receive(receiver, RestoreRequest{{0, 0}});
  const auto refused = owner->take<RestoreSent>();
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].second.failure->message,
            "owner-0: version 0 of attempt 0 is asked for, and version 1 of attempt 1 is "
            "committed");
  start(std::nullopt);
  owner->work.clear();
  owner->receive(receiver, RestoreRequest{{1, 1}});
  EXPECT_EQ(owner->take<RestoreSent>()[0].second.failure->code, Code::kMismatch);
  EXPECT_TRUE(owner->work.empty());
}

TEST_F(OwnerEndpointTest, RestoreStreamsOfEarlierVersionsGo) {
  owner->receive(receiver, RestoreRequest{{0, 0}});
  owner->take_work<SendBaseline>();
  owner->step(done_of(Kind::kSendBaseline, 0));
  for (std::uint64_t version = 1; version < 4; ++version) {
    call_refit();
    commit(construct().attempt);
    owner->receive(world.leader, Look{});
    owner->take_work<UpdateBaseline>();
    owner->step(done_of(Kind::kUpdateBaseline, version));
    // Those of crashed lives too, once; then only if there are any.
    if (version < 3) {
      EXPECT_EQ(owner->take_work<RemoveRestores>().version, version);
      owner->step(done_of(Kind::kRemoveRestores, version));
    }
    owner->receive(
        world.leader,
        RefitEnded{candidate_, world.control.read()->commit, std::nullopt, 1, {}, 0, {}});
    owner->take_work<RefitFinished>();
    EXPECT_EQ(owner->take_work<RemovePayloads>().attempt, version);
    owner->step(done_of(Kind::kRemovePayloads, version));
    EXPECT_TRUE(owner->work.empty());
    if (version > 1) continue;
    owner->receive(receiver, RestoreRequest{{1, 1}});
    owner->take_work<SendBaseline>();
    owner->step(done_of(Kind::kSendBaseline, 1));
  }
}

TEST_F(OwnerEndpointTest, SaysTheDigestsOfTheBase) {
  owner->receive(receiver, BaseDigestsRequest{});
  owner->take_work<DigestBase>();
  OwnerWorkDone done = done_of(Kind::kDigestBase, 0);
  done.digests = {Digest{1}, Digest{2}};
  owner->step(done);
  const BaseDigests expected{{Digest{1}, Digest{2}}, std::nullopt};
  EXPECT_EQ(owner->take<BaseDigests>()[0].second, expected);
  owner->receive(receiver, BaseDigestsRequest{});
  EXPECT_EQ(owner->take<BaseDigests>()[0].second, expected);
  refit();
  owner->receive(receiver, BaseDigestsRequest{});
  EXPECT_EQ(owner->take<BaseDigests>()[0].second.failure->message, "owner-0 has the base no more");
}

TEST_F(OwnerEndpointTest, AnswersWhoAsksHowItStands) {
  owner->receive({"dcr", 5}, StatusRequest{});
  const auto status = owner->take<StatusReply>();
  ASSERT_EQ(status.size(), 1U);
  EXPECT_EQ(status[0].second.held, VersionId{});
}

}  // namespace
}  // namespace dcr
