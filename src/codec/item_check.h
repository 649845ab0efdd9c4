// What must hold of an item's streams so that reading them cannot fail (docs/FORMAT.md "Items").
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "codec/payload.h"

namespace dcr {

inline Status corrupt(std::string message) { return {Code::kCorrupt, std::move(message)}; }

// Positions ascend and stay within the box; counts agree; padding is zero. Errors: kCorrupt.
Status check_locations(const ItemView& item);

// Symbols are valid, counts of escapes and extra bits agree, values fit the word, padding is zero;
// xor and add values are not the one that would change nothing. Errors: kCorrupt.
Status check_values(const ItemView& item);

// The box lies within a tensor of `words` words, has no empty or negligible dimension, and reaches
// no word twice. Errors: kCorrupt, kTooLarge.
Status check_box(const ItemBox& box, std::uint64_t words);

inline Status corrupt_rank(std::uint64_t rank) {
  return corrupt("item box of rank " + std::to_string(rank));
}

using HeaderAt = std::function<const ItemHeader&(std::size_t item)>;

// No word of a tensor is in two boxes. REQUIRES: ascending (tensor, offset). Errors: kCorrupt;
// kTooLarge if boxes that interleave have more than kRunsPerPayloadMax runs, or more than a list of
// `memory_bytes_max` bytes holds.
Status check_overlap(std::size_t items, const HeaderAt& header_at, std::uint64_t memory_bytes_max);

}  // namespace dcr
