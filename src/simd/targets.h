// What kernels_highway.cc offers to the selection in kernels.cc.
#pragma once

#include <vector>

#include "simd/kernels.h"

namespace dcr {

// One kernel set for each instruction set that this CPU supports, the best first.
std::vector<const Kernels*> highway_kernels();

}  // namespace dcr
