#include "codec/choose.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "base/limits.h"
#include "base/prng.h"

namespace dcr {
namespace {

// Gaps of changes that come up independently, each word with probability 1 / one_in.
std::vector<std::uint32_t> chance_gaps(std::uint64_t one_in, std::uint64_t words, Prng* random,
                                       std::uint64_t* left) {
  std::vector<std::uint32_t> gaps;
  std::uint32_t gap = 0;
  for (std::uint64_t i = 0; i < words; ++i) {
    if (random->below(one_in) != 0) {
      ++gap;
      continue;
    }
    gaps.push_back(gap);
    gap = 0;
  }
  *left = gap;
  return gaps;
}

TEST(ChooseLocation, AllWhereEveryWordChanged) {
  const std::vector<std::uint32_t> gaps(1000, 0);
  EXPECT_EQ(choose_location(gaps, 1000).coding, LocationCoding::kAll);
  EXPECT_EQ(choose_location({gaps.data(), 1}, 1).coding, LocationCoding::kAll);
  EXPECT_NE(choose_location(gaps, 1001).coding, LocationCoding::kAll);
}

// The low bits that are split off grow with the density's mean gap; bitmaps take over near one
// half.
TEST(ChooseLocation, FollowsTheDensity) {
  constexpr struct {
    std::uint64_t one_in;
    LocationCoding coding;
    unsigned shift;
  } kKnown[] = {{2, LocationCoding::kBitmap, 0},  {10, LocationCoding::kGaps, 0},
                {40, LocationCoding::kGaps, 0},   {100, LocationCoding::kGaps, 0},
                {1000, LocationCoding::kGaps, 4}, {10'000, LocationCoding::kGaps, 8}};
  for (const auto& known : kKnown) {
    Prng random(known.one_in);
    std::uint64_t left = 0;
    const auto gaps = chance_gaps(known.one_in, std::uint64_t{1} << 22, &random, &left);
    const LocationChoice choice = choose_location(gaps, std::uint64_t{1} << 22);
    EXPECT_EQ(choice.coding, known.coding) << known.one_in;
    EXPECT_EQ(choice.gap_shift, known.shift) << known.one_in;
  }
}

// Runs of changes with far jumps between: the mean gap says nothing.
TEST(ChooseLocation, SmallGapsWithFarJumps) {
  std::vector<std::uint32_t> gaps(10'000, 0);
  for (std::size_t i = 0; i < gaps.size(); i += 500) gaps[i] = 500'000;
  const LocationChoice choice = choose_location(gaps, std::uint64_t{1} << 24);
  EXPECT_EQ(choice.coding, LocationCoding::kGaps);
  EXPECT_LT(choice.gap_shift, 6);
}

TEST(ChooseLocation, ExtremesOfTheLargestBox) {
  const std::uint32_t last = static_cast<std::uint32_t>(kItemElementsMax - 1);
  const LocationChoice one = choose_location({&last, 1}, kItemElementsMax);
  EXPECT_EQ(one.coding, LocationCoding::kGaps);
  EXPECT_LE(one.gap_shift, 24);
}

ValueCoding coding_of(std::uint64_t seed, const std::function<std::uint32_t(Prng*)>& value) {
  Prng random(seed);
  std::vector<std::uint32_t> values(20'000);
  for (std::uint32_t& one : values) one = value(&random);
  const ValueChoice choice = choose_value(4, values.data(), values.size());
  const ValueChoice again = choose_value(4, values.data(), values.size());
  EXPECT_EQ(choice.coding, again.coding);
  EXPECT_EQ(choice.bits_per_4096, again.bits_per_4096);
  return choice.coding;
}

TEST(ChooseValue, FollowsTheValues) {
  const auto draw = [](std::uint64_t bound) {
    return [bound](Prng* random) { return static_cast<std::uint32_t>(random->below(bound)); };
  };
  EXPECT_EQ(coding_of(1, draw(2)), ValueCoding::kSymbol2);
  EXPECT_EQ(coding_of(2, draw(3)), ValueCoding::kSymbol2);
  // Escapes cost what the values would, so two bits are as good as any here.
  EXPECT_EQ(coding_of(3, draw(150)), ValueCoding::kSymbol2);
  // A value of less than one bit is cheaper where two share a byte.
  EXPECT_EQ(
      coding_of(4,
                [](Prng* random) {
                  return static_cast<std::uint32_t>(random->below(5) == 0 ? random->below(15) : 5);
                }),
      ValueCoding::kSymbol4);
  // One that would be less than one bit among escapes, and is not among all.
  EXPECT_EQ(coding_of(5,
                      [](Prng* random) {
                        const std::uint64_t chance = random->below(100);
                        return static_cast<std::uint32_t>(chance < 56   ? random->below(3)
                                                          : chance < 98 ? 20
                                                                        : 30);
                      }),
            ValueCoding::kSymbol8);
  // Far values that share most of their bytes.
  EXPECT_EQ(coding_of(6,
                      [](Prng* random) {
                        return 0x40000000 + (static_cast<std::uint32_t>(random->below(256)) << 8);
                      }),
            ValueCoding::kPlanes);
}

TEST(ChooseValue, EstimatesBits) {
  // Equal chances of 0 and 1: about one bit each; uniform 32-bit words: about 32.
  Prng random(6);
  std::vector<std::uint32_t> coin(100'000);
  std::vector<std::uint32_t> uniform(100'000);
  for (std::size_t i = 0; i < coin.size(); ++i) {
    coin[i] = static_cast<std::uint32_t>(random.below(2));
    uniform[i] = static_cast<std::uint32_t>(random.next());
  }
  const std::uint64_t one = choose_value(4, coin.data(), coin.size()).bits_per_4096;
  EXPECT_GE(one, 4096u);
  EXPECT_LT(one, 4096u * 11 / 10);
  const std::uint64_t all = choose_value(4, uniform.data(), uniform.size()).bits_per_4096;
  EXPECT_GT(all, 31u * 4096);
  EXPECT_LT(all, 34u * 4096);
}

// One value, of any width, has a coding.
TEST(ChooseValue, SingleValues) {
  for (const unsigned width : {1u, 2u, 4u, 8u}) {
    for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{3}, ~std::uint64_t{0}}) {
      EXPECT_GT(choose_value(width, &value, 1).bits_per_4096, 0u);
    }
  }
}

}  // namespace
}  // namespace dcr
