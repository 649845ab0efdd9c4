// Which owner may send which elements (docs/ARCHITECTURE.md "One attempt, at a receiver"):
// published once with the catalogue.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "codec/item.h"
#include "dcr/status.h"
#include "tensor/box.h"
#include "tensor/catalogue.h"

namespace dcr {

// A box of canonical words that an owner sends, as items of any smaller boxes.
struct OwnerBox {
  std::uint32_t tensor = 0;
  ItemBox box;
};

// The set of an item's words; both sides count canonical words.
Box word_set(const ItemBox& box);

// An item's box as a map from positions to canonical words.
Box position_box(const ItemBox& box);

// Immutable after make(); concurrent calls are allowed.
class Ownership {
 public:
  // Errors: kInvalidArgument naming tensor and owner.
  static Result<Ownership> make(const Catalogue& catalogue,
                                std::vector<std::vector<OwnerBox>> owners);

  std::uint32_t owners() const { return static_cast<std::uint32_t>(boxes_.size()); }

  // Whether two owners may send the same element, both as overwrites with the same bits.
  bool shared(std::uint32_t tensor) const { return shared_[tensor]; }

  // Whether the item lies within what the owner sends. Error kMismatch naming both.
  Status check(const Catalogue& catalogue, std::uint32_t owner, std::uint32_t tensor,
               const ItemBox& item) const;

 private:
  std::vector<std::map<std::uint32_t, std::vector<Box>>> boxes_;  // by owner and tensor
  std::vector<bool> shared_;
};

}  // namespace dcr
