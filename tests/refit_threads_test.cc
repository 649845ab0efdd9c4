// Owners and receivers on several threads: refit_property_test's cases, a few of them, for
// ThreadSanitizer.
#include <gtest/gtest.h>

#include "tests/random_refit.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

TEST(RefitThreads, EveryByteIsADenseLoads) {
  const std::uint64_t first = 2'000'000;
  for (std::uint64_t seed = first; seed < first + campaign_cases(1000); ++seed) {
    RandomRefit refit(seed);
    const std::string fault = refit.run(true);
    ASSERT_EQ(fault, "") << "seed " << seed << "\n" << refit.layouts();
  }
}

}  // namespace
}  // namespace dcr
