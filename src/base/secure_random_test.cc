#include "base/secure_random.h"

#include <gtest/gtest.h>

#include <set>

namespace dcr {
namespace {

TEST(SecureRandom, NeverGivesTheSameTwice) {
  std::set<Bytes> seen;
  for (int i = 0; i < 1000; ++i) {
    Bytes bytes(16);
    fill_random(bytes);
    EXPECT_TRUE(seen.insert(bytes).second);
  }
  fill_random({});
}

TEST(SecureRandom, NumbersAreOfTheirRangeAndNotTheSame) {
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(random_number(1), 1U);
    const std::uint64_t small = random_number(4);
    EXPECT_TRUE(small >= 1 && small <= 4);
    EXPECT_TRUE(seen.insert(random_number(std::uint64_t{1} << 62U)).second);
  }
  EXPECT_LE(*seen.rbegin(), std::uint64_t{1} << 62U);
  EXPECT_GT(*seen.rbegin(), std::uint64_t{1} << 61U);
}

}  // namespace
}  // namespace dcr
