// Residual tensors from real conversions (paper §4.3): a cast times a shared scale, an adapter
// merged, block-wise FP8 with its scales, each from shards of two ranks, through flags, closure,
// assembly at the hashed owner, comparison with the residual baseline and forced overwrite.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "layout/converters.h"
#include "source/test_owner_refit.h"
#include "tensor/view.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

constexpr std::uint64_t kRows = 128;  // of one rank
constexpr std::uint64_t kColumns = 200;
constexpr std::uint64_t kRankOfAdapter = 4;
const std::vector<std::uint32_t> kBoth = {0, 1};

Bytes random_bf16(Prng& prng, std::uint64_t words) {
  Bytes bytes;
  for (std::uint64_t i = 0; i < words; ++i) {
    // Around one, of both signs, and now and then NaN, −0 or a subnormal.
    constexpr std::uint16_t kSpecial[] = {0x7fc1, 0xffc0, 0x8000, 0x0001};
    const std::uint64_t random = prng.next();
    const std::uint16_t word = random % 997 == 0
                                   ? kSpecial[random / 997 % 4]
                                   : static_cast<std::uint16_t>((random >> 48 & 0x83ff) | 0x3c00);
    bytes.push_back(static_cast<std::uint8_t>(word));
    bytes.push_back(static_cast<std::uint8_t>(word >> 8));
  }
  return bytes;
}

Bytes float_bytes(float value) {
  Bytes bytes(sizeof(value));
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

// Two ranks, each with its rows of four weights: one is projected, the others are converted.
class Trainer {
 public:
  explicit Trainer(std::uint64_t seed) : prng_(seed) {
    refit.set_catalogue({{"direct", Dtype::kBF16, {2 * kRows, kColumns}, 0},
                         {"merged", Dtype::kBF16, {2 * kRows, kColumns}, 0},
                         {"quantised", Dtype::kF8E4M3, {2 * kRows, kColumns}, 0},
                         {"quantised_scale_inv", Dtype::kF32, {2, 2}, 0},
                         {"scaled", Dtype::kBF16, {2 * kRows, kColumns}, 0}});
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      const Box rows{0, rank * kRows * kColumns, {{kRows * kColumns, 1, 1}}};
      refit.add_task(of_rank("direct", rank), {rank}, random_bf16(prng_, kRows * kColumns),
                     contiguous_view(0, Dtype::kBF16, {kRows, kColumns}),
                     {{refit.index("direct"), rows}});
      for (const char* name : {"w_scaled", "w_merged", "w_quantised"}) {
        track(of_rank(name, rank), {rank}, random_bf16(prng_, kRows * kColumns), Dtype::kBF16);
      }
      track(of_rank("adapter_b", rank), {rank}, random_bf16(prng_, kRows * kRankOfAdapter),
            Dtype::kBF16);
    }
    track("scale", kBoth, float_bytes(0.75F), Dtype::kF32);
    track("adapter_a", kBoth, random_bf16(prng_, kRankOfAdapter * kColumns), Dtype::kBF16);
    for (std::uint32_t rank = 0; rank < 2; ++rank) add_converters(rank);
  }

  static std::string of_rank(const std::string& name, std::uint32_t rank) {
    return name + "/" + std::to_string(rank);
  }

  // The bytes of a source tensor on a rank that holds it.
  Bytes& bytes(const std::string& name, std::uint32_t rank) {
    for (const TrackedSource& source : refit.all_ranks[rank].input.tracked) {
      if (source.name == name) return refit.all_ranks[rank].storages[source.view.storage];
    }
    for (const ConversionTask& task : refit.all_ranks[rank].input.tasks) {
      if (task.name == name) return refit.all_ranks[rank].storages[task.view.storage];
    }
    ADD_FAILURE() << name;
    return refit.all_ranks[rank].storages[0];
  }

  TestOwnerRefit refit{2};

 private:
  void track(const std::string& name, const std::vector<std::uint32_t>& replicas,
             const Bytes& bytes, Dtype dtype) {
    refit.add_tracked(name, replicas, bytes, dtype);
  }

  ConverterInput input(const std::string& name, std::uint32_t rank, const Shape& shape) {
    for (const TrackedSource& source : refit.all_ranks[rank].input.tracked) {
      if (source.name == name) {
        return {name, contiguous_view(source.view.storage, source.view.dtype, shape)};
      }
    }
    ADD_FAILURE() << name;
    return {};
  }

  // The rank's rows of an output.
  static ConverterOutput output(const std::string& name, Dtype dtype, std::uint32_t rank,
                                std::uint64_t rows, std::uint64_t columns) {
    return {name, dtype, rank * rows * columns, {rows, columns}, {columns, 1}};
  }

  void add_converters(std::uint32_t rank) {
    SourceMemory& memory = refit.all_ranks[rank].memory;
    const Shape shard = {kRows, kColumns};
    add(rank, make_scale_converter(memory, "scaled", input(of_rank("w_scaled", rank), rank, shard),
                                   input("scale", rank, {}),
                                   output("scaled", Dtype::kBF16, rank, kRows, kColumns)));
    add(rank,
        make_low_rank_converter(memory, "merged", input(of_rank("w_merged", rank), rank, shard),
                                input("adapter_a", rank, {kRankOfAdapter, kColumns}),
                                input(of_rank("adapter_b", rank), rank, {kRows, kRankOfAdapter}),
                                0.5F, output("merged", Dtype::kBF16, rank, kRows, kColumns)));
    add(rank,
        make_fp8_converter(memory, "quantised", input(of_rank("w_quantised", rank), rank, shard),
                           output("quantised", Dtype::kF8E4M3, rank, kRows, kColumns),
                           output("quantised_scale_inv", Dtype::kF32, rank, 1, 2)));
  }

  // Under the counter of TestConverter.
  void add(std::uint32_t rank, Result<std::unique_ptr<Converter>> made) {
    ASSERT_TRUE(made.ok()) << made.status().message();
    real_.push_back(std::move(made).value());
    Converter* const real = real_.back().get();
    TestConverter* const counted = refit.add_converter(rank);
    counted->declaration = real->declare();
    counted->body = [real](std::uint64_t part, std::uint64_t first, std::uint64_t count,
                           std::span<std::uint8_t> out) {
      return real->convert(part, first, count, out);
    };
  }

  Prng prng_;
  std::vector<std::unique_ptr<Converter>> real_;
};

