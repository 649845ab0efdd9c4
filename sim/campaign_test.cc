#include "sim/campaign.h"

#include <gtest/gtest.h>

#include "sim/crash_points.h"
#include "tests/support/campaign.h"
#include "tests/support/test_allocations.h"

namespace dcr {
namespace {

// The whole campaign is dcr-sim's own test; here is what each part of it has to be like.
TEST(Campaign, SomeSeedsShowNothingWrongAndAreOfEveryKind) {
  CampaignOptions options;
  options.runs = campaign_cases(2000);
  const CampaignResult result = run_campaign(options);
  for (const Violation& violation : result.violations) {
    ADD_FAILURE() << "seed " << violation.seed << ": " << violation.text;
  }
  EXPECT_EQ(result.runs, options.runs);
  EXPECT_GE(result.transitions, result.runs);
  EXPECT_EQ(result.unequal, 0U);
  EXPECT_GE(result.zombies * 100, result.runs);
  EXPECT_GE(result.full_runs * 100, result.runs * 90);
  EXPECT_GE(result.retried_runs * 100, result.runs * 30);
  EXPECT_GE(result.repeated * 100, result.runs * 5);
}

TEST(Campaign, GoesOnUntilThereWereSoManyTransitions) {
  CampaignOptions options;
  options.transitions = 2500;
  const CampaignResult result = run_campaign(options);
  EXPECT_EQ(result.runs % 1000, 1U);
  EXPECT_GE(result.transitions, options.transitions);
  options.transitions = 0;
  options.runs = result.runs;
  const CampaignResult same = run_campaign(options);
  EXPECT_EQ(same.transitions, result.transitions);
  EXPECT_EQ(same.events, result.events);
}

TEST(Campaign, ThreadsChangeNothing) {
  CampaignOptions options;
  options.runs = campaign_cases(200);
  const CampaignResult one = run_campaign(options);
  options.jobs = 2;
  const CampaignResult two = run_campaign(options);
  EXPECT_EQ(one.transitions, two.transitions);
  EXPECT_EQ(one.faults, two.faults);
  EXPECT_EQ(one.events, two.events);
}

// Of every machine, of coordinator and nodes above all: what a run keeps does not grow with the
// transitions that it has seen.
TEST(Campaign, MemoryIsConstantOverTenThousandTransitions) {
  const std::unique_ptr<SimModel> model = crash_model();
  const auto count = static_cast<std::uint32_t>(campaign_cases(10'000));
  std::uint64_t early = 0;
  std::uint64_t late = 0;
  WorldOptions options;
  options.swarm = quiet_swarm();
  options.swarm->transitions = count;
  options.swarm->asynchronous = 300;
  // Some attempts fail: what is kept of failures counts too.
  std::uint64_t finished = 0;
  options.hooks.receiver_work = [&](const SimProcess&, ReceiverWorkDone* done) {
    if (done->kind != ReceiverWorkDone::Kind::kFinishStream || ++finished % 37 != 0) return;
    done->status = {Code::kIo, "the device failed"};
  };
  options.hooks.before_transition = [&](World&, std::uint32_t number) {
    const std::uint64_t now = allocated_bytes.load();
    if (number >= count / 10 && number < count / 5) early = std::max(early, now);
    if (number >= count - count / 10) late = std::max(late, now);
  };
  const WorldResult result = World(*model, 3, std::move(options)).run();
  EXPECT_EQ(result.violation, "");
  EXPECT_EQ(result.commits, count);
  EXPECT_GT(result.retried, count / 20);
  EXPECT_LE(late, early + 4096);
}

}  // namespace
}  // namespace dcr
