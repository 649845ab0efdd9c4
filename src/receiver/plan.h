// Where an item's changes go (docs/ARCHITECTURE.md "One attempt, at a receiver"): the item's box
// met with the places that a trace found, as targets of TargetMemory::apply.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "codec/item.h"
#include "dcr/ports.h"
#include "dcr/status.h"
#include "tensor/box.h"

namespace dcr {

// Some of a tensor's elements on this rank.
struct Place {
  std::uint64_t storage = 0;
  std::uint8_t width = 1;
  Box box;  // canonical word → word of the storage; injective on both sides
};

// A tensor has at most so many places; an item may cut each in two.
inline constexpr std::size_t kPlacesMax = std::size_t{1} << 16;
inline constexpr std::size_t kTargetsMax = 2 * kPlacesMax;

// The targets of an item: one per place where strides divide each other, whatever the places'
// sizes. Error kUnsupported where more than kTargetsMax would be needed. Encodings are left to the
// caller.
Result<std::vector<TargetChanges>> plan_item(const ItemBox& item, std::span<const Place> places);

// An item's words in a copy of its whole tensor at the begin of a storage.
TargetChanges whole_target(const ItemHeader& item, std::uint64_t storage);

// Remembers plans: owners cut their tensors into the same items every time. Not thread-safe.
class PlanCache {
 public:
  explicit PlanCache(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}

  using Plan = std::shared_ptr<const std::vector<TargetChanges>>;
  Result<Plan> find(std::uint32_t tensor, const ItemBox& item, std::span<const Place> places);

  void clear();
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Key {
    std::uint32_t tensor;
    std::vector<std::uint64_t> box;  // offset, then (size, stride) of each dimension
    bool operator<(const Key& other) const {
      return tensor != other.tensor ? tensor < other.tensor : box < other.box;
    }
  };

  std::uint64_t bytes_max_;
  std::uint64_t bytes_ = 0;
  std::map<Key, Plan> plans_;
};

}  // namespace dcr
