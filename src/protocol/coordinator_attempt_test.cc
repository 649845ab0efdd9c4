// Attempts that go well, and what makes them fail.
#include "protocol/test_coordinator.h"

namespace dcr {
namespace {

using Lines = std::vector<std::string>;

TEST_F(CoordinatorTest, ASynchronousAttemptGoesInThisOrder) {
  sent.clear();
  calls.clear();
  refit("step 1");
  ASSERT_TRUE(refit_ends(0)) << all_notes();
  EXPECT_EQ(now, 0U);  // nothing waited for a timer
  EXPECT_EQ(calls, (Lines{"prepare", "open", "commit"}));
  const Lines all = {"owner-0",    "owner-1",    "node-0",     "node-1",
                     "receiver-0", "receiver-1", "receiver-2", "receiver-3"};
  Lines expected;
  for (const std::string& name : all) expected.push_back("prepare 1 > " + name);
  for (int i = 4; i < 8; ++i)
    expected.push_back("close_gate 1 > " + all[static_cast<std::size_t>(i)]);
  for (int i = 2; i < 8; ++i)
    expected.push_back("open_apply 1 > " + all[static_cast<std::size_t>(i)]);
  for (int i = 4; i < 8; ++i) expected.push_back("flush 1 > " + all[static_cast<std::size_t>(i)]);
  // Receivers first, whose gates wait for it; then nodes, and owners for their baselines.
  for (const int i : {4, 5, 6, 7, 2, 3, 0, 1}) {
    expected.push_back("look > " + all[static_cast<std::size_t>(i)]);
  }
  for (const char* message : {"refit_ended", "cleanup 1"}) {
    for (int i = 0; i < 2; ++i) {
      expected.push_back(std::string(message) + " > " + all[static_cast<std::size_t>(i)]);
    }
  }
  EXPECT_EQ(sent, expected);
  EXPECT_EQ(version(), 1U);
  for (const char* owner : {"owner-0", "owner-1"}) {
    ASSERT_EQ(ended(owner).size(), 1U);
    EXPECT_EQ(ended(owner)[0].committed, (CommitRecord{{1, 1}, "step 1"}));
    EXPECT_EQ(ended(owner)[0].failure, std::nullopt);
    EXPECT_EQ(ended(owner)[0].attempts, 1U);
    EXPECT_TRUE(ended(owner)[0].without_baseline.empty());
  }
}

TEST_F(CoordinatorTest, AnAsynchronousAttemptClosesGatesWhenEverythingIsStaged) {
  bool staged = false;
  on<Prepare>([&staged](Scripted& endpoint, const Prepare& prepare, Replies* replies) {
    if (endpoint.endpoint.name != "node-1" || staged) return false;
    endpoint.fence = endpoint.current = prepare.attempt;
    replies->push_back(Prepared{prepare.attempt});
    return true;
  });
  sent.clear();
  refit("step 1", true);
  run_for(100);
  EXPECT_TRUE(endpoints["receiver-0"].prepare.asynchronous);
  EXPECT_EQ(coordinator("coordinator-0").status().state, "stream");
  EXPECT_EQ(coordinator("coordinator-0").status().detail, "waits for node-1; 1 of 2 done");
  EXPECT_EQ(count("close_gate 1 > receiver-0"), 0U);
  staged = true;
  // A Staged that was lost is asked for by another Prepare.
  ASSERT_TRUE(refit_ends(waits.look_ms + waits.repeat_ms)) << all_notes();
  run_for(0);
  EXPECT_EQ(phases, (Lines{"gather", "bind", "prepare", "stream", "close_gate", "open", "apply",
                           "commit", "baseline", "cleanup", "gather"}));
  EXPECT_EQ(count("prepare 1 > node-1"), 2U);
  EXPECT_EQ(count("prepare 1 > node-0"), 1U);
  EXPECT_EQ(version(), 1U);
}

TEST_F(CoordinatorTest, StagingThatIsFullClosesGatesEarly) {
  on<Prepare>([](Scripted& endpoint, const Prepare& prepare, Replies* replies) {
    if (endpoint.endpoint.name != "node-1") return false;
    endpoint.fence = endpoint.current = prepare.attempt;
    *replies = {Prepared{prepare.attempt}, StagingFull{prepare.attempt}};
    return true;
  });
  refit("step 1", true);
  ASSERT_TRUE(refit_ends(0)) << all_notes();
  const std::string node =
      "node-1 (incarnation " + std::to_string(endpoints["node-1"].endpoint.incarnation) + ")";
  const EarlyClose early{node + " has no room for what receivers have not applied", 0};
  EXPECT_TRUE(noted("gate_closed_early: " + early.reason));
  EXPECT_EQ(ended("owner-0")[0].gate_closed_early, early);
  EXPECT_EQ(version(), 1U);
  // The next refit has another story.
  script = nullptr;
  refit("step 2", true);
  ASSERT_TRUE(refit_ends(waits.look_ms + waits.repeat_ms)) << all_notes();
  EXPECT_EQ(ended("owner-0").back().gate_closed_early, std::nullopt);
}

TEST_F(CoordinatorTest, NothingOpensBeforeEveryGateIsClosedAndEverybodyIsPrepared) {
  const auto expect_held = [this] {
    refit("step");
    run_for(1'000);
    const std::uint64_t attempt = control.read()->transition.attempt;
    EXPECT_EQ(count("open_apply " + std::to_string(attempt) + " > receiver-0"), 0U);
    EXPECT_FALSE(control.read()->transition.dirty());
    script = nullptr;
    EXPECT_TRUE(refit_ends(waits.repeat_ms)) << all_notes();
    EXPECT_GT(count("open_apply " + std::to_string(attempt) + " > receiver-0"), 0U);
  };
  mute<CloseGate>("receiver-3");
  expect_held();
  mute<Prepare>("node-0");
  expect_held();
}

TEST_F(CoordinatorTest, NothingIsCommittedBeforeEveryReceiverHasCompleted) {
  mute<Flush>("receiver-3");
  refit("step 1");
  run_for(10'000);
  EXPECT_EQ(version(), 0U);
  EXPECT_EQ(coordinator("coordinator-0").status().detail, "waits for receiver-3; 3 of 4 done");
  // Acknowledgments of others, of other attempts and of other lives are none.
  const Endpoint leader{"coordinator-0", 0};
  const Endpoint real = endpoints["receiver-3"].endpoint;
  to_coordinator(real, leader, Completed{2, 0, 0, 0});
  to_coordinator({"receiver-3", real.incarnation + 50}, leader, Completed{1, 0, 0, 0});
  to_coordinator({"receiver-9", real.incarnation}, leader, Completed{1, 0, 0, 0});
  run_for(100);
  EXPECT_EQ(version(), 0U);
  to_coordinator(real, leader, Completed{1, 0, 0, 0});
  run_for(0);
  EXPECT_EQ(version(), 1U);
}

TEST_F(CoordinatorTest, LostMessagesAreRepeatedAndRepeatedOnesAreHarmless) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Prng prng(seed);
    delays = [&prng] {
      std::vector<Milliseconds> copies(prng.below(3));  // none: it is lost
      for (Milliseconds& delay : copies) delay = prng.below(40);
      return copies;
    };
    const std::uint64_t before = version();
    refit("step", seed % 2 == 0);
    ASSERT_TRUE(refit_ends(60'000)) << "seed " << seed << "\n" << all_notes();
    ASSERT_EQ(control.read()->commit.id, (VersionId{before + 1, before + 1})) << "seed " << seed;
  }
}

// ---- failures

TEST_F(CoordinatorTest, ARejectionBeforeAnythingIsOpenEndsTheTransition) {
  on<Prepare>([](Scripted& endpoint, const Prepare& prepare, Replies* replies) {
    if (endpoint.endpoint.name != "receiver-2") return false;
    replies->push_back(
        AttemptFailed{prepare.attempt,
                      true,
                      {Code::kMismatch, "layer.weight", "the base of layer.weight differs"}});
    return true;
  });
  refit("step 1");
  ASSERT_TRUE(refit_ends(0)) << all_notes();
  const RefitEnded end = ended("owner-1")[0];
  ASSERT_TRUE(end.failure.has_value());
  EXPECT_EQ(end.failure->code, Code::kMismatch);
  EXPECT_EQ(end.failure->tensor, "layer.weight");
  EXPECT_EQ(end.failure->message,
            "attempt 1 of version 1: receiver-2 (incarnation 7): the base of layer.weight differs");
  EXPECT_EQ(end.committed, (CommitRecord{{}, "base"}));
  EXPECT_EQ(end.attempts, 1U);
  EXPECT_EQ(count("stop_and_wait 1 > node-0"), 1U);
  EXPECT_EQ(count("cleanup 1 > owner-0"), 1U);
  // Receivers need not wait for a retry before their gates open again.
  EXPECT_EQ(count("look > receiver-0"), 1U);
  EXPECT_EQ(control.read()->transition.state, AttemptState::kObsolete);
  EXPECT_TRUE(operator_calls.empty());
  // The next one is a transition of its own, and the receiver's second failure retires its engine.
  refit("step 2");
  ASSERT_TRUE(refit_ends(0)) << all_notes();
  EXPECT_EQ(ended("owner-1")[1].failure, std::nullopt);
  EXPECT_FALSE(control.read_member("receiver-2")->has_value());
  EXPECT_FALSE(control.read_member("receiver-3")->has_value());  // of the same engine
  EXPECT_TRUE(control.read_member("receiver-0")->has_value());
}

TEST_F(CoordinatorTest, AnOwnerThatWaitsForNoRefitIsAskedForNone) {
  on<Flush>([this](Scripted& endpoint, const Flush& flush, Replies* replies) {
    if (endpoint.endpoint.name != "receiver-1" || flush.attempt > 1) return false;
    endpoints["owner-1"].asks.reset();
    replies->push_back(AttemptFailed{1, false, {Code::kIo, "", "the device is lost"}});
    return true;
  });
  std::uint64_t rejections = 0;
  const Script flushes = script;
  script = [&rejections, flushes](Scripted& endpoint, const Message& message, Replies* replies) {
    const auto* const prepare = std::get_if<Prepare>(&message);
    if (prepare == nullptr || endpoint.endpoint.name != "owner-1" || endpoint.asks) {
      return flushes(endpoint, message, replies);
    }
    ++rejections;
    replies->push_back(
        AttemptFailed{prepare->attempt, true, {Code::kConflict, "", "no refit waits"}});
    return true;
  };
  refit("step 1");
  ASSERT_FALSE(run_for(10'000, [this] { return !endpoints["owner-0"].asks; }));
  EXPECT_EQ(rejections, 1U);
  EXPECT_EQ(coordinator("coordinator-0").status().detail, "waits for owner-1 to ask for a refit");
  ask("owner-1", "step 1");
  ASSERT_TRUE(refit_ends(waits.repeat_ms)) << all_notes();
  EXPECT_EQ(ended("owner-0")[0].failure, std::nullopt);
  EXPECT_EQ(ended("owner-0")[0].attempts, 3U);
}

TEST_F(CoordinatorTest, AFailureBeforeAnythingIsOpenIsTriedAgainAsItWas) {
  on<Prepare>([](Scripted& endpoint, const Prepare& prepare, Replies* replies) {
    if (endpoint.endpoint.name != "owner-1" || prepare.attempt > 1) return false;
    replies->push_back(AttemptFailed{1, false, {Code::kIo, "", "no room on the device"}});
    return true;
  });
  refit("step 1");
  ASSERT_TRUE(refit_ends(0)) << all_notes();
  EXPECT_EQ(ended("owner-0")[0].failure, std::nullopt);
  EXPECT_EQ(ended("owner-0")[0].attempts, 2U);
  EXPECT_EQ(control.read()->commit.id, (VersionId{1, 2}));
  EXPECT_EQ(endpoints["owner-0"].prepare.mode, AttemptMode::kMixed);
}

TEST_F(CoordinatorTest, AFailureOrARejectionAfterTheOpenIsOverwritten) {
  on<Flush>([](Scripted& endpoint, const Flush& flush, Replies* replies) {
    if (endpoint.endpoint.name != "receiver-1" || flush.attempt > 1) return false;
    replies->push_back(AttemptFailed{1, true, {Code::kCorrupt, "", "a payload is damaged"}});
    return true;
  });
  refit("step 1");
  ASSERT_TRUE(refit_ends(0)) << all_notes();
  EXPECT_EQ(ended("owner-0")[0].failure, std::nullopt);
  EXPECT_EQ(endpoints["owner-0"].prepare.mode, AttemptMode::kOverwrite);
  EXPECT_EQ(control.read()->commit.id, (VersionId{1, 2}));
}

TEST_F(CoordinatorTest, EveryWaitEndsByNamingWhoWasWaitedFor) {
  // Which message is not answered, by whom, in which mode; how long that is waited for; the words.
  struct Case {
    const char* name;
    bool asynchronous;
    std::function<bool(const Message&)> muted;
    Milliseconds wait;
    const char* words;
  };
  const auto is_prepare = [](const Message& message) {
    return std::holds_alternative<Prepare>(message);
  };
  const Case cases[] = {
      {"node-1", false, is_prepare, waits.prepare_ms,
       "phase prepare is overdue: node-1 (incarnation 4) is waited for, 7 of 8 are done"},
      {"receiver-1", false,
       [](const Message& message) { return std::holds_alternative<CloseGate>(message); },
       waits.drain_ms,
       "phase close_gate is overdue: receiver-1 (incarnation 6) is waited for, 3 of 4 are done"},
      {"receiver-1", false,
       [](const Message& message) { return std::holds_alternative<Flush>(message); },
       waits.apply_ms,
       "phase apply is overdue: receiver-1 (incarnation 6) is waited for, 3 of 4 are done"},
  };
  std::uint64_t attempt = 0;
  for (const Case& of : cases) {
    ++attempt;
    script = [&of, attempt](Scripted& endpoint, const Message& message, Replies* /*replies*/) {
      const bool this_attempt = endpoint.current <= attempt;
      return endpoint.endpoint.name == of.name && this_attempt && of.muted(message) &&
             !(std::holds_alternative<Prepare>(message) &&
               std::get<Prepare>(message).attempt > attempt);
    };
    const Milliseconds before = now;
    refit("step", of.asynchronous);
    ASSERT_TRUE(refit_ends(of.wait + 10'000)) << of.words << "\n" << all_notes();
    EXPECT_GE(now - before, of.wait);
    EXPECT_TRUE(noted("attempt " + std::to_string(attempt) + " of version " +
                      std::to_string(version()) + ": " + of.words))
        << all_notes();
    ++attempt;
  }
  EXPECT_EQ(version(), 3U);
}

TEST_F(CoordinatorTest, AnOwnerThatSendsNothingIsOverdueButOneThatGoesOnIsNot) {
  on<Prepare>([](Scripted& endpoint, const Prepare& prepare, Replies* replies) {
    if (endpoint.endpoint.name != "owner-1" || prepare.attempt > 1) return false;
    endpoint.fence = endpoint.current = prepare.attempt;
    replies->push_back(Prepared{prepare.attempt});
    return true;
  });
  refit("step 1");
  for (int i = 0; i < 5; ++i) {
    ASSERT_FALSE(refit_ends(waits.send_ms - 1'000));
    to_coordinator(endpoints["owner-1"].endpoint, {"coordinator-0", 0}, Prepared{1});
  }
  EXPECT_FALSE(noted("overdue"));
  ASSERT_TRUE(refit_ends(waits.send_ms + 1'000)) << all_notes();
  EXPECT_TRUE(noted("phase stream is overdue: owner-1 (incarnation 2) is waited for, 1 of 2"));
  EXPECT_EQ(ended("owner-0")[0].attempts, 2U);
}

// What an audit compares comes a second time: all of it may take longer than anybody waits for one
// that stands still.
TEST_F(CoordinatorTest, AReceiverThatStandsStillIsOverdueButOneThatGoesOnApplyingIsNot) {
  on<Flush>([](Scripted& endpoint, const Flush& flush, Replies* /*replies*/) {
    return endpoint.endpoint.name == "receiver-1" && flush.attempt == 1;
  });
  refit("step 1");
  const auto say = [this](std::uint64_t payloads) {
    to_coordinator(endpoints["receiver-1"].endpoint, {"coordinator-0", 0},
                   Applying{1, payloads,
                            "audits what came and waits for payload " + std::to_string(payloads) +
                                " of owner 0"});
  };
  for (std::uint64_t payloads = 1; payloads <= 5; ++payloads) {
    ASSERT_FALSE(refit_ends(waits.apply_ms - 1'000));
    say(payloads);
  }
  // The same again, and an older one that comes late, are no progress.
  for (int i = 0; i < 4; ++i) {
    ASSERT_FALSE(refit_ends(waits.apply_ms / 4 - 1'000));
    say(5);
    say(4);
  }
  EXPECT_FALSE(noted("overdue"));
  ASSERT_TRUE(refit_ends(10'000)) << all_notes();
  EXPECT_TRUE(
      noted("phase apply is overdue: receiver-1 (incarnation 6) is waited for, 3 of 4 are done; "
            "it audits what came and waits for payload 5 of owner 0"))
      << all_notes();
  EXPECT_EQ(ended("owner-0")[0].attempts, 2U);
}

TEST_F(CoordinatorTest, OneThatGoesOnApplyingIsNoReasonToWaitForAnother) {
  on<Flush>([](Scripted& endpoint, const Flush& flush, Replies* /*replies*/) {
    const std::string& name = endpoint.endpoint.name;
    return (name == "receiver-1" || name == "receiver-2") && flush.attempt == 1;
  });
  refit("step 1");
  for (std::uint64_t quarter = 1; quarter <= 3; ++quarter) {
    ASSERT_FALSE(refit_ends(waits.apply_ms / 4));
    to_coordinator(endpoints["receiver-1"].endpoint, {"coordinator-0", 0},
                   Applying{1, quarter, "audits what came"});
  }
  ASSERT_TRUE(refit_ends(waits.apply_ms / 4 + 10'000)) << all_notes();
  EXPECT_TRUE(
      noted("phase apply is overdue: receiver-2 (incarnation 7) is waited for, 2 of 4 are "
            "done"))
      << all_notes();
  EXPECT_FALSE(noted("audits what came"));
}

TEST_F(CoordinatorTest, ABoundEndpointThatRestartsFailsTheAttempt) {
  for (const char* name : {"owner-1", "node-0", "receiver-2"}) {
    mute<Flush>("receiver-0");
    refit("step");
    run_for(100);
    notes.clear();
    const Endpoint before = endpoints[name].endpoint;
    endpoints[name].alive = false;
    start(name);
    script = nullptr;
    delays = [] { return std::vector<Milliseconds>{}; };  // nobody may complete meanwhile
    run_for(waits.look_ms);
    EXPECT_TRUE(noted(std::string(name) + " (incarnation " + std::to_string(before.incarnation) +
                      ") is gone: it restarted, or was barred"))
        << name << "\n"
        << all_notes();
    delays = [] { return std::vector<Milliseconds>{0}; };
    if (std::string(name) == "owner-1") refit("step");  // the trainer's
    ASSERT_TRUE(refit_ends(waits.prepare_ms)) << name << "\n" << all_notes();
    EXPECT_EQ(endpoints["owner-0"].prepare.mode, AttemptMode::kOverwrite);
  }
  EXPECT_EQ(version(), 3U);
}

TEST_F(CoordinatorTest, AnAttemptThatSomebodyElseEndsIsStopped) {
  mute<Flush>("receiver-0");
  refit("step 1");
  run_for(100);
  ASSERT_TRUE(control.mark_obsolete(1).ok());
  run_for(waits.look_ms);
  EXPECT_EQ(count("stop_and_wait 1 > owner-0"), 1U);
  script = nullptr;
  ASSERT_TRUE(refit_ends(waits.look_ms)) << all_notes();
  EXPECT_EQ(control.read()->commit.id, (VersionId{1, 2}));
}

// ---- outcomes

TEST_F(CoordinatorTest, UnknownOutcomesOfEveryCallAreRepeatedUntilTheyAreKnown) {
  for (const char* name : {"prepare", "open", "commit", "read_members"}) {
    for (const bool done : {false, true}) {
      std::uint64_t failures = 3;
      const auto fails = [&failures, name](const ControlRequest& request) -> std::optional<Status> {
        if (failures == 0 || std::string(control_request_name(request)) != name) {
          return std::nullopt;
        }
        --failures;
        return Status(Code::kUnknownOutcome, "the store went away");
      };
      (done ? lost_reply : fault) = fails;
      const std::uint64_t before = version();
      refit("step");
      ASSERT_TRUE(refit_ends(5'000)) << name << "\n" << all_notes();
      run_for(5'000);
      EXPECT_EQ(failures, 0U) << name;
      EXPECT_EQ(version(), before + 1) << name;
      EXPECT_EQ(control.read()->transition.attempt, version()) << name;  // without a retry
      fault = lost_reply = nullptr;
    }
  }
}

TEST_F(CoordinatorTest, ACommitThatConflictsIsRetriedIfItWasNotDone) {
  before_call = [this](const std::string& /*name*/, const ControlRequest& request) {
    const auto* const commit = std::get_if<CommitRequest>(&request);
    if (commit != nullptr && commit->attempt == 1) {
      ASSERT_TRUE(control.mark_obsolete(1).ok());
    }
  };
  refit("step 1");
  ASSERT_TRUE(refit_ends(0)) << all_notes();
  EXPECT_EQ(control.read()->commit.id, (VersionId{1, 2}));
  EXPECT_EQ(endpoints["owner-0"].prepare.mode, AttemptMode::kOverwrite);
}

// The reply to the commit is lost, and before it is repeated somebody reads what became of it.
TEST_F(CoordinatorTest, AFailureNeverUndoesACommit) {
  lost_reply = [this](const ControlRequest& request) -> std::optional<Status> {
    if (!std::holds_alternative<CommitRequest>(request)) return std::nullopt;
    lost_reply = nullptr;
    return Status(Code::kUnknownOutcome, "the store went away");
  };
  before_call = [this](const std::string& /*name*/, const ControlRequest& request) {
    if (!std::holds_alternative<CommitRequest>(request)) return;
    at(now + 1, [this] { ASSERT_TRUE(control.mark_obsolete(1).ok()); });
  };
  refit("step 1");
  ASSERT_TRUE(refit_ends(waits.repeat_ms)) << all_notes();
  EXPECT_EQ(control.read()->commit.id, (VersionId{1, 1}));
  EXPECT_EQ(ended("owner-0")[0].failure, std::nullopt);
  EXPECT_EQ(count("stop_and_wait 1 > owner-0"), 0U);
}

TEST_F(CoordinatorTest, AnOpenThatConflictsFailsTheAttempt) {
  before_call = [this](const std::string& /*name*/, const ControlRequest& request) {
    const auto* const open = std::get_if<OpenRequest>(&request);
    if (open != nullptr && open->attempt == 1) {
      ASSERT_TRUE(control.mark_obsolete(1).ok());
    }
  };
  refit("step 1");
  ASSERT_TRUE(refit_ends(0)) << all_notes();
  EXPECT_EQ(count("open_apply 1 > receiver-0"), 0U);
  EXPECT_EQ(endpoints["owner-0"].prepare.mode, AttemptMode::kMixed);
}

}  // namespace
}  // namespace dcr
