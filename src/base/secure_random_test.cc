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

}  // namespace
}  // namespace dcr
