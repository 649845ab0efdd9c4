// Engines whose first weights an attempt brings: what it wrote comes a second time and is compared,
// before the attempt is committed.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "sim/crash_points.h"

namespace dcr {
namespace {

constexpr std::uint64_t kSeed = 8;  // in its world receiver-0 begins without weights

class AuditTest : public testing::Test {
 protected:
  AuditTest() {
    Swarm swarm = quiet_swarm();
    swarm.unloaded_engines = true;
    swarm.audits = true;
    // One after another, and slowly.
    swarm.work_max = 120'000;
    swarm.credit_payloads = 1;
    swarm.waits.apply_ms = kApplyMs;
    options_.traced = true;
    options_.swarm = swarm;
    options_.hooks.before_transition = [this](World& world, std::uint32_t /*number*/) {
      world_ = &world;
      // Nobody has a baseline that could be restored.
      world.trainer().restart();
    };
    options_.hooks.receiver_work = [this](const SimProcess& process, ReceiverWorkDone* done) {
      if (done->kind != ReceiverWorkDone::Kind::kFinishStream || done->stream.restore) return;
      std::vector<Microseconds>& finished = finished_[{process.name(), done->stream.number}];
      finished.push_back(world_->schedule().now());
    };
  }

  WorldResult run() {
    WorldResult result = World(*model_, kSeed, options_).run();
    if (!result.violation.empty()) {
      for (const std::string& line : result.trace) std::printf("%s\n", line.c_str());
    }
    EXPECT_EQ(result.violation, "");
    return result;
  }
  // What the longest audit took.
  Microseconds longest() const {
    Microseconds most = 0;
    for (const auto& [of, times] : finished_) {
      if (times.size() == 2) most = std::max(most, times[1] - times[0]);
    }
    return most;
  }
  bool writing_is_over(const std::string& receiver, std::uint64_t attempt) const {
    return finished_.contains({receiver, attempt});
  }

  static constexpr Milliseconds kApplyMs = 1200;
  std::unique_ptr<SimModel> model_ = crash_model();
  WorldOptions options_;
  World* world_ = nullptr;
  // When a receiver had finished the stream of an attempt: written, then compared.
  std::map<std::pair<std::string, std::uint64_t>, std::vector<Microseconds>> finished_;
};

TEST_F(AuditTest, ItMayTakeLongerThanAWaitWithoutProgress) {
  const WorldResult result = run();
  EXPECT_GT(longest(), kApplyMs * 1000);
  EXPECT_EQ(result.failures, 0U);
  EXPECT_EQ(result.retried, 0U);
  EXPECT_EQ(result.commits, 1U);
}

TEST_F(AuditTest, OneThatStandsStillFailsTheAttemptAndIsNamed) {
  options_.hooks.hand_over = [this](const HandOver& work) {
    const bool audits = writing_is_over(work.receiver.name, 1);
    return work.receiver.name == "receiver-0" && work.stream == StreamId{false, 1} && audits ? 0U
                                                                                             : 1U;
  };
  const WorldResult result = run();
  EXPECT_EQ(result.failures, 0U);
  EXPECT_EQ(result.retried, 1U);
  EXPECT_EQ(result.commits, 1U);
  const auto named = [](const std::string& line) {
    return line.find("phase apply is overdue: receiver-0 (incarnation ") != std::string::npos &&
           line.find("; it audits what came and waits for payload 0 of owner 0") !=
               std::string::npos;
  };
  EXPECT_TRUE(std::any_of(result.trace.begin(), result.trace.end(), named));
}

}  // namespace
}  // namespace dcr
