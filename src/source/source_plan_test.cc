#include "source/source_plan.h"

#include <gtest/gtest.h>

#include "base/digest.h"

namespace dcr {
namespace {

class SourcePlanTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<Catalogue> made = Catalogue::make({{"a", Dtype::kBF16, {4, 6}, 0},
                                              {"b", Dtype::kBF16, {4, 6}, 0},
                                              {"big", Dtype::kU8, {40, 1 << 20}, 0},
                                              {"four", Dtype::kF4, {8}, 0}});
    ASSERT_TRUE(made.ok());
    catalogue_ = std::move(made).value();
  }

  void add(const std::string& name, TensorView view, Placement placement) {
    tasks_.push_back({name, std::move(view), std::move(placement), {0}});
  }

  Result<SourcePlan> plan() {
    SourcePlanInput input;
    input.catalogue = &catalogue_;
    input.tasks = tasks_;
    input.tracked = tracked_;
    input.projected = [this](std::uint32_t tensor) { return tensor != unprojected_; };
    input.feeds = [this](const std::string& name) { return name == feeding_; };
    return plan_sources(input);
  }

  void expect_error(Code code, const std::string& message) {
    const Result<SourcePlan> result = plan();
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), code);
    EXPECT_EQ(result.status().message(), message);
  }

  Catalogue catalogue_;
  std::vector<ConversionTask> tasks_;
  std::vector<TrackedSource> tracked_;
  std::uint32_t unprojected_ = kNoTensor;
  std::string feeding_;
};

const TensorView kWhole{3, Dtype::kBF16, 100, {4, 6}, {6, 1}};
const Box kIdentity{0, 0, {{24, 1, 1}}};

TEST_F(SourcePlanTest, WholeTensorsAreRanges) {
  add("b", kWhole, {{1, kIdentity}});
  add("a", kWhole, {{0, {0, 0, {{4, 6, 6}, {6, 1, 1}}}}});
  const Result<SourcePlan> made = plan();
  ASSERT_TRUE(made.ok()) << made.status().message();
  ASSERT_EQ(made->pieces.size(), 2u);
  EXPECT_EQ(made->pieces[0].tensor, 0u);
  EXPECT_EQ(made->pieces[0].box, ItemBox::range(0, 24));
  EXPECT_EQ(made->pieces[0].width, 2);
  EXPECT_TRUE(made->pieces[0].send);
  EXPECT_EQ(made->sources[0].source, 1u);
  EXPECT_EQ(made->sources[0].box, (Box{100, 0, {{24, 1, 1}}}));
  EXPECT_EQ(made->sources[0].arena_offset, 0u);
  EXPECT_EQ(made->sources[1].arena_offset, 64u);
  EXPECT_EQ(made->arena_bytes, 128u);
}

TEST_F(SourcePlanTest, ItemsAreInCanonicalOrder) {
  // Columns 2 … 4 of "a", transposed: source [2, 4].
  add("t", {0, Dtype::kBF16, 0, {2, 4}, {4, 1}}, {{0, {0, 2, {{2, 4, 1}, {4, 1, 6}}}}});
  const Result<SourcePlan> made = plan();
  ASSERT_TRUE(made.ok());
  ASSERT_EQ(made->pieces.size(), 1u);
  EXPECT_EQ(made->pieces[0].box, (ItemBox{2, {{4, 6}, {2, 1}}}));
  EXPECT_EQ(made->sources[0].box, (Box{0, 2, {{4, 1, 6}, {2, 4, 1}}}));
}

TEST_F(SourcePlanTest, WhatIsOneRangeInTheTensorIsOneWhateverTheSource) {
  add("t", {0, Dtype::kBF16, 0, {6, 4}, {4, 1}}, {{0, {0, 0, {{6, 4, 1}, {4, 1, 6}}}}});
  const Result<SourcePlan> made = plan();
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->pieces[0].box, ItemBox::range(0, 24));
  EXPECT_EQ(made->sources[0].box, (Box{0, 0, {{4, 1, 6}, {6, 4, 1}}}));
}

