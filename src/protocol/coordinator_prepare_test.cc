// Requests of owners, and what the next attempt waits for.
#include "protocol/test_coordinator.h"

namespace dcr {
namespace {

using Lines = std::vector<std::string>;

TEST_F(CoordinatorTest, EveryOwnerMustAsk) {
  ask("owner-0", "step 1");
  run_for(waits.prepare_ms - 1);
  EXPECT_EQ(calls, (Lines{"enrol", "claim"}));
  EXPECT_TRUE(operator_calls.empty());
  EXPECT_EQ(coordinator("coordinator-0").status().detail, "waits for owner-1 to ask for a refit");
  run_for(waits.prepare_ms);
  EXPECT_EQ(operator_calls, Lines{"a refit waits for owner-1 to ask for a refit"});
  ask("owner-1", "step 1");
  EXPECT_TRUE(refit_ends(0)) << all_notes();
}

TEST_F(CoordinatorTest, OwnersThatDoNotAgreeAreToldSo) {
  ask("owner-0", "step 1");
  ask("owner-1", "step 2");
  ASSERT_TRUE(refit_ends(waits.prepare_ms + 1'000)) << all_notes();
  for (const char* owner : {"owner-0", "owner-1"}) {
    ASSERT_TRUE(ended(owner)[0].failure.has_value());
    EXPECT_EQ(ended(owner)[0].failure->code, Code::kMismatch);
  }
  EXPECT_EQ(control.read()->transition.attempt, 0U);
  refit("step 2");
  EXPECT_TRUE(refit_ends(0)) << all_notes();
}

// What can never serve is not waited for: owners hear which receiver that is, and why.
TEST_F(CoordinatorTest, ARefitForRefusedEnginesEnds) {
  std::vector<Endpoint> receivers;
  for (auto& [name, endpoint] : endpoints) {
    if (endpoint.role != Role::kReceiver) continue;
    endpoint.alive = false;
    // Another life, which does not join.
    receivers.push_back(
        {name, control.enrol({name, Role::kReceiver, endpoint.engine})->incarnation});
  }
  const Milliseconds until = now + 2 * waits.prepare_ms;
  const std::function<void()> say = [&] {
    for (const Endpoint& receiver : receivers) {
      to_coordinator(receiver, {"coordinator-0", 0},
                     Refused{{Code::kUnsupported, "w", "w cannot be refitted exactly"}});
    }
    if (now < until) at(now + waits.look_ms, say);
  };
  say();
  refit("step 1");
  run_for(waits.prepare_ms / 2);
  EXPECT_EQ(coordinator("coordinator-0").status().detail,
            "waits for a receiver to join; receiver-0 takes no part: w cannot be refitted exactly");
  ASSERT_TRUE(refit_ends(waits.prepare_ms)) << all_notes();
  for (const char* owner : {"owner-0", "owner-1"}) {
    ASSERT_TRUE(ended(owner)[0].failure.has_value());
    EXPECT_EQ(ended(owner)[0].failure->code, Code::kUnsupported);
    EXPECT_EQ(ended(owner)[0].failure->message,
              "no engine can take the refit: receiver-0 takes no part: w cannot be refitted "
              "exactly");
  }
  EXPECT_EQ(control.read()->transition.attempt, 0U);
  // Who says it no more is waited for: it may be gone, and another come.
  run(until + waits.leader_ms);
  refit("step 2");
  run_for(waits.prepare_ms + 1'000);
  EXPECT_EQ(operator_calls, Lines{"a refit waits for a receiver to join"});
  for (const Endpoint& receiver : receivers) start(receiver.name);
  EXPECT_TRUE(refit_ends(1'000)) << all_notes();
  EXPECT_EQ(version(), 1U);
}

TEST_F(CoordinatorTest, ALostAnswerIsGivenAgainAndAnOldRequestGetsNone) {
  std::uint64_t lost = 2;
  on<RefitEnded>([&lost](Scripted& /*endpoint*/, const RefitEnded& /*ended*/, Replies* /*out*/) {
    return lost > 0 && lost-- > 0;
  });
  refit("step 1");
  const RefitRequest first = *endpoints["owner-0"].asks;
  ASSERT_TRUE(refit_ends(2 * waits.repeat_ms)) << all_notes();
  EXPECT_EQ(version(), 1U);
  EXPECT_EQ(ended("owner-0")[0].committed.id, (VersionId{1, 1}));
  refit("step 2");
  ASSERT_TRUE(refit_ends(0));
  sent.clear();
  to_coordinator(endpoints["owner-0"].endpoint, {"coordinator-0", 0}, first);
  run_for(1'000);
  EXPECT_EQ(sent, Lines{});
  EXPECT_EQ(version(), 2U);
}

TEST_F(CoordinatorTest, TheSameCandidateMayBeAskedForAgain) {
  on<Prepare>([](Scripted& endpoint, const Prepare& prepare, Replies* replies) {
    if (endpoint.endpoint.name != "owner-1" || prepare.attempt > 1) return false;
    replies->push_back(AttemptFailed{1, true, {Code::kNotFound, "", "no such tensor"}});
    return true;
  });
  refit("step 1");
  ASSERT_TRUE(refit_ends(0));
  ASSERT_TRUE(ended("owner-0")[0].failure.has_value());
  refit("step 1", false, true);
  ASSERT_TRUE(refit_ends(0));
  EXPECT_EQ(ended("owner-0")[1].failure, std::nullopt);
  EXPECT_EQ(ended("owner-0")[1].call, 2U);
  EXPECT_EQ(ended("owner-0")[1].candidate, ended("owner-0")[0].candidate);
  // And once it is committed: another version of the same weights.
  refit("step 1", false, true);
  ASSERT_TRUE(refit_ends(0)) << all_notes();
  EXPECT_EQ(version(), 2U);
}

TEST_F(CoordinatorTest, ACandidateOfAnotherLifeIsNoRequest) {
  to_coordinator(endpoints["owner-0"].endpoint, {"coordinator-0", 0},
                 RefitRequest{{99, 1}, "step 1", VersionId{}, false, 1});
  ask("owner-1", "step 1");
  run_for(1'000);
  EXPECT_EQ(coordinator("coordinator-0").status().detail, "waits for owner-0 to ask for a refit");
}

TEST_F(CoordinatorTest, AMembershipThatChangesUnderAPrepareIsReadAgain) {
  before_call = [this](const std::string& /*name*/, const ControlRequest& request) {
    if (!std::holds_alternative<PrepareRequest>(request)) return;
    before_call = nullptr;
    add("receiver-4", Role::kReceiver, "engine-2", "node-0", 0);
    start("receiver-4");
  };
  calls.clear();
  refit("step 1");
  ASSERT_TRUE(refit_ends(0)) << all_notes();
  EXPECT_EQ(calls, (Lines{"prepare", "prepare", "open", "commit"}));
  EXPECT_EQ(endpoints["receiver-4"].prepare.attempt, 1U);
}

TEST_F(CoordinatorTest, AReceiverThatJoinsInMidAttemptIsBoundByTheNext) {
  mute<Flush>("receiver-0");
  refit("step 1");
  run_for(100);
  add("receiver-4", Role::kReceiver, "engine-2", "node-0", 0);
  const Enrolment enrolment = *control.enrol({"receiver-4", Role::kReceiver, "engine-2"});
  endpoints["receiver-4"].endpoint = {"receiver-4", enrolment.incarnation};
  endpoints["receiver-4"].fence = 1;
  EXPECT_EQ(join("receiver-4"), JoinOutcome::kWaiting);
  ASSERT_TRUE(control.mark_obsolete(1).ok());
  script = nullptr;
  ASSERT_TRUE(refit_ends(2 * waits.look_ms)) << all_notes();
  EXPECT_EQ(endpoints["receiver-4"].prepare.attempt, 2U);
  EXPECT_EQ(endpoints["receiver-4"].prepare.receivers.size(), 5U);
}

TEST_F(CoordinatorTest, WhereNoReceiverHasAVersionTheAttemptIsDense) {
  for (std::uint64_t i = 0; i < 4; ++i) {
    const std::string name = numbered("receiver", i);
    const Enrolment enrolment = *control.enrol({name, Role::kReceiver, numbered("engine", i / 2)});
    Scripted& endpoint = endpoints[name];
    endpoint.endpoint = {name, enrolment.incarnation};
    const JoinRequest request{endpoint.endpoint, std::nullopt, details(endpoint)};
    EXPECT_EQ(control.join(request)->outcome, JoinOutcome::kWaiting);
  }
  refit("step 1");
  ASSERT_TRUE(refit_ends(waits.look_ms)) << all_notes();
  EXPECT_EQ(endpoints["receiver-0"].prepare.mode, AttemptMode::kDense);
  for (const OwnerBinding& owner : endpoints["receiver-0"].prepare.owners) EXPECT_TRUE(owner.dense);
  EXPECT_EQ(endpoints["receiver-0"].prepare.receivers.size(), 4U);
  refit("step 2");
  ASSERT_TRUE(refit_ends(waits.look_ms)) << all_notes();
  EXPECT_EQ(endpoints["receiver-0"].prepare.mode, AttemptMode::kMixed);
}

TEST_F(CoordinatorTest, AJoinThatWasOvertakenHoldsTheNextPrepareOnce) {
  // It restored {0, 0}, and waits while version 1 is committed.
  mute<Flush>("receiver-0");
  refit("step 1");
  run_for(100);
  add("receiver-4", Role::kReceiver, "engine-2", "node-0", 0);
  const Enrolment enrolment = *control.enrol({"receiver-4", Role::kReceiver, "engine-2"});
  endpoints["receiver-4"].endpoint = {"receiver-4", enrolment.incarnation};
  EXPECT_EQ(join("receiver-4"), JoinOutcome::kWaiting);
  script = nullptr;
  ASSERT_TRUE(refit_ends(waits.repeat_ms));
  ASSERT_EQ(
      control
          .join({endpoints["receiver-4"].endpoint, VersionId{}, details(endpoints["receiver-4"])})
          ->outcome,
      JoinOutcome::kOvertaken);
  run_for(2 * waits.look_ms);
  refit("step 2");
  ASSERT_FALSE(refit_ends(waits.join_hold_ms / 2));
  EXPECT_EQ(coordinator("coordinator-0").status().detail,
            "waits for receiver-4 to restore, which a commit has overtaken");
  // It restores what is committed and joins: at once.
  EXPECT_EQ(join("receiver-4"), JoinOutcome::kJoined);
  ASSERT_TRUE(refit_ends(2 * waits.look_ms)) << all_notes();
  EXPECT_EQ(endpoints["receiver-4"].prepare.attempt, 2U);
}

TEST_F(CoordinatorTest, AJoinThatWasOvertakenAndDoesNotComeIsHeldForOnce) {
  mute<Flush>("receiver-0");
  refit("step 1");
  run_for(100);
  const Enrolment enrolment = *control.enrol({"receiver-4", Role::kReceiver, "engine-2"});
  Scripted gone;
  gone.role = Role::kReceiver;
  gone.node = "node-0";
  const JoinRequest join_request{{"receiver-4", enrolment.incarnation}, VersionId{}, details(gone)};
  ASSERT_TRUE(control.join(join_request).ok());
  script = nullptr;
  ASSERT_TRUE(refit_ends(waits.repeat_ms));
  ASSERT_EQ(control.join(join_request)->outcome, JoinOutcome::kOvertaken);
  run_for(2 * waits.look_ms);
  Milliseconds before = now;
  refit("step 2");
  ASSERT_TRUE(refit_ends(waits.join_hold_ms + 1)) << all_notes();
  EXPECT_EQ(now - before, waits.join_hold_ms);
  before = now;
  refit("step 3");
  ASSERT_TRUE(refit_ends(0)) << all_notes();
}

TEST_F(CoordinatorTest, ReceiversWhoseNodeDoesNotComeAreRetired) {
  add("receiver-4", Role::kReceiver, "engine-2", "node-7", 0);
  start("receiver-4");
  refit("step 1");
  ASSERT_FALSE(refit_ends(waits.prepare_ms - 1));
  EXPECT_EQ(coordinator("coordinator-0").status().detail, "waits for node node-7 to join");
  ASSERT_TRUE(refit_ends(1'000)) << all_notes();
  EXPECT_FALSE(control.read_member("receiver-4")->has_value());
  EXPECT_EQ(control.read()->transition.receivers.size(), 4U);
}

TEST_F(CoordinatorTest, AReceiverOfAnotherCatalogueIsRefusedByName) {
  add("receiver-4", Role::kReceiver, "engine-2", "node-0", 0);
  const Enrolment enrolment = *control.enrol({"receiver-4", Role::kReceiver, "engine-2"});
  ASSERT_TRUE(control
                  .join({{"receiver-4", enrolment.incarnation},
                         VersionId{},
                         encode_receiver_details({"node-0", {8}, {8}, {}})})
                  .ok());
  refit("step 1");
  ASSERT_TRUE(refit_ends(waits.look_ms)) << all_notes();
  EXPECT_TRUE(noted("receiver-4 (incarnation 10) was prewarmed for another catalogue"));
  EXPECT_FALSE(control.read_member("receiver-4")->has_value());
}

TEST_F(CoordinatorTest, OwnersOfATrainerThatIsGoneAreBarred) {
  refit("step 1");
  ASSERT_TRUE(refit_ends(0));
  run_for(0);
  // The next trainer has one rank.
  endpoints["owner-0"].alive = endpoints["owner-1"].alive = false;
  owners = 1;
  start("owner-0");
  refit("step 2");
  ASSERT_TRUE(refit_ends(2 * waits.look_ms)) << all_notes();
  EXPECT_FALSE(control.read_member("owner-1")->has_value());
  EXPECT_EQ(version(), 2U);
}

}  // namespace
}  // namespace dcr
