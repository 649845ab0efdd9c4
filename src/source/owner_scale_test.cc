// Owners at sizes where bounds matter: tensors of many pieces, many tensors.
#include <gtest/gtest.h>

#include <set>

#include "source/owner_group.h"
#include "source/test_owner_refit.h"
#include "tests/support/temp_directory.h"
#include "tests/support/test_allocations.h"

namespace dcr {
namespace {

// "rows" is cut by columns over two ranks, "made" is converted from the shards' bytes.
std::unique_ptr<TestOwnerRefit> large_refit(std::uint64_t rows, std::uint64_t columns) {
  auto refit = std::make_unique<TestOwnerRefit>(2);
  refit->set_catalogue(
      {{"made", Dtype::kU8, {rows, columns}, 0}, {"rows", Dtype::kU8, {rows, columns}, 0}});
  const std::uint64_t half = columns / 2;
  std::vector<std::string> inputs;
  for (std::uint32_t r = 0; r < 2; ++r) {
    Prng prng(r);
    inputs.push_back("rows/" + std::to_string(r));
    const Box box = {0, r * half, {{rows, half, columns}, {half, 1, 1}}};
    refit->add_task(inputs.back(), {r}, random_bytes(&prng, static_cast<std::size_t>(rows * half)),
                    {0, Dtype::kU8, 0, {rows, half}, {half, 1}}, {{1, box}});
  }
  for (std::uint32_t r = 0; r < 2; ++r) {
    TestConverter* const converter = refit->add_converter(r);
    converter->declaration = {"made", inputs, false, false, {"made"}, {}};
    converter->declaration.parts = {{"made", r * half, {rows, half}, {columns, 1}}};
    const Bytes* const own = &refit->all_ranks[r].storages[0];
    converter->body = [own](std::uint64_t, std::uint64_t first, std::uint64_t count,
                            std::span<std::uint8_t> out) {
      for (std::uint64_t i = 0; i < count; ++i) {
        out[i] = static_cast<std::uint8_t>((*own)[first + i] ^ 0x55);
      }
      return Status();
    };
  }
  return refit;
}

void change_every(TestOwnerRefit* refit, std::size_t step) {
  for (TestOwnerRank& rank : refit->all_ranks) {
    for (std::size_t at = 1; at < rank.storages[0].size(); at += step) ++rank.storages[0][at];
  }
}

// The canonical tensors of large_refit.
Tensors large_dense(const TestOwnerRefit& refit, std::size_t rows, std::size_t columns) {
  Tensors tensors(2, Bytes(rows * columns));
  for (std::size_t r = 0; r < 2; ++r) {
    const Bytes& shard = refit.all_ranks[r].storages[0];
    for (std::size_t row = 0; row < rows; ++row) {
      std::memcpy(&tensors[1][row * columns + r * columns / 2], &shard[row * columns / 2],
                  columns / 2);
    }
  }
  std::transform(tensors[1].begin(), tensors[1].end(), tensors[0].begin(),
                 [](std::uint8_t byte) { return static_cast<std::uint8_t>(byte ^ 0x55); });
  return tensors;
}

// Tensors of several pieces, in memory and in a mapped arena, in every mode.
TEST(OwnerScale, TensorsOfManyPieces) {
  const TempDirectory directory;
  constexpr std::size_t kRows = 20;
  constexpr std::size_t kColumns = 1 << 20;
  const auto refit = large_refit(kRows, kColumns);
  OwnerOptions options;
  options.chunk_bytes = 16 << 20;
  ASSERT_TRUE(refit->start(2, options, directory.at("arena")).ok());
  EXPECT_EQ(refit->geometry->residual().size(), 4u);
  ASSERT_TRUE(refit->group->initialize(0).ok());
  Tensors resident = large_dense(*refit, kRows, kColumns);
  for (std::uint64_t version = 1; version < 4; ++version) {
    change_every(refit.get(), version == 2 ? 10'000'019 : 999);
    const auto prepared =
        refit->prepare(attempt_on(version, static_cast<AttemptMode>(version - 1)));
    ASSERT_TRUE(prepared.ok()) << prepared.status().message();
    refit->apply(&resident);
    ASSERT_TRUE(resident == large_dense(*refit, kRows, kColumns)) << version;
    ASSERT_TRUE(refit->group->commit(version).ok());
  }
}

class DiscardingSink final : public PayloadSink {
 public:
  Status send(std::uint64_t, std::span<const std::uint8_t> bytes) override {
    sent += bytes.size();
    return {};
  }
  std::uint64_t sent = 0;
};

// Beside weights and baselines a group takes no more than it was given, however large the tensors.
TEST(OwnerScale, MemoryIsBounded) {
  constexpr std::uint64_t kBytes = 256 << 20;
  TestOwnerRefit refit(1);
  refit.set_catalogue(
      {{"large", Dtype::kBF16, {kBytes / 2}, 0}, {"made", Dtype::kU8, {kBytes}, 0}});
  refit.add_task("task", {0}, Bytes(kBytes), {0, Dtype::kBF16, 0, {kBytes / 2}, {1}},
                 {{0, {0, 0, {{kBytes / 2, 1, 1}}}}});
  TestConverter* const converter = refit.add_converter(0);
  converter->declaration = {"made", {"task"}, false, false, {"made"}, {}};
  converter->declaration.parts = {{"made", 0, {kBytes}, {1}}};
  std::uint8_t value = 0;
  converter->body = [&value](std::uint64_t, std::uint64_t, std::uint64_t,
                             std::span<std::uint8_t> out) {
    std::fill(out.begin(), out.end(), value);
    return Status();
  };
  OwnerOptions options;
  options.memory_bytes_max = 200 << 20;
  options.bucket_bytes = kGiB;
  const std::uint64_t at_start = peak_allocation([&] {
    ASSERT_TRUE(refit.start(2, options).ok());
    ASSERT_TRUE(refit.group->initialize(0).ok());
  });
  EXPECT_LT(at_start, options.memory_bytes_max);
  Bytes& weights = refit.all_ranks[0].storages[0];
  for (const AttemptMode mode : {AttemptMode::kMixed, AttemptMode::kDense}) {
    std::fill(weights.begin(), weights.end(), ++value);
    DiscardingSink sink;
    PayloadSink* const sinks[] = {&sink};
    const std::uint64_t in_prepare = peak_allocation(
        [&] { ASSERT_TRUE(refit.group->prepare(attempt_on(value, mode), sinks).ok()); });
    EXPECT_LT(in_prepare, options.memory_bytes_max);
    EXPECT_GT(sink.sent, 0u);
    const std::uint64_t in_commit =
        peak_allocation([&] { ASSERT_TRUE(refit.group->commit(value).ok()); });
    EXPECT_LT(in_commit, options.memory_bytes_max);
  }
}

TEST(OwnerScale, TooLittleMemoryIsRefused) {
  OwnerOptions options;
  options.memory_bytes_max = 100 << 20;
  const Result<OwnerMemory> plan = plan_owner_memory(options, 4, 1, false);
  EXPECT_EQ(plan.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(plan.status().message(),
            "memory of 104857600 bytes is too little for 1 owners: at least 157286400 are needed");
  options.memory_bytes_max = 157'286'400;
  EXPECT_TRUE(plan_owner_memory(options, 4, 1, false).ok());
  options.memory_bytes_max = 64 * kGiB;
  const Result<OwnerMemory> large = plan_owner_memory(options, 4, 1, true);
  EXPECT_EQ(large->chunk_bytes, options.chunk_bytes);
  EXPECT_EQ(large->window, 5u);
  EXPECT_EQ(large->sealing, 2u);
  EXPECT_EQ(large->raw_bytes_max, kPayloadStoredBytesMax - kMiB);  // what readers take
}

// What closes a bucket, and so what payloads hold, is a matter of memory alone.
TEST(OwnerScale, ThreadsAndChunksDoNotCloseBuckets) {
  for (const std::uint64_t mib : {260u, 500u, 900u, 1500u, 3000u, 20'000u}) {
    for (const bool residual : {false, true}) {
      for (const std::size_t owners : {std::size_t{1}, std::size_t{2}, std::size_t{8}}) {
        OwnerOptions options;
        options.memory_bytes_max = mib * kMiB;
        std::set<std::uint64_t> found;
        for (const unsigned threads : {1u, 2u, 7u, 64u}) {
          for (const std::uint64_t chunk : {std::uint64_t{1}, 64 * kMiB, kGiB}) {
            options.chunk_bytes = chunk;
            const Result<OwnerMemory> plan = plan_owner_memory(options, threads, owners, residual);
            if (plan.ok()) found.insert(plan->raw_bytes_max);
          }
        }
        EXPECT_LE(found.size(), 1u) << mib << " MiB, " << owners << " owners";
      }
    }
  }
}

TEST(OwnerScale, ManyTinyTensors) {
  constexpr std::uint32_t kTensors = 20'000;
  TestOwnerRefit refit(4);
  std::vector<CanonicalTensor> tensors;
  for (std::uint32_t i = 0; i < kTensors; ++i) {
    tensors.push_back({"tensor." + std::to_string(i), Dtype::kBF16, {16}, 0});
  }
  refit.set_catalogue(std::move(tensors));
  for (std::uint32_t i = 0; i < kTensors; ++i) {
    refit.add_task(refit.catalogue[i].name, refit.every_rank, Bytes(32),
                   {0, Dtype::kBF16, 0, {16}, {1}}, {{i, {0, 0, {{16, 1, 1}}}}});
  }
  ASSERT_TRUE(refit.start(2).ok());
  ASSERT_TRUE(refit.group->initialize(0).ok());
  Tensors resident = refit.dense();
  for (TestOwnerRank& rank : refit.all_ranks) {
    for (std::uint32_t i = 0; i < kTensors; i += 3) rank.storages[i][5] = 1;
  }
  ASSERT_TRUE(refit.prepare(attempt_on(1, AttemptMode::kMixed)).ok());
  refit.apply(&resident);
  EXPECT_TRUE(resident == refit.dense());
  ASSERT_TRUE(refit.group->commit(1).ok());
  for (const auto& owner : refit.owners) EXPECT_GT(owner->sizes().source_elements, 70'000u);
}

}  // namespace
}  // namespace dcr
