// What the benchmarks' own parts must get right for their figures to mean anything.
#include <gtest/gtest.h>

#include <cmath>

#include "bench/changes.h"
#include "bench/entropy.h"
#include "bench/measure.h"
#include "bench/paper_layout.h"
#include "bench/report.h"
#include "bench/vector_passes.h"
#include "bench/workloads.h"

namespace dcr {
namespace {

TEST(Workloads, NormalsHaveTheMomentsOfStandardNormals) {
  NormalSource normals(3);
  constexpr int kCount = 1 << 20;
  double sums[4] = {};
  int beyond_tail = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = normals.next();
    sums[0] += x;
    sums[1] += x * x;
    sums[2] += x * x * x;
    sums[3] += x * x * x * x;
    beyond_tail += std::abs(x) > 3.6541528853610088 ? 1 : 0;
  }
  EXPECT_NEAR(sums[0] / kCount, 0, 0.005);
  EXPECT_NEAR(sums[1] / kCount, 1, 0.01);
  EXPECT_NEAR(sums[2] / kCount, 0, 0.02);
  EXPECT_NEAR(sums[3] / kCount, 3, 0.05);
  EXPECT_NEAR(beyond_tail, 2.58e-4 * kCount, 60);  // 270 ± 16
}

TEST(Workloads, Bf16RoundsToNearestEven) {
  EXPECT_EQ(bf16_from_float(1.0F), 0x3f80);
  EXPECT_EQ(bf16_from_float(1.00390625F), 0x3f80);  // half way, even below
  EXPECT_EQ(bf16_from_float(1.01171875F), 0x3f82);  // half way, even above
  EXPECT_EQ(bf16_from_float(std::nextafter(1.00390625F, 2.0F)), 0x3f81);
  EXPECT_EQ(bf16_from_float(-0.0F), 0x8000);
  EXPECT_EQ(float_from_bf16(0x3f81), 1.0078125F);
}

double changed_rate(const WeightPair& pair) {
  return static_cast<double>(count_changes(collect_changes(pair))) /
         static_cast<double>(pair.before.size());
}

TEST(Workloads, AdamChangesTwoPointThreePercent) {
  EXPECT_NEAR(changed_rate(make_weights(WorkloadSpec{}, 1 << 21)), 0.023, 0.001);
}

TEST(Workloads, RatesAreMet) {
  for (const Workload workload : {Workload::kAdam, Workload::kRelative, Workload::kUnit}) {
    for (const double rate : {0.01, 0.05, 0.5}) {
      const WeightPair pair = make_weights(workload_at_rate(workload, rate, 5), 1 << 21);
      EXPECT_NEAR(changed_rate(pair), rate, 0.02 * rate) << workload_name(workload);
    }
  }
}

TEST(Workloads, UnitChangesAreOneInTheLastPlace) {
  const WeightPair pair = make_weights(workload_at_rate(Workload::kUnit, 0.1, 5), 1 << 20);
  for (const TensorChanges& tensor : collect_changes(pair)) {
    for (std::size_t i = 0; i < tensor.positions.size(); ++i) {
      ASSERT_EQ(std::abs(tensor.new_words[i] - tensor.old_words[i]), 1);
    }
  }
}

TEST(Workloads, ChunksAreSeededByThemselves) {
  const WorkloadSpec spec = workload_at_rate(Workload::kUnit, 0.1, 9);
  const WeightPair whole = make_weights(spec, 2 * kChunkWords + 10);
  std::vector<std::uint16_t> before(10);
  std::vector<std::uint16_t> after(10);
  fill_chunk(spec, 2, before, after);
  EXPECT_EQ(before, std::vector(whole.before.end() - 10, whole.before.end()));
  EXPECT_NE(before, std::vector(whole.before.begin(), whole.before.begin() + 10));
}

TEST(Workloads, NamesAreReadBack) {
  EXPECT_EQ(workload_from_name("relative").value(), Workload::kRelative);
  const Result<Workload> unknown = workload_from_name("sgd");
  EXPECT_EQ(unknown.status().code(), Code::kInvalidArgument);
  EXPECT_NE(unknown.status().message().find("'sgd'"), std::string::npos);
}

TensorChanges changes_at(std::vector<std::uint32_t> positions, std::uint64_t words) {
  TensorChanges tensor;
  tensor.words = words;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    tensor.old_words.push_back(static_cast<std::uint16_t>(0x3c00 + i));
    tensor.new_words.push_back(static_cast<std::uint16_t>(0x3c01 + 3 * i));
  }
  tensor.positions = std::move(positions);
  return tensor;
}

