// From a list of indices to the boxes that it is.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/box.h"

namespace dcr {

// Whether no source index is reached twice, for the reason that each stride is beyond the reach of
// the smaller ones.
bool injective(const Box& box);

// Injective boxes that map canonical word indices[e] → element e, in the order of e: few where the
// list is regular, at worst one per element.
std::vector<Box> boxes_of_indices(std::span<const std::uint64_t> indices);

}  // namespace dcr
