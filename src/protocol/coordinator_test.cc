// Leadership: following, claiming, taking over, losing, aborting (docs/PROTOCOL.md rule 2).
#include "protocol/test_coordinator.h"

namespace dcr {
namespace {

using Lines = std::vector<std::string>;

TEST_F(CoordinatorTest, AFollowerClaimsWhenTheLeaderStandsStill) {
  add_coordinator("coordinator-1");
  run_for(20'000);
  EXPECT_TRUE(coordinator("coordinator-0").leading());
  EXPECT_FALSE(coordinator("coordinator-1").leading());
  EXPECT_EQ(coordinator("coordinator-1").status().state, "follow");
  EXPECT_EQ(coordinator("coordinator-1").status().detail, "the leader is coordinator-0");
  kill_coordinator("coordinator-0");
  run_for(waits.leader_ms - waits.look_ms - waits.beat_ms);
  EXPECT_FALSE(coordinator("coordinator-1").leading());
  run_for(waits.beat_ms + 3 * waits.look_ms);
  EXPECT_TRUE(coordinator("coordinator-1").leading());
  EXPECT_EQ(control.read()->leader.token, 2U);
}

TEST_F(CoordinatorTest, ItsOwnEarlierLifeIsNotWaitedFor) {
  kill_coordinator("coordinator-0");
  add_coordinator("coordinator-0");
  run_for(0);
  EXPECT_TRUE(coordinator("coordinator-0").leading());
}

TEST_F(CoordinatorTest, AStoreThatDoesNotAnswerIsNoDeadLeader) {
  add_coordinator("coordinator-1");
  run_for(5'000);
  fault = [](const ControlRequest& /*request*/) {
    return Status(Code::kUnavailable, "the store is gone");
  };
  run_for(60'000);
  fault = nullptr;
  run_for(20'000);
  EXPECT_EQ(control.read()->leader.token, 1U);
  EXPECT_TRUE(coordinator("coordinator-0").leading());
  refit("step 1");
  EXPECT_TRUE(refit_ends(1'000)) << all_notes();
}

TEST_F(CoordinatorTest, ATakeoverStopsTheAttemptWhereverItIsBound) {
  mute<Prepare>("receiver-0");
  refit("step 1");
  run_for(100);
  kill_coordinator("coordinator-0");
  script = nullptr;
  sent.clear();
  calls.clear();
  add_coordinator("coordinator-1");
  ASSERT_TRUE(refit_ends(10'000)) << all_notes();
  EXPECT_EQ(calls, (Lines{"enrol", "claim", "prepare", "open", "commit"}));
  Lines stops;
  for (const auto& [name, endpoint] : endpoints) stops.push_back("stop_and_wait 1 > " + name);
  std::sort(stops.begin(), stops.end());
  Lines first(sent.begin(), sent.begin() + 8);
  std::sort(first.begin(), first.end());
  EXPECT_EQ(first, stops);
  EXPECT_EQ(sent[8], "cleanup 1 > owner-0");
  EXPECT_EQ(sent[10], "prepare 2 > owner-0");
  // Nothing was opened, so nothing was written.
  EXPECT_EQ(endpoints["receiver-0"].prepare.mode, AttemptMode::kMixed);
  EXPECT_EQ(control.read()->commit.id, (VersionId{1, 2}));
}

TEST_F(CoordinatorTest, ATakeoverAfterTheOpenOverwrites) {
  mute<Flush>("receiver-0");
  refit("step 1");
  run_for(100);
  ASSERT_TRUE(endpoints["receiver-0"].open);
  kill_coordinator("coordinator-0");
  script = nullptr;
  add_coordinator("coordinator-1");
  ASSERT_TRUE(refit_ends(10'000)) << all_notes();
  EXPECT_EQ(endpoints["receiver-0"].prepare.mode, AttemptMode::kOverwrite);
  EXPECT_FALSE(endpoints["owner-0"].prepare.owners[0].dense);  // the same candidate
  EXPECT_EQ(version(), 1U);
}

TEST_F(CoordinatorTest, ATakeoverThatFindsACommitWaitsForItsBaselines) {
  script = [](Scripted& endpoint, const Message& message, Replies* /*replies*/) {
    return endpoint.role == Role::kOwner && std::holds_alternative<Look>(message);
  };
  refit("step 1");
  run_for(100);
  ASSERT_EQ(version(), 1U);
  kill_coordinator("coordinator-0");
  phases.clear();
  sent.clear();
  add_coordinator("coordinator-1");
  run_for(5'000);
  ASSERT_TRUE(coordinator("coordinator-1").leading());
  EXPECT_EQ(coordinator("coordinator-1").status().state, "baseline");
  EXPECT_EQ(coordinator("coordinator-1").status().detail, "waits for owner-0; 0 of 2 done");
  EXPECT_EQ(count("stop_and_wait 1 > owner-0"), 0U);
  script = nullptr;
  ASSERT_TRUE(refit_ends(1'000)) << all_notes();
  run_for(0);
  EXPECT_EQ(phases, (Lines{"baseline", "cleanup", "gather"}));
  EXPECT_EQ(ended("owner-0")[0].committed, (CommitRecord{{1, 1}, "step 1"}));
  EXPECT_EQ(ended("owner-0")[0].failure, std::nullopt);
  EXPECT_EQ(version(), 1U);
}

// They saw the commit by themselves and ask for nothing any more, but wait to hear of the others.
TEST_F(CoordinatorTest, ATakeoverTellsOwnersThatSawTheCommitHowItEnded) {
  script = [](Scripted& endpoint, const Message& message, Replies* /*replies*/) {
    return endpoint.role == Role::kOwner && std::holds_alternative<Look>(message);
  };
  refit("step 1");
  run_for(100);
  ASSERT_EQ(version(), 1U);
  kill_coordinator("coordinator-0");
  std::vector<RefitEnded> heard;
  on<RefitEnded>([&heard](Scripted& /*owner*/, const RefitEnded& message, Replies* /*replies*/) {
    heard.push_back(message);
    return true;
  });
  const Candidate candidate = endpoints["owner-0"].asks->candidate;
  for (const char* owner : {"owner-0", "owner-1"}) endpoints[owner].asks.reset();
  add_coordinator("coordinator-1");
  run_for(6'000);
  ASSERT_EQ(heard.size(), 2U);
  EXPECT_EQ(heard[0].candidate, candidate);
  EXPECT_EQ(heard[0].call, 0U);
  EXPECT_EQ(heard[0].failure, std::nullopt);
  EXPECT_EQ(heard[0].committed, (CommitRecord{{1, 1}, "step 1"}));
}

// A reply that was lost between the commit and its leader's death.
TEST_F(CoordinatorTest, ACommittedCandidateIsNotPreparedAgain) {
  lost_reply = [this](const ControlRequest& request) -> std::optional<Status> {
    if (!std::holds_alternative<CommitRequest>(request)) return std::nullopt;
    at(now, [this] { kill_coordinator("coordinator-0"); });
    return Status(Code::kUnknownOutcome, "the store went away");
  };
  refit("step 1");
  run_for(100);
  ASSERT_EQ(version(), 1U);
  lost_reply = nullptr;
  add_coordinator("coordinator-1");
  ASSERT_TRUE(refit_ends(20'000)) << all_notes();
  run_for(5'000);
  EXPECT_EQ(version(), 1U);
  EXPECT_EQ(count("prepare 2 > owner-0"), 0U);
}

class CoordinatorLoses : public CoordinatorTest {
 protected:
  // Another takes leadership by force.
  void rob() {
    const std::uint64_t incarnation = control.enrol({"thief", Role::kCoordinator, ""})->incarnation;
    ASSERT_TRUE(control.claim({"thief", incarnation}, control.read()->leader).ok());
  }
};

TEST_F(CoordinatorLoses, AReplacedLeaderLeavesEverythingToTheNewOne) {
  mute<Flush>("receiver-0");
  refit("step 1");
  run_for(100);
  rob();
  sent.clear();
  run_for(waits.beat_ms + waits.look_ms);
  EXPECT_FALSE(coordinator("coordinator-0").leading());
  EXPECT_EQ(count("stop_and_wait 1 > owner-0"), 0U);
  EXPECT_TRUE(noted("coordinator-0: leads no more"));
  sent.clear();
  run_for(waits.leader_ms - waits.beat_ms - 2 * waits.look_ms);
  EXPECT_TRUE(sent.empty());
  // The thief does nothing, so the next takeover is this one's.
  script = nullptr;
  EXPECT_TRUE(refit_ends(10'000)) << all_notes();
}

TEST_F(CoordinatorLoses, ACommitOfAReplacedLeaderConflicts) {
  before_call = [this](const std::string& name, const ControlRequest& request) {
    if (name == "coordinator-0" && std::holds_alternative<CommitRequest>(request)) {
      before_call = nullptr;
      rob();
    }
  };
  refit("step 1");
  run_for(100);
  EXPECT_EQ(version(), 0U);
  EXPECT_FALSE(coordinator("coordinator-0").leading());
  EXPECT_EQ(count("stop_and_wait 1 > owner-0"), 0U);
  EXPECT_EQ(count("cleanup 1 > owner-0"), 0U);
}

TEST_F(CoordinatorTest, AnotherLifeOfItsNameEndsIt) {
  ASSERT_TRUE(control.enrol({"coordinator-0", Role::kCoordinator, ""}).ok());
  run_for(2 * waits.look_ms);
  ASSERT_TRUE(ends.contains("coordinator-0"));
  EXPECT_EQ(ends["coordinator-0"].code(), Code::kConflict);
  EXPECT_NE(ends["coordinator-0"].message().find("is barred"), std::string::npos);
}

TEST_F(CoordinatorTest, ADamagedStoreIsForTheOperator) {
  fault = [](const ControlRequest& request) -> std::optional<Status> {
    if (!std::holds_alternative<PrepareRequest>(request)) return std::nullopt;
    return Status(Code::kCorrupt, "the transition record is damaged");
  };
  refit("step 1");
  run_for(100);
  EXPECT_EQ(ends["coordinator-0"].code(), Code::kCorrupt);
  EXPECT_EQ(ends["coordinator-0"].message(), "prepare: the transition record is damaged");
}

TEST_F(CoordinatorTest, AnOperatorsAbortEndsTheTransitionForGood) {
  mute<Flush>("receiver-0");
  refit("step 1");
  run_for(1'000);
  ASSERT_TRUE(endpoints["receiver-1"].open);
  add_coordinator("operator", true);
  run_for(500);
  EXPECT_FALSE(coordinator("coordinator-0").leading());
  ASSERT_TRUE(refit_ends(1'000)) << all_notes();
  EXPECT_EQ(count("stop_and_wait 1 > receiver-0"), 1U);
  EXPECT_EQ(count("cleanup 1 > owner-1"), 1U);
  EXPECT_EQ(count("look > receiver-0"), 1U);
  ASSERT_TRUE(ended("owner-0")[0].failure.has_value());
  EXPECT_EQ(ended("owner-0")[0].failure->code, Code::kCancelled);
  EXPECT_EQ(ended("owner-0")[0].failure->message, "an operator aborted the transition");
  EXPECT_EQ(ended("owner-0")[0].committed.id, VersionId{});
  run_for(waits.leader_ms);
  ASSERT_TRUE(ends.contains("operator"));
  EXPECT_TRUE(ends["operator"].ok());
  EXPECT_EQ(version(), 0U);
  // Whoever leads next goes on, and all owners send everything.
  kill_coordinator("operator");
  script = nullptr;
  run_for(2 * waits.leader_ms);
  ASSERT_TRUE(coordinator("coordinator-0").leading());
  refit("step 1");
  ASSERT_TRUE(refit_ends(1'000)) << all_notes();
  EXPECT_TRUE(endpoints["owner-0"].prepare.owners[0].dense);
  EXPECT_TRUE(endpoints["owner-0"].prepare.owners[1].dense);
  EXPECT_EQ(version(), 1U);
}

TEST_F(CoordinatorTest, AnAbortReportsACommitThatItFinds) {
  refit("step 1");
  ASSERT_TRUE(refit_ends(0));
  sent.clear();
  add_coordinator("operator", true);
  run_for(500 + waits.leader_ms);
  EXPECT_TRUE(ends["operator"].ok());
  EXPECT_TRUE(noted("no attempt is left to abort: version 1 of attempt 1 is committed"));
  EXPECT_EQ(sent, Lines{});
}

TEST_F(CoordinatorTest, AnAbortEndsARefitThatIsStillGathered) {
  ask("owner-0", "step 1");
  run_for(100);
  add_coordinator("operator", true);
  ASSERT_TRUE(refit_ends(1'000)) << all_notes();
  EXPECT_EQ(ended("owner-0")[0].failure->code, Code::kCancelled);
  EXPECT_TRUE(ended("owner-1").empty());
}

TEST_F(CoordinatorTest, StatusNamesThePhaseAndWhoIsWaitedFor) {
  EXPECT_EQ(coordinator("coordinator-0").status().state, "gather");
  EXPECT_EQ(coordinator("coordinator-0").status().detail, "waits for a refit");
  mute<Prepare>("node-1");
  refit("step 1");
  run_for(100);
  const StatusReply reply = coordinator("coordinator-0").status();
  EXPECT_EQ(reply.state, "prepare");
  EXPECT_EQ(reply.attempt, 1U);
  EXPECT_EQ(reply.detail, "waits for node-1; 7 of 8 done");
  // Asked by anybody.
  sent.clear();
  to_coordinator({"somebody", 99}, {"coordinator-0", 0}, StatusRequest{});
  run_for(0);
  EXPECT_EQ(sent, Lines{"status_reply 1 > somebody"});
}

TEST_F(CoordinatorTest, NothingFollowsTheEnd) {
  ASSERT_TRUE(control.enrol({"coordinator-0", Role::kCoordinator, ""}).ok());
  run_for(2 * waits.look_ms);
  sent.clear();
  refit("step 1");
  run_for(10'000);
  EXPECT_TRUE(sent.empty());
  EXPECT_EQ(coordinator("coordinator-0").wake_at(), kNever);
}

}  // namespace
}  // namespace dcr
