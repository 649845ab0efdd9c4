// What is asked of owners for a canonical tensor, by one receiver or by several together (DESIGN
// §7).
#pragma once

#include <cstdint>

namespace dcr {

enum class Need : std::uint8_t {
  kAny,
  kOverwrite,  // no xor, no add
  kDense,      // all of it, changed or not
  kSkip,       // nothing: no receiver has any of it
};

}  // namespace dcr
