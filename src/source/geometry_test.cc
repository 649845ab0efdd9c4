#include "source/geometry.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tensor/task.h"
#include "tensor/text.h"

namespace dcr {
namespace {

// Two ranks, rows of "w" half and half, and two groups: "g" makes "x" from source tensors "s" and
// "w/0", "h" makes "y" and "z" from "x".
class GeometryTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<Catalogue> made = Catalogue::make({{"w", Dtype::kBF16, {4, 6}, 0},
                                              {"x", Dtype::kBF16, {8}, 0},
                                              {"y", Dtype::kBF16, {4}, 0},
                                              {"z", Dtype::kF32, {2}, 0}});
    ASSERT_TRUE(made.ok());
    catalogue_ = std::move(made).value();
    ranks_.resize(2);
    for (std::uint32_t r = 0; r < 2; ++r) {
      ranks_[r].rank = r;
      ranks_[r].sources = {"w/" + std::to_string(r)};
      ranks_[r].direct = {{0, {0, r * 12, {{12, 1, 1}}}}};
      ranks_[r].converters = {{"g", {"s", "w/0"}, false, false, {"x"}, {}},
                              {"h", {"x"}, false, false, {"y", "z"}, {}}};
    }
    ranks_[1].sources.push_back("s");
    ranks_[0].converters[0].parts = {{"x", 0, {4}, {1}}};
    ranks_[1].converters[0].parts = {{"x", 4, {2}, {1}}, {"x", 6, {2}, {1}}};
    ranks_[1].converters[1].parts = {{"z", 0, {2}, {1}}, {"y", 0, {4}, {1}}};
  }

  void expect_error(Code code, const std::string& message) {
    const auto made = Geometry::make(catalogue_, ranks_);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), code);
    EXPECT_EQ(made.status().message(), message);
  }

  Catalogue catalogue_;
  std::vector<OwnerDeclaration> ranks_;
};

