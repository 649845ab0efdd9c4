// Transitions that begin or go on in unusual ways, at the coordinator: each ends committed, or is
// refused by name. docs/TESTING.md "Cases of transitions" has the others.
#include "protocol/test_coordinator.h"

namespace dcr {
namespace {

class TransitionCases : public CoordinatorTest {
 protected:
  // Receiver 0 fails the next attempt once it is opened, and `name` the prepare of the one after.
  void fail_after_admission(const std::string& name, bool rejected) {
    const std::uint64_t first = control.read()->transition.attempt + 1;
    script = [=](Scripted& endpoint, const Message& message, Replies* replies) {
      const auto* const flush = std::get_if<Flush>(&message);
      if (flush != nullptr && flush->attempt == first && endpoint.endpoint.name == "receiver-0") {
        replies->push_back(AttemptFailed{first, false, {Code::kIo, "", "the device is lost"}});
        return true;
      }
      const auto* const prepare = std::get_if<Prepare>(&message);
      if (prepare == nullptr || prepare->attempt != first + 1 || endpoint.endpoint.name != name) {
        return false;
      }
      replies->push_back(AttemptFailed{first + 1, rejected, {Code::kIo, "", "no room"}});
      return true;
    };
  }
  std::string modes() {
    std::string text;
    for (const auto& [name, endpoint] : endpoints) {
      if (endpoint.role == Role::kOwner)
        text += name + " " + mode_text(endpoint.prepare.mode) + " ";
    }
    return text;
  }
  static const char* mode_text(AttemptMode mode) {
    if (mode == AttemptMode::kMixed) return "mixed";
    return mode == AttemptMode::kOverwrite ? "overwrite" : "dense";
  }
};

// Something may have been written, so a rejection does not end the transition: only an overwrite
// makes receivers whole.
TEST_F(TransitionCases, APrepareRejectedAfterAdmissionIsTriedAgainAsAnOverwrite) {
  fail_after_admission("receiver-2", true);
  refit("step 1");
  ASSERT_TRUE(refit_ends(0)) << all_notes();
  EXPECT_EQ(ended("owner-0")[0].failure, std::nullopt);
  EXPECT_EQ(ended("owner-0")[0].attempts, 3U);
  EXPECT_EQ(control.read()->commit.id, (VersionId{1, 3}));
  EXPECT_EQ(modes(), "owner-0 overwrite owner-1 overwrite ");
}

TEST_F(TransitionCases, APrepareThatFailedAfterAdmissionIsTriedAgainAsAnOverwrite) {
  for (const char* name : {"owner-1", "node-0", "receiver-2"}) {
    SCOPED_TRACE(name);
    fail_after_admission(name, false);
    refit("step");
    ASSERT_TRUE(refit_ends(0)) << all_notes();
    EXPECT_EQ(ended("owner-0").back().failure, std::nullopt);
    EXPECT_EQ(ended("owner-0").back().attempts, 3U);
    EXPECT_EQ(modes(), "owner-0 overwrite owner-1 overwrite ");
  }
  EXPECT_EQ(version(), 3U);
}

// Nobody wrote anything in the attempt that was rejected: what follows is mixed.
TEST_F(TransitionCases, APrepareRejectedBeforeAdmissionLeavesTheNextTransitionMixed) {
  on<Prepare>([](Scripted& endpoint, const Prepare& prepare, Replies* replies) {
    if (endpoint.endpoint.name != "node-1" || prepare.attempt > 1) return false;
    replies->push_back(AttemptFailed{1, true, {Code::kMismatch, "", "3 owners are too many"}});
    return true;
  });
  refit("step 1");
  ASSERT_TRUE(refit_ends(0)) << all_notes();
  ASSERT_TRUE(ended("owner-0")[0].failure.has_value());
  EXPECT_EQ(ended("owner-0")[0].failure->message,
            "attempt 1 of version 1: node-1 (incarnation 4): 3 owners are too many");
  EXPECT_EQ(version(), 0U);
  refit("step 2");
  ASSERT_TRUE(refit_ends(0)) << all_notes();
  EXPECT_EQ(modes(), "owner-0 mixed owner-1 mixed ");
  EXPECT_EQ(version(), 1U);
}

// No payload, and yet a version: owners' ends count 0, and every receiver completes.
TEST_F(TransitionCases, AZeroChangeRefitIsCommittedWithoutPayloads) {
  on<Prepare>([](Scripted& endpoint, const Prepare& prepare, Replies* replies) {
    if (endpoint.role != Role::kOwner) return false;
    endpoint.fence = endpoint.current = prepare.attempt;
    endpoint.prepare = prepare;
    *replies = {Prepared{prepare.attempt}, Sent{prepare.attempt, prepare.mode, 0, 0, 5, 0}};
    return true;
  });
  for (const bool asynchronous : {false, true}) {
    refit("step", asynchronous);
    ASSERT_TRUE(refit_ends(0)) << all_notes();
  }
  EXPECT_EQ(control.read()->commit.id, (VersionId{2, 2}));
  for (const char* name : {"receiver-0", "receiver-1", "receiver-2", "receiver-3"}) {
    EXPECT_TRUE(endpoints[name].completed);
    EXPECT_EQ(endpoints[name].prepare.attempt, 2U);
  }
}

// A trainer that restarted in the midst of an attempt has no candidate that was written, and no
// baseline: the retry that its next call makes is dense.
TEST_F(TransitionCases, ATrainerThatRestartsInMidAttemptIsDense) {
  mute<Flush>("receiver-3");
  refit("step 1");
  run_for(100);
  EXPECT_TRUE(control.read()->transition.dirty());
  for (const char* owner : {"owner-0", "owner-1"}) {
    start(owner);
    endpoints[owner].baseline.reset();
  }
  script = nullptr;
  refit("step 1");
  ASSERT_TRUE(refit_ends(waits.look_ms + waits.repeat_ms)) << all_notes();
  for (const OwnerBinding& owner : endpoints["owner-0"].prepare.owners) {
    EXPECT_TRUE(owner.dense) << owner.endpoint.name;
  }
  EXPECT_EQ(control.read()->commit.id, (VersionId{1, 2}));
}

// Another number of owners after something was written: all of them are dense.
TEST_F(TransitionCases, ASourceWhoseMembershipChangedInMidAttemptIsDense) {
  mute<Flush>("receiver-3");
  refit("step 1");
  run_for(100);
  endpoints["owner-0"].alive = endpoints["owner-1"].alive = false;
  owners = 1;
  start("owner-0");
  script = nullptr;
  ask("owner-0", "step 1");
  ASSERT_TRUE(run_for(waits.stop_ms + waits.prepare_ms, [this] { return version() == 1; }))
      << all_notes();
  EXPECT_FALSE(control.read_member("owner-1")->has_value());
  ASSERT_EQ(endpoints["owner-0"].prepare.owners.size(), 1U);
  EXPECT_TRUE(endpoints["owner-0"].prepare.owners[0].dense);
}

}  // namespace
}  // namespace dcr
