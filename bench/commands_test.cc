// Every subcommand on small inputs: it succeeds, which includes its own checks of all bits, and its
// rows have the keys that scripts rely on.
#include "bench/commands.h"

#include <gtest/gtest.h>

namespace dcr {
namespace {

using Keys = std::vector<std::string>;

double number(const Report& report, std::size_t row, std::size_t column) {
  return std::get<double>(report.rows()[row][column].value);
}

TEST(Commands, Codec) {
  CodecOptions options;
  options.elements = 1 << 20;
  const Result<Report> report = run_codec(options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->keys(),
            Keys({"amplitude", "changed_rate", "overwrite_mb", "xor_mb", "ours_mb", "entropy_mb"}));
  ASSERT_EQ(report->rows().size(), 3U);
  // The paper's rates; its sizes hold for 20 M elements and scale.
  EXPECT_NEAR(number(*report, 0, 1), 0.02348, 0.001);
  EXPECT_NEAR(number(*report, 1, 1), 0.2242, 0.003);
  EXPECT_NEAR(number(*report, 2, 1), 0.8258, 0.003);
  for (std::size_t row = 0; row < 3; ++row) {
    EXPECT_LT(number(*report, row, 3), number(*report, row, 2));
    EXPECT_LT(number(*report, row, 4), number(*report, row, 3));
  }
}

TEST(Commands, Payload) {
  PayloadOptions options;
  options.elements = 1 << 20;
  options.rates = {0.01, 0.9};
  const Result<Report> report = run_payload(options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->keys(),
            Keys({"workload", "changed_rate", "paper_bits", "ours_bits", "entropy_bits"}));
  ASSERT_EQ(report->rows().size(), 5U);
  EXPECT_LT(number(*report, 0, 3), number(*report, 0, 2));
}

SpeedOptions small_speed() {
  SpeedOptions options;
  options.elements = (1 << 20) + 77;
  options.rounds = 1;
  options.rates = {0.001, 0.01, 0.03};
  return options;
}

struct SpeedCase {
  Result<Report> (*run)(const SpeedOptions&);
  Keys keys;
};

TEST(Commands, Speeds) {
  const Keys coding{"changed_rate",   "paper_ms", "ours_ms",
                    "ours_digest_ms", "ratio",    "ratio_with_digest"};
  const SpeedCase cases[] = {
      {run_construct, {"changed_rate", "read_gbps", "scan_gbps", "whole_gbps"}},
      {run_encode, coding},
      {run_decode, coding},
      {run_apply, {"changed_rate", "tensor_parallel", "traced_gbps", "scratch_gbps", "speedup"}},
      {run_threads, {"changed_rate", "read_gain", "whole_gain"}},
  };
  for (const SpeedCase& speed : cases) {
    for (const Workload workload : {Workload::kAdam, Workload::kRelative, Workload::kUnit}) {
      SpeedOptions options = small_speed();
      options.workload = workload;
      const Result<Report> report = speed.run(options);
      ASSERT_TRUE(report.ok()) << report.status().message();
      EXPECT_EQ(report->keys(), speed.keys);
      EXPECT_EQ(report->rows().size(), speed.run == run_apply ? 6U : 3U);
    }
  }
}

TEST(Commands, Refit) {
  RefitBenchOptions options;
  options.size = 3'000'000;
  options.rates = {0.01};
  options.rounds = 1;
  options.row_parallel_size = 500'000;
  options.planned_names = 2000;
  const Result<Report> report = run_refit(options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->keys(), Keys({"changed_rate", "threads", "wall_seconds", "busy_seconds",
                                  "bound_seconds", "ratio", "payload_bytes"}));
  ASSERT_EQ(report->rows().size(), 1U);
  EXPECT_NEAR(number(*report, 0, 0), 0.01, 0.003);
  EXPECT_GT(number(*report, 0, 4), 0);
}

TEST(Commands, Modes) {
  ModesOptions options;
  options.size = 3'000'000;
  options.rates = {0.03};
  options.rounds = 1;
  const Result<Report> report = run_modes(options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->keys(), Keys({"mode", "changed_rate", "seconds", "payload_bytes"}));
  ASSERT_EQ(report->rows().size(), 3U);
  const auto bytes = [&](std::size_t row) {
    return std::get<std::uint64_t>(report->rows()[row][3].value);
  };
  EXPECT_LT(bytes(0), bytes(1));
  EXPECT_LT(bytes(0), bytes(2));
}

TEST(Commands, ToolsNameAMissingProgram) {
  ToolsOptions options;
  options.size = 1000;
  options.dcr = "/nonexistent/dcr";
  const Result<Report> report = run_tools(options);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), Code::kNotFound);
  EXPECT_NE(report.status().message().find("/nonexistent/dcr"), std::string::npos);
}

}  // namespace
}  // namespace dcr