TEST_F(GeometryTest, GroupsAndPieces) {
  const auto made = Geometry::make(catalogue_, ranks_);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const Geometry& geometry = **made;
  ASSERT_EQ(geometry.groups().size(), 2u);
  EXPECT_EQ(geometry.groups()[0].inputs, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(geometry.find_source("s"), 0);
  EXPECT_EQ(geometry.find_source("w/0"), 1);
  EXPECT_EQ(geometry.find_source("w/1"), -1);
  EXPECT_TRUE(geometry.feeds("s"));
  EXPECT_FALSE(geometry.feeds("w/1"));
  EXPECT_EQ(geometry.groups()[1].upstream, (std::vector<std::uint32_t>{0}));
  EXPECT_EQ(geometry.flags().count, 2u + 2u + 2u);
  ASSERT_EQ(geometry.residual().size(), 5u);
  const auto piece = [&](std::size_t i) { return geometry.residual()[i]; };
  EXPECT_EQ(piece(0).box, ItemBox::range(0, 4));
  EXPECT_EQ(piece(1).box, ItemBox::range(4, 2));
  EXPECT_EQ(piece(2).box, ItemBox::range(6, 2));
  EXPECT_EQ(piece(2).part, 1u);
  EXPECT_EQ(piece(2).converter_part, 1u);
  EXPECT_EQ(piece(3).tensor, 2u);
  EXPECT_EQ(piece(3).part, 0u);
  EXPECT_EQ(piece(3).converter_part, 1u);
  EXPECT_EQ(piece(4).tensor, 3u);
  EXPECT_EQ(piece(4).width, 4);
  for (const ResidualPiece& any : geometry.residual()) {
    EXPECT_EQ(any.to, geometry.residual_owner(any.tensor));
    EXPECT_LT(any.to, 2u);
  }
}

TEST_F(GeometryTest, SelectsWhatChangesReach) {
  const auto geometry = Geometry::make(catalogue_, ranks_).value();
  const FlagLayout& layout = geometry->flags();
  const auto select = [&](const std::vector<std::size_t>& raised,
                          const std::vector<Need>& needs = {}) {
    std::vector<std::uint8_t> flags(layout.count, 0);
    for (const std::size_t flag : raised) flags[flag] = 1;
    return geometry->select(flags, needs);
  };
  using Pieces = std::vector<std::uint32_t>;
  EXPECT_EQ(select({}), Pieces{});
  EXPECT_EQ(select({FlagLayout::kChanged}), Pieces{});
  EXPECT_EQ(select({layout.source}), (Pieces{0, 1, 2, 3, 4}));  // "s" → "x" → "y", "z"
  EXPECT_EQ(select({layout.source + 1}), (Pieces{0, 1, 2, 3, 4}));
  EXPECT_EQ(select({}, {Need::kAny, Need::kAny, Need::kAny, Need::kDense}), (Pieces{3, 4}));
  EXPECT_EQ(select({}, {Need::kDense, Need::kAny, Need::kSkip, Need::kOverwrite}), Pieces{});
  EXPECT_EQ(select({layout.dense, layout.dense + 1}), (Pieces{0, 1, 2, 3, 4}));
  const std::uint32_t owner = geometry->residual_owner(2);
  const Pieces of_owner = select({layout.dense + owner});
  EXPECT_TRUE(std::find(of_owner.begin(), of_owner.end(), 3u) != of_owner.end());
}

// "x" is what "h" reads: as a source tensor and as what "g" makes.
TEST_F(GeometryTest, AnInputMayHaveBothNames) {
  ranks_[0].sources.push_back("x");
  const auto geometry = Geometry::make(catalogue_, ranks_).value();
  EXPECT_EQ(geometry->groups()[1].inputs.size(), 1u);
  EXPECT_EQ(geometry->groups()[1].upstream, (std::vector<std::uint32_t>{0}));
  std::vector<std::uint8_t> flags(geometry->flags().count, 0);
  flags[geometry->flags().source] = 1;  // "s" → "x" → "y", "z"
  EXPECT_EQ(geometry->select(flags, {}).size(), 5u);
}

TEST_F(GeometryTest, UnknownInputsSelectEverythingOnAnyChange) {
  for (OwnerDeclaration& rank : ranks_) rank.converters[1].inputs_unknown = true;
  const auto geometry = Geometry::make(catalogue_, ranks_).value();
  EXPECT_TRUE(geometry->feeds("w/1"));
  std::vector<std::uint8_t> flags(geometry->flags().count, 0);
  EXPECT_TRUE(geometry->select(flags, {}).empty());
  flags[FlagLayout::kChanged] = 1;
  EXPECT_EQ(geometry->select(flags, {}).size(), 5u);
}

TEST_F(GeometryTest, CustomExportTurnsProjectionOff) {
  for (OwnerDeclaration& rank : ranks_) {
    rank.converters.push_back({"export", {}, true, true, {"w"}, {}});
  }
  expect_error(Code::kMismatch, "tensor \"w\": no rank makes it");
  ranks_[1].converters[2].parts = {{"w", 0, {4, 6}, {6, 1}}};
  const auto geometry = Geometry::make(catalogue_, ranks_).value();
  EXPECT_FALSE(geometry->projected(0));
  EXPECT_TRUE(geometry->projected(1));
}

// Pieces of one tensor have one receiving owner: in the order of pieces alone the others would
// wait.
TEST_F(GeometryTest, RoundsHaveSomethingForEveryOwner) {
  std::vector<CanonicalTensor> tensors;
  ConverterDeclaration group{"g", {"s"}, false, false, {}, {}};
  for (int i = 0; i < 12; ++i) {
    tensors.push_back({"w" + std::to_string(i), Dtype::kU8, {40 << 20}, 0});
    group.outputs.push_back(tensors.back().name);
  }
  catalogue_ = Catalogue::make(std::move(tensors)).value();
  ranks_.resize(3);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    ranks_[rank] = {rank, {}, {}, {group}};
    for (const std::string& name : group.outputs) {
      const std::uint64_t third = (40 << 20) / 4;
      ranks_[rank].converters[0].parts.push_back(
          {name, rank * third, {rank < 2 ? third : 2 * third}, {1}});
    }
  }
  ranks_[0].sources = {"s"};
  const auto geometry = Geometry::make(catalogue_, ranks_).value();
  std::vector<std::uint32_t> all(geometry->residual().size());
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  const auto rounds = geometry->rounds(all);
  std::vector<std::vector<std::uint32_t>> got(3);  // by receiving owner
  std::vector<std::size_t> rounds_of(3, 0);
  for (const std::vector<std::uint32_t>& round : rounds) {
    EXPECT_TRUE(std::is_sorted(round.begin(), round.end()));
    std::vector<std::uint64_t> bytes(3, 0);
    for (const std::uint32_t index : round) {
      const ResidualPiece& piece = geometry->residual()[index];
      bytes[piece.to] += piece.words;
      got[piece.to].push_back(index);
    }
    for (std::size_t to = 0; to < 3; ++to) {
      EXPECT_LE(bytes[to], kRoundBytesMax);
      if (bytes[to] == 0) continue;
      EXPECT_EQ(rounds_of[to], static_cast<std::size_t>(&round - rounds.data()));
      ++rounds_of[to];
    }
  }
  std::size_t together = 0;
  for (const std::vector<std::uint32_t>& of : got) {
    EXPECT_TRUE(std::is_sorted(of.begin(), of.end()));
    EXPECT_GT(of.size(), 0u);
    together += of.size();
  }
  EXPECT_EQ(together, all.size());
  EXPECT_EQ(rounds.size(), *std::max_element(rounds_of.begin(), rounds_of.end()));
}

