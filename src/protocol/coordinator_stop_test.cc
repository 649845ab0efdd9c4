// How attempts end: baselines, stops, retirement, cleanup, retries and giving up.
#include "protocol/test_coordinator.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

using Lines = std::vector<std::string>;

TEST_F(CoordinatorTest, ARefitEndsWhenEveryOwnerHasUpdatedItsBaseline) {
  mute<Look>("owner-1");
  refit("step 1");
  ASSERT_FALSE(refit_ends(10'000));
  EXPECT_EQ(version(), 1U);
  EXPECT_EQ(count("refit_ended > owner-0"), 0U);
  EXPECT_EQ(coordinator("coordinator-0").status().detail, "waits for owner-1; 1 of 2 done");
  script = nullptr;
  ASSERT_TRUE(refit_ends(waits.repeat_ms)) << all_notes();
  EXPECT_TRUE(ended("owner-0")[0].without_baseline.empty());
}

TEST_F(CoordinatorTest, ABaselineThatIsOverdueIsNamed) {
  mute<Look>("owner-1");
  refit("step 1");
  ASSERT_TRUE(refit_ends(waits.baseline_ms + 1)) << all_notes();
  for (const char* owner : {"owner-0", "owner-1"}) {
    EXPECT_EQ(ended(owner)[0].failure, std::nullopt);
    EXPECT_EQ(ended(owner)[0].without_baseline, Lines{"owner-1"});
  }
  EXPECT_TRUE(noted("committed, owner-1 without baseline"));
}

TEST_F(CoordinatorTest, ABaselineThatFailsIsNamedAtOnce) {
  on<Look>([](Scripted& endpoint, const Look& /*look*/, Replies* replies) {
    if (endpoint.endpoint.name != "owner-1") return false;
    replies->push_back(BaselineUpdated{{1, 1}, Failure{Code::kIo, "", "the host has no memory"}});
    return true;
  });
  refit("step 1");
  ASSERT_TRUE(refit_ends(0)) << all_notes();
  EXPECT_EQ(ended("owner-0")[0].without_baseline, Lines{"owner-1"});
}

TEST_F(CoordinatorTest, AnOwnerThatDiesAfterTheCommitIsNotWaitedFor) {
  mute<Look>("owner-1");
  refit("step 1");
  run_for(100);
  endpoints["owner-1"].alive = false;
  start("owner-1");
  ASSERT_TRUE(refit_ends(2 * waits.look_ms)) << all_notes();
  EXPECT_EQ(ended("owner-0")[0].without_baseline, Lines{"owner-1"});
}

// Its baseline says what it has seen; what it has not is how the refit ended for all.
TEST_F(CoordinatorTest, AnOwnerThatMissedTheEndIsToldAgain) {
  refit("step 1");
  ASSERT_TRUE(refit_ends(0));
  run_for(1'000);
  ASSERT_EQ(count("refit_ended > owner-1"), 1U);
  const Endpoint leader{"coordinator-0", 0};
  to_coordinator(endpoints["owner-1"].endpoint, leader, BaselineUpdated{{1, 1}, std::nullopt});
  run_for(0);
  EXPECT_EQ(count("refit_ended > owner-1"), 2U);
  EXPECT_EQ(count("refit_ended > owner-0"), 1U);
  to_coordinator(endpoints["owner-1"].endpoint, leader, BaselineUpdated{{2, 2}, std::nullopt});
  run_for(0);
  EXPECT_EQ(count("refit_ended > owner-1"), 2U);
}

// What was read before the commit is not what the next attempt is made from.
TEST_F(CoordinatorTest, AReadingOfMembersThatIsOlderThanTheCommitIsNotUsed) {
  mute<Flush>("receiver-0");
  refit("step 1");
  run_for(100);
  answer_delay = [](const ControlRequest& request) {
    return Milliseconds{std::holds_alternative<ReadMembersRequest>(request) ? 2'000U : 0U};
  };
  ASSERT_TRUE(control.enrol({"somebody", Role::kNode, ""}).ok());  // the members have changed
  run_for(waits.look_ms);
  answer_delay = nullptr;
  script = nullptr;
  ASSERT_TRUE(refit_ends(waits.repeat_ms)) << all_notes();
  phases.clear();
  run_for(5'000);
  EXPECT_EQ(phases, (Lines{"cleanup", "gather"})) << all_notes();
  EXPECT_EQ(count("cleanup 1 > owner-0"), 1U);
}

TEST_F(CoordinatorTest, NoRetryBeginsBeforeEverybodyHasStopped) {
  script = [](Scripted& endpoint, const Message& message, Replies* /*replies*/) {
    const std::string& name = endpoint.endpoint.name;
    return (name == "receiver-0" && std::holds_alternative<Flush>(message)) ||
           (name == "receiver-1" && std::holds_alternative<StopAndWait>(message));
  };
  refit("step 1");
  run_for(100);
  ASSERT_TRUE(control.mark_obsolete(1).ok());
  run_for(10'000);
  EXPECT_EQ(coordinator("coordinator-0").status().state, "stop");
  EXPECT_EQ(coordinator("coordinator-0").status().detail, "waits for receiver-1; 7 of 8 done");
  EXPECT_EQ(count("cleanup 1 > owner-0"), 0U);
  EXPECT_EQ(count("prepare 2 > owner-0"), 0U);
  script = nullptr;
  ASSERT_TRUE(refit_ends(waits.repeat_ms)) << all_notes();
  EXPECT_EQ(count("cleanup 1 > owner-0"), 1U);
}

TEST_F(CoordinatorTest, WhoDoesNotStopIsBarredWithItsEngine) {
  script = [](Scripted& endpoint, const Message& /*message*/, Replies* /*replies*/) {
    return endpoint.endpoint.name == "receiver-0";
  };
  const Milliseconds before = now;
  refit("step 1");
  ASSERT_TRUE(refit_ends(waits.prepare_ms + waits.stop_ms + 1'000)) << all_notes();
  EXPECT_GE(now - before, waits.prepare_ms + waits.stop_ms);
  EXPECT_FALSE(control.read_member("receiver-0")->has_value());
  EXPECT_FALSE(control.read_member("receiver-1")->has_value());
  EXPECT_EQ(ended("owner-0")[0].attempts, 2U);
  EXPECT_EQ(control.read()->transition.receivers.size(), 2U);
}

TEST_F(CoordinatorTest, ASilentOwnerIsBarredAndItsSuccessorIsWaitedFor) {
  endpoints["owner-1"].alive = false;
  refit("step 1");
  ask("owner-1", "step 1");  // the last that it said
  to_coordinator(endpoints["owner-1"].endpoint, {"coordinator-0", 0}, *endpoints["owner-1"].asks);
  ASSERT_FALSE(refit_ends(waits.prepare_ms + waits.stop_ms + 10'000));
  EXPECT_FALSE(control.read_member("owner-1")->has_value());
  EXPECT_EQ(coordinator("coordinator-0").status().detail,
            "waits for an owner of rank 1 of 2 to join");
  start("owner-1");
  ask("owner-1", "step 1");
  ASSERT_TRUE(refit_ends(2 * waits.look_ms)) << all_notes();
  EXPECT_EQ(ended("owner-0")[0].failure, std::nullopt);
}

TEST_F(CoordinatorTest, ASecondFailureRetiresTheEngineThatIsToBlame) {
  on<Flush>([](Scripted& endpoint, const Flush& flush, Replies* replies) {
    if (endpoint.endpoint.name != "receiver-2") return false;
    replies->push_back(
        AttemptFailed{flush.attempt, false, {Code::kMismatch, "", "a post-apply check differs"}});
    return true;
  });
  refit("step 1");
  ASSERT_TRUE(refit_ends(0)) << all_notes();
  EXPECT_EQ(ended("owner-0")[0].failure, std::nullopt);
  EXPECT_EQ(ended("owner-0")[0].attempts, 3U);
  EXPECT_FALSE(control.read_member("receiver-2")->has_value());
  EXPECT_FALSE(control.read_member("receiver-3")->has_value());
  EXPECT_TRUE(control.read_member("receiver-0")->has_value());
  EXPECT_TRUE(
      noted("receiver-2 (incarnation 7) is to blame for failures; engine engine-1 is "
            "retired"));
}

TEST_F(CoordinatorTest, WhereAllEnginesFailNoneIsToBlameAndTheOperatorIsCalled) {
  on<Flush>([](Scripted& endpoint, const Flush& flush, Replies* replies) {
    if (endpoint.endpoint.name == "receiver-0" || endpoint.endpoint.name == "receiver-2") {
      replies->push_back(
          AttemptFailed{flush.attempt, false, {Code::kCorrupt, "", "values conflict"}});
      return true;
    }
    return false;
  });
  refit("step 1");
  ASSERT_TRUE(refit_ends(0)) << all_notes();
  ASSERT_TRUE(ended("owner-0")[0].failure.has_value());
  EXPECT_EQ(ended("owner-0")[0].attempts, waits.attempts_max);
  EXPECT_EQ(ended("owner-0")[0].failure->code, Code::kCorrupt);
  EXPECT_EQ(ended("owner-0")[0].failure->message,
            "attempt 5 of version 1: receiver-0 (incarnation 5): values conflict");
  EXPECT_EQ(operator_calls,
            Lines{"5 attempts failed, the last one: attempt 5 of version 1: receiver-0 "
                  "(incarnation 5): values conflict; version 0 stays committed"});
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(
        control.read_member(numbered("receiver", static_cast<std::uint64_t>(i)))->has_value());
  }
  EXPECT_TRUE(control.read()->transition.dirty());
  // What was written is overwritten by the next.
  script = nullptr;
  refit("step 2");
  ASSERT_TRUE(refit_ends(0)) << all_notes();
  EXPECT_TRUE(endpoints["owner-0"].prepare.owners[0].dense);
  EXPECT_EQ(version(), 1U);
}

TEST_F(CoordinatorTest, AnOwnerThatKeepsFailingCallsTheOperator) {
  on<Prepare>([](Scripted& endpoint, const Prepare& prepare, Replies* replies) {
    if (endpoint.endpoint.name != "owner-1") return false;
    replies->push_back(AttemptFailed{prepare.attempt, false, {Code::kIo, "", "no room"}});
    return true;
  });
  refit("step 1");
  ASSERT_TRUE(refit_ends(0)) << all_notes();
  EXPECT_EQ(ended("owner-0")[0].attempts, waits.attempts_max);
  EXPECT_EQ(operator_calls.size(), 1U);
  EXPECT_EQ(control.read()->members_revision, control.read_members()->records.members_revision);
}

TEST_F(CoordinatorTest, ACleanupThatIsOverdueHoldsNothingUp) {
  mute<Cleanup>("owner-1");
  refit("step 1");
  ASSERT_TRUE(refit_ends(0));
  refit("step 2");
  ASSERT_TRUE(refit_ends(waits.cleanup_ms + 1'000)) << all_notes();
  EXPECT_GE(now, waits.cleanup_ms);
  EXPECT_TRUE(noted("owner-1 (incarnation 2) has not cleaned up after attempt 1 of version 1"));
}

TEST_F(CoordinatorTest, ALostCleanupIsRepeated) {
  std::uint64_t lost = 1;
  on<Cleanup>([&lost](Scripted& /*endpoint*/, const Cleanup& /*cleanup*/, Replies* /*replies*/) {
    return lost > 0 && lost-- > 0;
  });
  refit("step 1");
  run_for(1'000);
  EXPECT_EQ(count("cleanup 1 > owner-0"), 2U);
  EXPECT_EQ(count("cleanup 1 > owner-1"), 1U);
}

// Memory and time of a transition do not depend on how many there were.
TEST_F(CoordinatorTest, TenThousandTransitions) {
  for (std::uint64_t i = 1; i <= campaign_cases(10'000); ++i) {
    refit("step");
    ASSERT_TRUE(refit_ends(0)) << i;
    ASSERT_EQ(version(), i);
    run_for(1);
    sent.clear();
    notes.clear();
    calls.clear();
    phases.clear();
    for (auto& [name, endpoint] : endpoints) endpoint.ended.clear();
    ASSERT_EQ(now, i);  // never a timer
  }
}

}  // namespace
}  // namespace dcr