TEST_F(SourcePlanTest, PlacementsGoOverStridedViews) {
  // "a" lies in rows of 10 words; the placement knows only its 24 elements.
  add("t", {0, Dtype::kBF16, 5, {4, 6}, {10, 1}}, {{0, kIdentity}});
  const Result<SourcePlan> made = plan();
  ASSERT_TRUE(made.ok());
  ASSERT_EQ(made->pieces.size(), 1u);
  EXPECT_EQ(made->pieces[0].box, ItemBox::range(0, 24));
  EXPECT_EQ(made->sources[0].box, (Box{5, 0, {{4, 10, 6}, {6, 1, 1}}}));
}

TEST_F(SourcePlanTest, LargeTensorsAreCutByAFixedRule) {
  // Columns [0, 2^19) of 40 rows of 2^20: 20 MiB, of pieces of 8 Mi words.
  add("t", {0, Dtype::kU8, 0, {40, 1 << 19}, {1 << 19, 1}},
      {{2, {0, 0, {{40, 1 << 19, 1 << 20}, {1 << 19, 1, 1}}}}});
  const Result<SourcePlan> made = plan();
  ASSERT_TRUE(made.ok());
  ASSERT_EQ(made->pieces.size(), 3u);
  std::uint64_t words = 0;
  for (const Piece& piece : made->pieces) {
    EXPECT_LE(piece.box.words(), piece_words(1));
    EXPECT_EQ(piece.box.offset, words * 2);
    words += piece.box.words();
  }
  EXPECT_EQ(words, std::uint64_t{40} << 19);
}

TEST_F(SourcePlanTest, TiedElementsCountOnce) {
  add("tied", kWhole, {{1, kIdentity}, {0, kIdentity}});
  const Result<SourcePlan> made = plan();
  ASSERT_TRUE(made.ok());
  ASSERT_EQ(made->pieces.size(), 2u);
  EXPECT_EQ(made->pieces[0].tensor, 0u);
  EXPECT_FALSE(made->sources[0].counted);
  EXPECT_TRUE(made->sources[1].counted);
}

TEST_F(SourcePlanTest, SubByteTensorsAreBytes) {
  add("four", {0, Dtype::kU8, 0, {4}, {1}}, {{3, {0, 0, {{4, 1, 1}}}}});
  const Result<SourcePlan> made = plan();
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->pieces[0].box, ItemBox::range(0, 4));
  EXPECT_EQ(made->pieces[0].width, 1);
}

// What feeds a converter is tracked unless the canonical words hold all its bits.
TEST_F(SourcePlanTest, TracksWhatFeedsConverters) {
  feeding_ = "a";
  add("a", kWhole, {{0, kIdentity}});
  add("b", kWhole, {{1, kIdentity}});
  EXPECT_EQ(plan()->pieces.size(), 2u);
  tasks_[0].view.dtype = Dtype::kF32;  // a cast hides changes
  Result<SourcePlan> made = plan();
  ASSERT_EQ(made->pieces.size(), 3u);
  EXPECT_EQ(made->pieces[2].tensor, kNoTensor);
  EXPECT_FALSE(made->pieces[2].send);
  EXPECT_EQ(made->pieces[2].width, 4);
  EXPECT_EQ(made->pieces[2].box.words(), 24u);
  EXPECT_FALSE(made->sources[2].counted);  // its projected elements are
  tasks_[0].view = kWhole;
  tasks_[0].view.sizes = {5, 6};  // six elements go nowhere
  EXPECT_EQ(plan()->pieces.size(), 3u);
  tasks_[0].view = kWhole;
  unprojected_ = 0;  // only a converter makes "a"
  made = plan();
  ASSERT_EQ(made->pieces.size(), 2u);
  EXPECT_EQ(made->pieces[0].tensor, 1u);
  EXPECT_EQ(made->pieces[1].tensor, kNoTensor);
  EXPECT_EQ(made->sources[1].source, 0u);
  EXPECT_TRUE(made->sources[1].counted);
}

