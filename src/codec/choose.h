// The choice of codings, item by item, from a sample of its changes. Costs are estimated in
// integers, so that the same words give the same payload on every machine.
#pragma once

#include <cstdint>
#include <span>

#include "codec/item.h"

namespace dcr {

struct LocationChoice {
  LocationCoding coding = LocationCoding::kAll;
  std::uint8_t gap_shift = 0;
};

// REQUIRES: 0 < gaps.size() <= words.
LocationChoice choose_location(std::span<const std::uint32_t> gaps, std::uint64_t words);

struct ValueChoice {
  ValueCoding coding = ValueCoding::kPlanes;
  std::uint64_t bits_per_4096 = 0;  // estimated bits of 4,096 values
};

// `values`: `count` > 0 words of `width` bytes.
ValueChoice choose_value(unsigned width, const void* values, std::size_t count);

}  // namespace dcr