TEST_F(GeometryTest, RoundsBoundWhatAnOwnerGets) {
  Result<Catalogue> made =
      Catalogue::make({{"w", Dtype::kU8, {100 << 20}, 0}, {"v", Dtype::kU8, {5}, 0}});
  catalogue_ = std::move(made).value();
  ranks_.resize(1);
  ranks_[0].sources = {"s"};
  ranks_[0].direct.clear();
  ranks_[0].converters = {{"g", {"s"}, false, false, {"w", "v"}, {}}};
  ranks_[0].converters[0].parts = {{"v", 0, {5}, {1}}, {"w", 0, {100 << 20}, {1}}};
  const auto geometry = Geometry::make(catalogue_, ranks_).value();
  std::vector<std::uint32_t> all(geometry->residual().size());
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  std::vector<std::uint32_t> together;
  for (const std::vector<std::uint32_t>& round : geometry->rounds(all)) {
    std::uint64_t bytes = 0;
    for (const std::uint32_t index : round) {
      bytes += geometry->residual()[index].words;
      together.push_back(index);
    }
    EXPECT_TRUE(bytes <= kRoundBytesMax || round.size() == 1);
  }
  EXPECT_EQ(together, all);
  EXPECT_GT(geometry->rounds(all).size(), 5u);
  EXPECT_TRUE(geometry->rounds({}).empty());
}

TEST_F(GeometryTest, GapsAndOverlapsNameTensorAndRanks) {
  ranks_[1].direct[0].box.dst_offset = 11;
  expect_error(Code::kMismatch, "tensor \"w\": element 11 is covered twice by ranks 0, 1");
  ranks_[1].direct[0].box.dst_offset = 13;
  expect_error(Code::kCorrupt, "tensor \"w\": the box reaches destination element 24 of 24");
  ranks_[1].direct[0].box = {0, 13, {{11, 1, 1}}};
  expect_error(Code::kMismatch,
               "tensor \"w\": element 12 is not covered; it comes from ranks 0, 1");
  ranks_[1].direct.clear();
  expect_error(Code::kMismatch, "tensor \"w\": element 12 is not covered; it comes from rank 0");
  ranks_[1].direct = {{0, {0, 12, {{6, 0, 1}, {2, 1, 6}}}}, {0, {0, 13, {{1, 1, 1}}}}};
  expect_error(Code::kMismatch, "tensor \"w\": element 13 is covered twice by rank 1");
  SetUp();
  ranks_[1].converters[0].parts.pop_back();
  expect_error(Code::kMismatch, "tensor \"x\": element 6 is not covered; it comes from ranks 0, 1");
  ranks_[1].converters[0].parts[0] = {"x", 3, {5}, {1}};
  expect_error(Code::kMismatch, "tensor \"x\": element 3 is covered twice by ranks 0, 1");
  SetUp();
  ranks_[1].converters[1].parts.erase(ranks_[1].converters[1].parts.begin());
  expect_error(Code::kMismatch, "tensor \"z\": no rank makes it");
  SetUp();
  ranks_[0].direct.push_back({1, {0, 0, {{1, 1, 1}}}});  // projected and converted
  expect_error(Code::kMismatch, "tensor \"x\": element 0 is covered twice by rank 0");
}

TEST_F(GeometryTest, ErrorsOfDeclarations) {
  ranks_[1].rank = 0;
  expect_error(Code::kInvalidArgument, "declaration 1 is of rank 0");
  SetUp();
  ranks_[1].sources.push_back("w/0");
  expect_error(Code::kMismatch, "source tensor \"w/0\" has two owners or two tasks: ranks 0, 1");
  ranks_[1].sources = {"s", "s"};
  expect_error(Code::kMismatch, "source tensor \"s\" has two owners or two tasks: rank 1");
  SetUp();
  ranks_[1].converters.pop_back();
  expect_error(Code::kMismatch, "rank 0 has 2 converters and rank 1 1");
  SetUp();
  ranks_[1].converters[1].outputs = {"y"};
  expect_error(Code::kMismatch,
               "converter 1 is \"h\" on rank 0 and another or otherwise declared on rank 1 "
               "(\"h\")");
  SetUp();
  ranks_[0].direct[0].destination = 9;
  expect_error(Code::kInvalidArgument,
               "rank 0 projects to tensor index 9, which is not in the catalogue");
}