TEST_F(SourcePlanTest, TrackedSources) {
  add("a", kWhole, {{0, kIdentity}});
  tracked_.push_back({"scale", {9, Dtype::kF32, 2, {3, 2}, {4, 1}}, {0}});
  tracked_.push_back({"others", {9, Dtype::kF32, 2, {3, 2}, {4, 1}}, {1}});
  const Result<SourcePlan> made = plan();
  ASSERT_TRUE(made.ok());
  ASSERT_EQ(made->pieces.size(), 2u);
  EXPECT_EQ(made->pieces[1].tensor, kNoTensor);
  EXPECT_EQ(made->sources[1].source, 1u);
  EXPECT_EQ(made->sources[1].box, (Box{2, 0, {{3, 4, 2}, {2, 1, 1}}}));
  EXPECT_TRUE(made->sources[1].counted);
}

TEST_F(SourcePlanTest, EmptyShardsHaveNoPieces) {
  add("empty", {0, Dtype::kBF16, 0, {0, 6}, {6, 1}}, {{0, {0, 24, {{0, 6, 6}, {6, 1, 1}}}}});
  EXPECT_TRUE(plan()->pieces.empty());
}

TEST_F(SourcePlanTest, Errors) {
  add("t", kWhole, {{0, {0, 0, {{5, 6, 6}, {6, 1, 1}}}}});
  expect_error(Code::kCorrupt, "task \"t\": tensor \"a\": the box reaches source element 29 of 24");
  tasks_[0].placement = {{7, kIdentity}};
  expect_error(Code::kInvalidArgument,
               "task \"t\": part 0 goes to tensor index 7, which is not in the catalogue");
  tasks_[0].placement = {{0, kIdentity}};
  tasks_[0].view.dtype = Dtype::kI16;
  expect_error(Code::kUnsupported,
               "task \"t\": tensor \"a\": no cast from I16 to BF16: casts are between F64, F32, "
               "F16, BF16, F8_E4M3 and F8_E5M2");
  tasks_[0].view = kWhole;
  tasks_[0].placement = {{0, {0, 0, {{4, 1, 2}, {4, 4, 3}}}}};
  expect_error(Code::kUnsupported,
               "task \"t\": tensor \"a\": a part whose canonical strides do not nest: stride 3 "
               "within a reach of 7 words");
  tasks_[0].placement = {{0, kIdentity}};
  tasks_[0].view.strides = {6};
  expect_error(Code::kInvalidArgument, "task \"t\": its view has 2 sizes and 1 strides");
  tasks_[0].view = {0, Dtype::kBF16, 0, {4, 6}, {12, 2}};
  tasks_[0].placement = {{0, {0, 0, {{2, 0, 6}, {6, 1, 1}}}}};
  expect_error(Code::kUnsupported,
               "task \"t\": tensor \"a\": a part that repeats elements of a strided view");
  tasks_[0].replicas.clear();
  expect_error(Code::kInvalidArgument, "task \"t\": no rank holds it");
  tasks_.clear();
  tracked_.push_back({"s", {0, Dtype::kF4, 0, {2}, {1}}, {0}});
  expect_error(Code::kInvalidArgument, "source tensor \"s\": F4 is viewed as U8");
}

// The rule that all ranks apply: XXH3-64 of the name, seed 0, modulo the replicas.
TEST(Owns, IsAStableHashOfTheName) {
  const std::string name = "layers.0.mlp.fc1.weight/2";
  const std::uint64_t hash =
      xxh3_64({reinterpret_cast<const std::uint8_t*>(name.data()), name.size()});
  const std::vector<std::uint32_t> replicas = {3, 5, 11};
  for (const std::uint32_t rank : replicas) {
    EXPECT_EQ(owns(name, replicas, rank), rank == replicas[hash % 3]);
  }
  EXPECT_FALSE(owns(name, replicas, 4));
  std::vector<unsigned> owned(4, 0);
  const std::vector<std::uint32_t> four = {0, 1, 2, 3};
  for (unsigned i = 0; i < 4000; ++i) {
    for (const std::uint32_t rank : four) {
      if (owns("tensor." + std::to_string(i), four, rank)) ++owned[rank];
    }
  }
  EXPECT_EQ(owned[0] + owned[1] + owned[2] + owned[3], 4000u);
  for (const unsigned count : owned) EXPECT_GT(count, 900u);
}

}  // namespace
}  // namespace dcr
