// All mutants: the name, and what it breaks. Add the line here, and DCR_MUTANT(name) at the place.
#pragma once

#include <string_view>

namespace dcr {

struct Mutant {
  std::string_view name;
  std::string_view breaks;
};

inline constexpr Mutant kMutants[] = {
    {"canary", "a receiver's last written word is another: every campaign must see that"},
};

}  // namespace dcr
