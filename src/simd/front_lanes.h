// What moves chosen lanes of a vector to its front.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dcr {

// For each set of eight 16-bit lanes (bit i: lane i), the bytes of its lanes in order, then zeros,
// for a shuffle of bytes. In static memory: of the table in Highway's Compress, GCC 12 puts a copy
// on the stack at each use.
struct FrontLanes {
  alignas(16) std::uint8_t bytes[256][16];
};

inline constexpr FrontLanes kFrontLanes = [] {
  FrontLanes table = {};
  for (unsigned lanes = 0; lanes < 256; ++lanes) {
    std::size_t filled = 0;
    for (unsigned lane = 0; lane < 8; ++lane) {
      if ((lanes >> lane & 1) == 0) continue;
      table.bytes[lanes][filled++] = static_cast<std::uint8_t>(2 * lane);
      table.bytes[lanes][filled++] = static_cast<std::uint8_t>(2 * lane + 1);
    }
  }
  return table;
}();

}  // namespace dcr
