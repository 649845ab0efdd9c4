#include "sim/crash_points.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/campaign.h"

namespace dcr {
namespace {

void expect_all_end_well(bool residual) {
  const std::unique_ptr<SimModel> model = crash_model(residual);
  const std::vector<CrashScenario> scenarios = crash_scenarios(*model);
  EXPECT_GE(scenarios.size(), 1000U);
  std::set<std::string> points;
  for (const CrashScenario& scenario : scenarios) {
    points.insert(scenario.death.process + " " + scenario.death.effect);
  }
  EXPECT_GE(points.size(), 60U);
  const std::size_t step = scenarios.size() / campaign_cases(scenarios.size());
  for (std::size_t i = 0; i < scenarios.size(); i += step) {
    const WorldResult result = run_scenario(*model, scenarios[i], false);
    EXPECT_EQ(result.violation, "") << "scenario " << i << ", " << scenarios[i].text();
    EXPECT_TRUE(result.death_came) << "scenario " << i << ", " << scenarios[i].text();
    if (result.violation.empty()) continue;
    for (const std::string& line : run_scenario(*model, scenarios[i], true).trace) {
      std::printf("%s\n", line.c_str());
    }
  }
}

TEST(CrashPoints, AllEndWell) { expect_all_end_well(false); }

// Where owners meet to convert.
TEST(CrashPoints, AllEndWellWithResidualTensors) { expect_all_end_well(true); }

}  // namespace
}  // namespace dcr
