// How many cases a random campaign runs in this build: all of them in release, one in DCR_CAMPAIGN
// under sanitizers (CMakePresets.json), at least one.
#pragma once

#include <cstdint>

namespace dcr {

constexpr std::uint64_t campaign_cases(std::uint64_t cases) {
  static_assert(DCR_CAMPAIGN >= 1);
  const std::uint64_t thinned = cases / DCR_CAMPAIGN;
  return thinned == 0 ? 1 : thinned;
}

}  // namespace dcr
