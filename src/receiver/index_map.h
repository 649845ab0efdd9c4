// From a list of indices to the boxes that it is.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/box.h"

namespace dcr {

// Boxes that map canonical word indices[e] → element e, in the order of e: few where the list is
// regular, at worst one per element.
std::vector<Box> boxes_of_indices(std::span<const std::uint64_t> indices);

}  // namespace dcr