TEST(PaperLayout, TakesTheSmallestLocationType) {
  const std::vector<std::pair<std::vector<std::uint32_t>, PaperLocation>> cases = {
      {{7}, PaperLocation::kRun},           {{3, 4, 5, 6}, PaperLocation::kRun},
      {{0, 256}, PaperLocation::kGaps8},    // gaps 0 and 255
      {{0, 257}, PaperLocation::kGaps16},   // 256
      {{255, 257}, PaperLocation::kGaps8},  // the first gap starts at −1
      {{256, 258}, PaperLocation::kGaps16}, {{1, 65537}, PaperLocation::kGaps16},  // 65,535
      {{1, 65538}, PaperLocation::kGaps32},
  };
  PaperEncoder encoder;
  std::size_t location_bytes = 0;
  for (const auto& [positions, location] : cases) {
    const TensorChanges tensor = changes_at(positions, 1 << 20);
    encoder.append(tensor.words, tensor.positions, tensor.old_words, tensor.new_words,
                   PaperEncoding::kXor);
    if (location != PaperLocation::kRun) {
      location_bytes += positions.size() << (static_cast<unsigned>(location) - 1);
    }
  }
  const PaperPayload payload = encoder.seal();
  ASSERT_EQ(payload.rows.size(), cases.size());
  EXPECT_EQ(payload.location_bytes, location_bytes);
  PaperEntries entries;
  ASSERT_TRUE(PaperDecoder().decode(payload, &entries).ok());
  std::size_t at = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(payload.rows[i].location, cases[i].second) << "case " << i;
    const TensorChanges tensor = changes_at(cases[i].first, 1 << 20);
    for (std::size_t j = 0; j < tensor.positions.size(); ++j, ++at) {
      EXPECT_EQ(entries.positions[at], tensor.positions[j]) << "case " << i;
      EXPECT_EQ(tensor.old_words[j] ^ entries.words[at], tensor.new_words[j]) << "case " << i;
    }
  }
}

TEST(PaperLayout, OverwritesCarryNewBits) {
  const TensorChanges tensor = changes_at({1, 9, 12}, 20);
  PaperEncoder encoder;
  encoder.append(tensor.words, tensor.positions, tensor.old_words, tensor.new_words,
                 PaperEncoding::kOverwrite);
  PaperEntries entries;
  ASSERT_TRUE(PaperDecoder().decode(encoder.seal(), &entries).ok());
  EXPECT_EQ(entries.words, tensor.new_words);
}

TEST(PaperLayout, RefusesWhatIsOutOfRangeOrBroken) {
  const TensorChanges tensor = changes_at({1, 9, 12}, 20);
  PaperEncoder encoder;
  encoder.append(tensor.words, tensor.positions, tensor.old_words, tensor.new_words,
                 PaperEncoding::kXor);
  PaperPayload payload = encoder.seal();
  PaperEntries entries;
  payload.rows[0].words = 12;
  EXPECT_EQ(PaperDecoder().decode(payload, &entries).code(), Code::kCorrupt);
  payload.rows[0].words = 13;
  EXPECT_TRUE(PaperDecoder().decode(payload, &entries).ok());
  payload.body.pop_back();
  EXPECT_EQ(PaperDecoder().decode(payload, &entries).code(), Code::kCorrupt);
}

