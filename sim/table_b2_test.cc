// The failures of the paper's Table B.2, each as a test of its name: owners, nodes, receivers and
// coordinators of a simulated world in which that happens and nothing else.
#include <gtest/gtest.h>

#include <set>

#include "sim/crash_points.h"

namespace dcr {
namespace {

using WorkKind = ReceiverWorkDone::Kind;

class TableB2 : public testing::Test {
 protected:
  TableB2() {
    options_.traced = true;
    options_.swarm = quiet_swarm();
    options_.swarm->transitions = 2;
  }

  // The failure happens in the second transition.
  void in_second(std::function<void(World&)> begin) {
    options_.hooks.before_transition = [this, begin](World& world, std::uint32_t number) {
      second_ = number == 1;
      attempts_before_ = world.control().plane().read().value().transition.attempt;
      if (second_ && begin) begin(world);
    };
  }

  WorldResult run() {
    WorldResult result = World(*model_, 7, options_).run();
    if (!result.violation.empty()) {
      for (const std::string& line : result.trace) std::printf("%s\n", line.c_str());
    }
    EXPECT_EQ(result.violation, "");
    return result;
  }
  static bool noted(const WorldResult& result, const std::string& text) {
    for (const std::string& line : result.trace) {
      if (line.find(text) != std::string::npos) return true;
    }
    return false;
  }