struct Step {
  std::uint64_t converted = 0;  // bytes of residual tensors that were compared
  std::uint64_t changed_residual = 0;
};

// One transition from `resident` to the trainer's weights, committed; every bit is compared.
Step transition(Trainer& trainer, std::uint64_t version, AttemptMode mode, Tensors* resident) {
  Step step;
  auto prepared = trainer.refit.prepare(attempt_of(version, version, version, mode));
  EXPECT_TRUE(prepared.ok()) << prepared.status().message();
  if (!prepared.ok()) return step;
  for (const PrepareResult& owner : *prepared) {
    step.converted += owner.converted_bytes;
    step.changed_residual += owner.changed_residual_words;
  }
  trainer.refit.apply(resident);
  EXPECT_EQ(*resident, trainer.refit.dense());
  const Status committed = trainer.refit.group->commit(version + 1);
  EXPECT_TRUE(committed.ok()) << committed.message();
  return step;
}

constexpr std::uint64_t kMatrix = 2 * kRows * kColumns;  // elements of each weight

class ResidualConverters : public testing::Test {
 protected:
  void SetUp() override {
    const Status started = trainer_.refit.start();
    ASSERT_TRUE(started.ok()) << started.message();
    const Status initialized = trainer_.refit.group->initialize(1);
    ASSERT_TRUE(initialized.ok()) << initialized.message();
    resident_ = trainer_.refit.dense();
  }

