// The item stream: hostile bytes in, validated views out.
#pragma once

#include <span>
#include <vector>

#include "codec/payload.h"

namespace dcr {

// Parses and validates all items of a payload whose streams are decompressed: records, boxes
// against `tensors`, order, overlap, and every item's locations and values, so that reading and
// applying them cannot fail. `raw` has the streams of `entries` back to back and
// outlives the views. Errors name the item and the tensor's index.
Status parse_items(std::span<const StreamEntry> entries, const std::uint8_t* raw,
                   std::span<const TensorSpec> tensors, std::uint64_t entry_bytes_max,
                   std::vector<ItemView>* items);

}  // namespace dcr
