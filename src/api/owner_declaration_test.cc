#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "dcr/owner.h"

namespace dcr {
namespace {

RankDeclaration some_declaration() {
  RankDeclaration declaration{1, 3, {}, {}};
  declaration.tensors.push_back({"a.weight", Dtype::kBF16, {300, 4}, 0});
  declaration.tensors.push_back({"scalar", Dtype::kF64, {}, 0});
  DeclaredTask task{"a", Dtype::kF32, {100, 4}, {4, 1}, {}};
  task.parts.push_back({0, {0, 400, {{400, 1, 1}}}});
  declaration.tasks.push_back(std::move(task));
  declaration.tasks.push_back({"scalar", Dtype::kF64, {}, {}, {{1, {}}}});
  return declaration;
}

TEST(OwnerDeclaration, RoundTrip) {
  const RankDeclaration declaration = some_declaration();
  const auto read = decode_declaration(encode_declaration(declaration));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->rank, 1u);
  EXPECT_EQ(read->ranks, 3u);
  ASSERT_EQ(read->tensors.size(), 2u);
  EXPECT_EQ(read->tensors[0].name, "a.weight");
  EXPECT_EQ(read->tensors[0].shape, (Shape{300, 4}));
  EXPECT_EQ(read->tasks, declaration.tasks);
}

TEST(OwnerDeclaration, EveryPrefixAndEveryFlippedBitIsReadSafely) {
  const std::vector<std::uint8_t> good = encode_declaration(some_declaration());
  for (std::size_t size = 0; size < good.size(); ++size) {
    const auto read = decode_declaration(std::span(good).first(size));
    ASSERT_FALSE(read.ok()) << size;
    EXPECT_EQ(read.status().code(), Code::kCorrupt) << read.status().message();
  }
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::vector<std::uint8_t> bad = good;
    bad[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
    const auto read = decode_declaration(bad);
    // What is still a declaration is written as it was read.
    if (read.ok()) {
      EXPECT_EQ(encode_declaration(*read), bad);
    }
  }
  std::vector<std::uint8_t> longer = good;
  longer.push_back(0);
  EXPECT_EQ(decode_declaration(longer).status().code(), Code::kCorrupt);
}

TEST(OwnerDeclaration, Limits) {
  RankDeclaration many = some_declaration();
  many.tensors[0].shape = Shape(kRankMax + 1, 1);
  EXPECT_EQ(decode_declaration(encode_declaration(many)).status().code(), Code::kTooLarge);
  RankDeclaration named = some_declaration();
  named.tasks[0].name = std::string(kTensorNameBytesMax + 1, 'x');
  EXPECT_FALSE(decode_declaration(encode_declaration(named)).ok());
  RankDeclaration ranks = some_declaration();
  ranks.ranks = static_cast<std::uint32_t>(kDeclaredRanksMax) + 1;
  EXPECT_EQ(decode_declaration(encode_declaration(ranks)).status().code(), Code::kTooLarge);
  RankDeclaration strange = some_declaration();
  strange.tensors[1].dtype = static_cast<Dtype>(kDtypeCount);
  EXPECT_EQ(decode_declaration(encode_declaration(strange)).status().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace dcr