  Step step(AttemptMode mode = AttemptMode::kMixed) {
    return transition(trainer_, version_++, mode, &resident_);
  }
  void change(const std::string& name, std::uint32_t rank, std::size_t byte) {
    trainer_.bytes(name, rank)[byte] ^= 1;
  }

  Trainer trainer_{7};
  Tensors resident_;
  std::uint64_t version_ = 1;
};

TEST_F(ResidualConverters, NoChangeConvertsNothing) {
  const Step none = step();
  EXPECT_EQ(none.converted, 0u);
  EXPECT_EQ(none.changed_residual, 0u);
}

TEST_F(ResidualConverters, AProjectedChangeConvertsNothing) {
  change("direct/1", 1, 30);
  EXPECT_EQ(step().converted, 0u);
}

TEST_F(ResidualConverters, ASharedScaleSelectsItsTensorOnAllRanks) {
  const Bytes half = float_bytes(0.5F);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    std::copy(half.begin(), half.end(), trainer_.bytes("scale", rank).begin());
  }
  const Step scaled = step();
  EXPECT_EQ(scaled.converted, kMatrix * 2);
  EXPECT_GT(scaled.changed_residual, kMatrix / 2);
}

TEST_F(ResidualConverters, AnAdapterSelectsTheMergedTensor) {
  for (std::uint32_t rank = 0; rank < 2; ++rank) change("adapter_a", rank, 1);
  EXPECT_EQ(step().converted, kMatrix * 2);
  change("adapter_b/0", 0, 1);
  EXPECT_EQ(step().converted, kMatrix * 2);
}

TEST_F(ResidualConverters, OneWeightOfABlockChangesItsScaleAndTheWholeBlock) {
  // The largest of the block: 0x477f is far above all others.
  Bytes& weights = trainer_.bytes("w_quantised/1", 1);
  weights[0] = 0x7f;
  weights[1] = 0x47;
  const Step step = this->step();
  EXPECT_EQ(step.converted, kMatrix + 4 * sizeof(float));
  EXPECT_GT(step.changed_residual, kRows * 64);
}

TEST_F(ResidualConverters, RandomChangesInEveryMode) {
  Prng prng(8);
  std::printf("seed 8\n");
  for (std::uint64_t round = 0; round < campaign_cases(60) + 3; ++round) {
    for (std::uint64_t i = prng.below(4); i > 0; --i) {
      constexpr const char* kChangedNames[] = {"direct", "w_scaled", "w_merged", "w_quantised",
                                               "adapter_b"};
      const std::uint32_t rank = static_cast<std::uint32_t>(prng.below(2));
      Bytes& bytes = trainer_.bytes(Trainer::of_rank(kChangedNames[prng.below(5)], rank), rank);
      bytes[prng.below(bytes.size())] ^= static_cast<std::uint8_t>(1 + prng.below(255));
    }
    constexpr AttemptMode kModes[] = {AttemptMode::kMixed, AttemptMode::kOverwrite,
                                      AttemptMode::kDense};
    step(kModes[prng.below(3)]);
    ASSERT_FALSE(testing::Test::HasFailure()) << "round " << round;
  }
}

// The scale changes while the attempt is under way: what a commit would keep is not what was sent.
TEST_F(ResidualConverters, AChangeUnderTheRefitIsNamed) {
  for (std::uint32_t rank = 0; rank < 2; ++rank) change("adapter_a", rank, 1);
  ASSERT_TRUE(trainer_.refit.prepare(attempt_of(1, 1, 1)).ok());
  for (std::uint32_t rank = 0; rank < 2; ++rank) change("adapter_a", rank, 3);
  const Status committed = trainer_.refit.group->commit(2);
  EXPECT_EQ(committed.code(), Code::kMismatch);
  EXPECT_NE(committed.message().find("adapter_a"), std::string::npos) << committed.message();
}

}  // namespace
}  // namespace dcr