  std::unique_ptr<SimModel> model_ = crash_model();
  WorldOptions options_;
  bool second_ = false;
  std::uint64_t attempts_before_ = 0;
};

TEST_F(TableB2, RejectedPrepareBeforeAdmissionEndsTheTransition) {
  bool rejected = false;
  in_second(nullptr);
  options_.hooks.receiver_work = [&](const SimProcess&, ReceiverWorkDone* done) {
    if (!second_ || rejected || done->kind != WorkKind::kBeginStream) return;
    rejected = true;
    done->status = {Code::kMismatch, "parameters lie elsewhere than at prewarm"};
  };
  const WorldResult result = run();
  // The refit failed by that name and v stayed; the trainer called again.
  EXPECT_EQ(result.failures, 1U);
  EXPECT_EQ(result.commits, 2U);
  EXPECT_TRUE(noted(result, "parameters lie elsewhere"));
}

TEST_F(TableB2, RejectedPrepareAfterAdmissionTriggersOverwriteRecovery) {
  std::uint64_t begun = 0;
  bool failed = false;
  in_second(nullptr);
  options_.hooks.receiver_work = [&](const SimProcess& process, ReceiverWorkDone* done) {
    if (!second_ || process.name() != "receiver-0" || done->stream.restore) return;
    // Once something was written, the attempt fails; the next prepare is rejected.
    if (done->kind == WorkKind::kFinishStream && !failed) {
      failed = true;
      done->status = {Code::kIo, "the device failed"};
    }
    if (done->kind == WorkKind::kBeginStream && ++begun == 2) {
      done->status = {Code::kMismatch, "parameters lie elsewhere than at prewarm"};
    }
  };
  const WorldResult result = run();
  EXPECT_EQ(result.failures, 0U);
  EXPECT_EQ(result.commits, 2U);
  EXPECT_GE(begun, 2U);
  EXPECT_TRUE(noted(result, "overwrite"));
}

TEST_F(TableB2, PayloadOfAnObsoleteAttemptIsDroppedAtReception) {
  bool failed = false;
  std::optional<HandOver> late;
  bool delivered = false;
  World* world = nullptr;
  in_second([&world](World& of_run) { world = &of_run; });
  options_.hooks.hand_over = [&](const HandOver& work) {
    if (second_ && !late && work.receiver.name == "receiver-0" && !work.stream.restore) late = work;
    return 1U;
  };
  options_.hooks.receiver_work = [&](const SimProcess& process, ReceiverWorkDone* done) {
    if (!second_ || process.name() != "receiver-0" || done->stream.restore) return;
    if (done->kind == WorkKind::kFinishStream && !failed) {
      failed = true;
      done->status = {Code::kIo, "the device failed"};
    }
    EXPECT_FALSE(delivered && done->kind == WorkKind::kIngestPayload &&
                 done->stream == late->stream);
    // A payload of the attempt that failed comes again, in the midst of the next one.
    if (done->kind != WorkKind::kBeginStream || !late || done->stream == late->stream) return;
    delivered = true;
    world->schedule().after(
        1, [&] { world->receiver(0).hand_over(*late, std::make_shared<const DecodedPayload>()); });
  };
  const WorldResult result = run();
  EXPECT_TRUE(delivered);
  EXPECT_EQ(result.failures, 0U);
  EXPECT_EQ(result.commits, 2U);
  EXPECT_EQ(result.retried, 1U);
}

TEST_F(TableB2, InvalidPayloadFailsTheAttemptBeforeItIsApplied) {
  bool damaged = false;
  in_second(nullptr);
  options_.hooks.object = [&](const ObjectKey& key, std::optional<Bytes>* bytes) {
    if (!second_ || damaged || !key.number || !*bytes) return;
    damaged = true;
    (**bytes)[(*bytes)->size() - 1] ^= 1;
  };
  const WorldResult result = run();
  EXPECT_TRUE(damaged);
  EXPECT_EQ(result.failures, 0U);
  EXPECT_EQ(result.commits, 2U);
  EXPECT_GE(result.retried, 1U);
}

TEST_F(TableB2, DuplicateIsIgnoredIfItsBytesMatch) {
  options_.hooks.hand_over = [](const HandOver&) { return 3U; };
  const WorldResult result = run();
  EXPECT_EQ(result.failures, 0U);
  EXPECT_EQ(result.retried, 0U);
  EXPECT_EQ(result.commits, 2U);
}

TEST_F(TableB2, DuplicateOfOtherBytesFailsTheAttempt) {
  // Under the key of the second transition's first payload other bytes lie already.
  in_second([this](World& world) {
    const ObjectKey key{world.run_id(), attempts_before_ + 1, 0, 0};
    ASSERT_TRUE(world.payloads().begin(key).ok());
    ASSERT_TRUE(world.payloads().put(key, Bytes{1, 2, 3}).ok());
  });
  const WorldResult result = run();
  EXPECT_EQ(result.failures, 0U);
  EXPECT_EQ(result.commits, 2U);
  EXPECT_EQ(result.retried, 1U);
}

TEST_F(TableB2, MissingPayloadFailsTheArrivalCheckAndIsRetried) {
  std::set<std::uint64_t> attempts;
  in_second(nullptr);
  options_.hooks.object = [&](const ObjectKey& key, std::optional<Bytes>* bytes) {
    if (!second_ || !key.number) return;
    attempts.insert(key.attempt);
    if (key.attempt == attempts_before_ + 1 && *key.number == 0) bytes->reset();
  };
  const WorldResult result = run();
  EXPECT_EQ(result.failures, 0U);
  EXPECT_EQ(result.commits, 2U);
  EXPECT_GE(attempts.size(), 2U);
}

TEST_F(TableB2, ReceiverKilledMidAttemptIsRetiredAndRejoinsAfterADenseRefit) {
  options_.swarm->kills_engines = true;
  in_second([](World& world) { world.set_death({"receiver-0", "finish_stream", false, 1}); });
  const WorldResult result = run();
  EXPECT_EQ(result.failures, 0U);
  EXPECT_EQ(result.commits, 2U);
  EXPECT_GE(result.retried, 1U);
  EXPECT_TRUE(noted(result, "receiver-0 dies"));
}

TEST_F(TableB2, LostCommitReplyIsDecidedByReadingTheRecord) {
  bool lost = false;
  in_second(nullptr);
  options_.hooks.forgets = [&](const SimProcess&, const ControlRequest& request) {
    if (!second_ || lost || !std::holds_alternative<CommitRequest>(request)) return false;
    return lost = true;
  };
  const WorldResult result = run();
  EXPECT_TRUE(lost);
  EXPECT_EQ(result.failures, 0U);
  EXPECT_EQ(result.retried, 0U);
  EXPECT_EQ(result.commits, 2U);
}

TEST_F(TableB2, CoordinatorFailureIsTakenOver) {
  // Whichever leads dies before it commits; the other drains, reads, and retries.
  bool killed = false;
  in_second(nullptr);
  options_.hooks.effect = [&](const SimProcess& process, const char* effect, bool after) {
    if (!second_ || killed || after || std::string(effect) != "commit") return;
    if (process.role() != Role::kCoordinator) return;
    killed = true;
    const_cast<SimProcess&>(process).die_after(0);
  };
  const WorldResult result = run();
  EXPECT_TRUE(killed);
  EXPECT_EQ(result.failures, 0U);
  EXPECT_EQ(result.commits, 2U);
}

TEST_F(TableB2, PersistentFailureCallsTheOperatorAndTheGateStaysClosedUntilADenseRefit) {
  // Every receiver fails whenever it is to finish, until owners have heard of it.
  std::uint64_t failed = 0;
  options_.swarm->waits.attempts_max = 3;
  in_second(nullptr);
  options_.hooks.receiver_work = [&](const SimProcess&, ReceiverWorkDone* done) {
    if (!second_ || done->stream.restore || done->kind != WorkKind::kFinishStream) return;
    if (failed >= 3U * model_->receivers()) return;
    ++failed;
    done->status = {Code::kIo, "a write bypasses the hook"};
  };
  const WorldResult result = run();
  EXPECT_GE(result.failures, 1U);
  EXPECT_EQ(result.commits, 2U);
  EXPECT_TRUE(noted(result, "operator needed"));
}

}  // namespace
}  // namespace dcr
