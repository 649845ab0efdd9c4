// The items of one attempt, so that no element comes twice (docs/ARCHITECTURE.md "One attempt, at a
// receiver").
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "dcr/status.h"
#include "receiver/decoded.h"
#include "receiver/ownership.h"
#include "tensor/catalogue.h"

namespace dcr {

class AttemptItems {
 public:
  explicit AttemptItems(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}

  void clear();

  // Adds an item. Errors: kMismatch naming tensor and owners if an element of it came before (two
  // overwrites with equal bits may, where owners share a tensor); kTooLarge if remembering takes
  // more than the limit.
  Status add(const Catalogue& catalogue, const Ownership& ownership, std::uint32_t owner,
             const DecodedItem& item);

  std::uint64_t bytes() const { return bytes_; }

 private:
  // The boxes that an owner sent of a tensor.
  struct Boxes {
    std::map<std::uint64_t, std::uint64_t> ranges;  // begin → end; neighbours are joined
    std::vector<Box> strided;
    std::uint64_t strided_end = 0;  // one past the highest word of those
  };
  struct Entry {
    std::uint64_t word = 0;
    std::uint32_t owner = 0;
  };

  Status add_shared(const CanonicalTensor& tensor, std::uint32_t owner, const DecodedItem& item);
  static Result<bool> overlaps(const Boxes& boxes, const ItemBox& box);

  std::uint64_t bytes_max_;
  std::uint64_t bytes_ = 0;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Boxes> boxes_;   // by tensor and owner
  std::map<std::uint32_t, std::map<std::uint64_t, Entry>> entries_;  // of shared tensors, by word
};

}  // namespace dcr