// Of several the first by name is named, which is the second by hash; of its owners the first two.
TEST_F(GeometryTest, TheFirstNameThatIsTwiceIsNamed) {
  ASSERT_GT(name_hash("d0"), name_hash("d1"));
  ranks_.push_back({2, {}, {}, ranks_[0].converters});
  for (ConverterDeclaration& converter : ranks_[2].converters) converter.parts.clear();
  for (OwnerDeclaration& rank : ranks_) {
    rank.sources.insert(rank.sources.begin(), {"d1", "d0"});
  }
  expect_error(Code::kMismatch, "source tensor \"d0\" has two owners or two tasks: ranks 0, 1");
}

// Bytes of the hash's secret make it forget those that they are multiplied with.
TEST_F(GeometryTest, NamesOfOneHashAreNotOneName) {
  const auto name = [](const std::string& middle) {
    return "\xb8\xfe\x6c\x39\x23\xa4\x4b\xbe" + middle + "0000000000000000";
  };
  const std::string a = name("aaaaaaaa");
  const std::string b = name("bbbbbbbb");
  const std::string c = name("cccccccc");
  ASSERT_EQ(name_hash(a), name_hash(b));
  ASSERT_EQ(name_hash(a), name_hash(c));
  ranks_[0].sources.push_back(c);
  ranks_[1].sources.push_back(a);
  for (OwnerDeclaration& rank : ranks_) rank.converters[0].inputs = {a, c};
  const auto made = Geometry::make(catalogue_, ranks_);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_GE((*made)->find_source(a), 0);
  EXPECT_GE((*made)->find_source(c), 0);
  for (OwnerDeclaration& rank : ranks_) rank.converters[0].inputs = {b};
  expect_error(Code::kNotFound, "converter \"g\": its input " + quoted_name(b) +
                                    " is no source tensor of any rank and no converter makes it");
  for (OwnerDeclaration& rank : ranks_) rank.converters[0].inputs = {a, c};
  ranks_[0].sources.push_back(a);
  expect_error(Code::kMismatch,
               "source tensor " + quoted_name(a) + " has two owners or two tasks: ranks 0, 1");
}

TEST_F(GeometryTest, ErrorsOfConverters) {
  for (OwnerDeclaration& rank : ranks_) rank.converters[0].inputs = {"none"};
  expect_error(Code::kNotFound,
               "converter \"g\": its input \"none\" is no source tensor of any rank and no "
               "converter makes it");
  SetUp();
  for (OwnerDeclaration& rank : ranks_) rank.converters[0].outputs = {"none"};
  expect_error(Code::kNotFound, "converter \"g\": its output \"none\" is not in the catalogue");
  SetUp();
  for (OwnerDeclaration& rank : ranks_) rank.converters[1].outputs = {"y", "z", "x"};
  expect_error(Code::kMismatch, "tensor \"x\": converters \"g\" and \"h\" both make it");
  SetUp();
  ranks_[0].converters[0].parts[0].canonical = "y";
  expect_error(Code::kNotFound,
               "converter \"g\" on rank 0: a part is of \"y\", which is none of its outputs");
  SetUp();
  ranks_[0].converters[0].parts[0] = {"x", 0, {2, 2}, {1, 2}};
  expect_error(Code::kUnsupported,
               "converter \"g\" on rank 0: tensor \"x\": a part is not in the order of the "
               "canonical tensor");
  ranks_[0].converters[0].parts[0] = {"x", 0, {2, 2}, {1}};
  expect_error(Code::kInvalidArgument,
               "converter \"g\" on rank 0: tensor \"x\": a part has 2 sizes and 1 strides");
  ranks_[0].converters[0].parts[0] = {"x", 0, {9}, {1}};
  expect_error(Code::kCorrupt,
               "converter \"g\" on rank 0: tensor \"x\": the box reaches destination element 8 "
               "of 8");
}

TEST(DeclareOwner, SaysWhatItOwns) {
  OwnerInput input;
  input.rank = 1;
  input.tasks.push_back({"mine", {}, {{0, {0, 0, {{1, 1, 1}}}}}, {1}});
  input.tasks.push_back({"not", {}, {{1, {0, 0, {{1, 1, 1}}}}}, {0}});
  input.tracked.push_back({"scale", {}, {1}});
  const Result<OwnerDeclaration> declared = declare_owner(input);
  ASSERT_TRUE(declared.ok());
  EXPECT_EQ(declared->rank, 1u);
  EXPECT_EQ(declared->sources, (std::vector<std::string>{"mine", "scale"}));
  ASSERT_EQ(declared->direct.size(), 1u);
  EXPECT_EQ(declared->direct[0].destination, 0u);
  input.tracked[0].replicas.clear();
  EXPECT_EQ(declare_owner(input).status().message(), "source tensor \"scale\": no rank holds it");
}

}  // namespace
}  // namespace dcr
