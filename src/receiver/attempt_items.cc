#include "receiver/attempt_items.h"

#include <algorithm>
#include <string>

#include "receiver/plan.h"
#include "simd/words.h"
#include "tensor/text.h"

namespace dcr {

namespace {

// What a map's node or a box takes, about; and each of a box's dimensions.
constexpr std::uint64_t kNodeBytes = 80;

Status twice(const CanonicalTensor& tensor, std::uint32_t first, std::uint32_t second,
             const std::string& what) {
  return Status(
      Code::kMismatch,
      "tensor " + quoted_name(tensor.name) + ": " +
          (first == second ? "owner " + std::to_string(first)
                           : "owners " + std::to_string(first) + " and " + std::to_string(second)) +
          " sent " + what,
      tensor.name);
}

}  // namespace

void AttemptItems::clear() {
  boxes_.clear();
  entries_.clear();
  bytes_ = 0;
}

Result<bool> AttemptItems::overlaps(const Boxes& boxes, const ItemBox& box) {
  const Box set = word_set(box);
  const auto meets = [&set](const Box& other) -> Result<bool> {
    DCR_ASSIGN(const std::vector<Box> common, compose(set, other, kTargetsMax));
    return !common.empty();
  };
  // Ranges that begin within the box's extent, and the one before it that may reach into it.
  auto at = boxes.ranges.upper_bound(box.offset);
  if (at != boxes.ranges.begin()) --at;
  for (; at != boxes.ranges.end() && at->first < box.end(); ++at) {
    if (at->second <= box.offset) continue;
    if (box.is_range()) return true;
    DCR_ASSIGN(const bool met, meets(word_set(ItemBox::range(at->first, at->second - at->first))));
    if (met) return true;
  }
  if (box.offset >= boxes.strided_end) return false;
  for (const Box& other : boxes.strided) {
    if (other.dst_offset >= box.end()) continue;
    DCR_ASSIGN(const bool met, meets(other));
    if (met) return true;
  }
  return false;
}

Status AttemptItems::add(const Catalogue& catalogue, const Ownership& ownership,
                         std::uint32_t owner, const DecodedItem& item) {
  const CanonicalTensor& tensor = catalogue[item.header.tensor];
  if (bytes_ > bytes_max_) {
    return Status(Code::kTooLarge, "the attempt's items take more than " +
                                       std::to_string(bytes_max_) + " bytes to remember");
  }
  if (ownership.shared(item.header.tensor)) return add_shared(tensor, owner, item);
  Boxes& boxes = boxes_[{item.header.tensor, owner}];
  const ItemBox& box = item.header.box;
  DCR_ASSIGN(const bool overlap, overlaps(boxes, box));
  if (overlap) return twice(tensor, owner, owner, "elements twice");
  bytes_ += kNodeBytes;
  if (!box.is_range()) {
    bytes_ += box.dims.size() * sizeof(BoxDimension);
    boxes.strided.push_back(word_set(box));
    boxes.strided_end = std::max(boxes.strided_end, box.end());
    return {};
  }
  auto place = boxes.ranges.emplace(box.offset, box.end()).first;
  const auto next = std::next(place);
  if (next != boxes.ranges.end() && next->first == place->second) {
    place->second = next->second;
    boxes.ranges.erase(next);
    bytes_ -= kNodeBytes;
  }
  if (place != boxes.ranges.begin() && std::prev(place)->second == place->first) {
    std::prev(place)->second = place->second;
    boxes.ranges.erase(place);
    bytes_ -= kNodeBytes;
  }
  return {};
}

// Every element by itself.
Status AttemptItems::add_shared(const CanonicalTensor& tensor, std::uint32_t owner,
                                const DecodedItem& item) {
  std::map<std::uint64_t, Entry>& entries = entries_[item.header.tensor];
  const Box map = position_box(item.header.box);
  for (std::size_t i = 0; i < item.positions.size(); ++i) {
    const std::uint64_t index = *map_index(map, item.positions[i]);
    const std::uint64_t word =
        for_width(item.header.width, [&]<typename Word>(Word) -> std::uint64_t {
          return load_word<Word>(item.values.data(), i);
        });
    const auto [at, added] = entries.emplace(index, Entry{word, owner});
    if (added) {
      bytes_ += kNodeBytes;
    } else if (at->second.word != word || item.header.encoding != Encoding::kOverwrite) {
      return twice(tensor, at->second.owner, owner,
                   "different bits for element " + std::to_string(index));
    }
    if (bytes_ > bytes_max_) {
      return Status(Code::kTooLarge, "the attempt's shared elements take more than " +
                                         std::to_string(bytes_max_) + " bytes to remember");
    }
  }
  return {};
}

}  // namespace dcr