TEST(Entropy, CountsChoicesAndValues) {
  EXPECT_NEAR(log2_choose(10, 3), std::log2(120.0), 1e-9);
  EXPECT_NEAR(log2_choose(10, 0), 0, 1e-9);
  EXPECT_NEAR(log2_choose(10, 10), 0, 1e-9);
  EXPECT_NEAR(order0_bits({1, 0, 1, 2}), 6, 1e-12);  // 1/4, 1/4, 1/2
  EXPECT_EQ(order0_bits({0, 5}), 0);
  const std::vector<TensorChanges> tensors{changes_at({1, 9, 12}, 20), changes_at({4}, 10)};
  EXPECT_NEAR(location_entropy_bits(tensors), std::log2(1140.0) + std::log2(10.0), 1e-9);
  // Differences 1, 3, 5 and 1.
  EXPECT_NEAR(value_entropy_bits(tensors), 2 * 1 + 2 * 2, 1e-12);
}

TEST(Passes, ReadAndXorEveryByte) {
  for (const std::size_t size : {1U, 63U, 255U, 256U, 1000U}) {
    std::vector<std::uint8_t> a(size, 0x55);
    for (std::size_t i = 0; i < size; ++i) {
      std::vector<std::uint8_t> b = a;
      EXPECT_EQ(read_both(a, b), 0U);
      b[i] ^= 1;
      EXPECT_NE(read_both(a, b), 0U) << size << " " << i;
    }
    std::vector<std::uint16_t> target(size, 0x1234);
    const std::vector<std::uint16_t> masks(size, 0x00ff);
    xor_into(target, masks);
    EXPECT_EQ(target, std::vector<std::uint16_t>(size, 0x12cb));
  }
}

TEST(ReportTest, PrintsRowsAndFigures) {
  Report report({"tool", "bytes", "ratio"});
  report.add_row({Cell::text("a"), Cell::whole(12), Cell::number(0.5, 2)});
  report.add_row({Cell::text("longer"), Cell::whole(5), Cell::number(10, 2)});
  report.add_figure("small", 0.5, Report::Aim::kAtMost, 0.6);
  report.add_figure("fast", 0.5, Report::Aim::kAtLeast, 0.6);
  report.add_figure("plain", 2);
  report.add_note("left out");
  EXPECT_EQ(report.table(),
            "  tool  bytes  ratio\n"
            "     a     12   0.50\n"
            "longer      5  10.00\n"
            "small: 0.500 (aim: at most 0.6; reached)\n"
            "fast: 0.500 (aim: at least 0.6; missed)\n"
            "plain: 2.000\n"
            "left out\n");
  const std::string json = report.json();
  EXPECT_EQ(json.find(R"({
  "rows": [
    {
      "tool": "a",
      "bytes": 12,
      "ratio": 0.5
    },)"),
            0U);
  for (const char* key : {"\"machine\"", "\"cpu\"", "\"cores\"", "\"isa\"", "\"compiler\"",
                          "\"zstd\"", "\"at_least\": 0.6", "\"reached\": false"}) {
    EXPECT_NE(json.find(key), std::string::npos) << key;
  }
}

TEST(MeasurementTest, CountsMediansOfRounds) {
  unsigned calls = 0;
  const Measurement measured(ClockKind::kThread, 4, {[&] { ++calls; }, [] {}});
  EXPECT_EQ(calls, 5U);  // one untimed
  double next = 0;
  EXPECT_EQ(measured.median([&](const std::vector<double>&) { return next++; }), 1.5);
}

TEST(ProcessorUse, SharesLieBetweenNothingAndAll) {
  const ProcessorUse begin = ProcessorUse::now();
  EXPECT_GE(begin.all, begin.busy);
  EXPECT_GT(begin.busy, 0);
  EXPECT_GT(begin.own, 0);
  EXPECT_EQ(ProcessorUse::share_of_others({100, 50, 10}, {200, 80, 20}), 0.2);
  EXPECT_EQ(ProcessorUse::share_of_others({100, 50, 10}, {200, 60, 30}), 0);
  EXPECT_EQ(ProcessorUse::share_of_others({0, 0, 10}, {0, 0, 20}), std::nullopt);
  EXPECT_EQ(ProcessorUse::share_of_others({100, 50, 10}, {0, 0, 20}), std::nullopt);
  EXPECT_EQ(ProcessorUse::share_of_others({0, 0, 10}, {100, 50, 20}), std::nullopt);
}

}  // namespace
}  // namespace dcr
