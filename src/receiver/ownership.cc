#include "receiver/ownership.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/limits.h"
#include "tensor/text.h"

namespace dcr {

namespace {

// A whole box of an item is met with one of an owner's in few boxes where strides are regular.
constexpr std::size_t kMetBoxesMax = 1024;

std::uint64_t last_word(const Box& box) {
  std::uint64_t last = box.dst_offset;
  for (const BoxDimension& dim : box.dims) last += (dim.size - 1) * dim.dst_stride;
  return last;
}

std::string owner_text(std::uint32_t owner) { return "owner " + std::to_string(owner); }

}  // namespace

Box word_set(const ItemBox& box) {
  Box set{box.offset, box.offset, {}};
  for (const ItemDimension& dim : box.dims) set.dims.push_back({dim.size, dim.stride, dim.stride});
  return set;
}

Box position_box(const ItemBox& box) {
  Box map{0, box.offset, {}};
  std::uint64_t positions = 1;
  for (std::size_t i = box.dims.size(); i-- > 0;) {
    map.dims.insert(map.dims.begin(), {box.dims[i].size, positions, box.dims[i].stride});
    positions *= box.dims[i].size;
  }
  return map;
}

Result<Ownership> Ownership::make(const Catalogue& catalogue,
                                  std::vector<std::vector<OwnerBox>> owners) {
  Ownership made;
  made.boxes_.resize(owners.size());
  made.shared_.resize(catalogue.size(), false);
  std::vector<std::vector<Box>> all(catalogue.size());
  for (std::uint32_t owner = 0; owner < owners.size(); ++owner) {
    for (const OwnerBox& owned : owners[owner]) {
      if (owned.tensor >= catalogue.size()) {
        return Status(Code::kInvalidArgument, owner_text(owner) + " has a box of tensor " +
                                                  std::to_string(owned.tensor) + " of " +
                                                  std::to_string(catalogue.size()));
      }
      const CanonicalTensor& tensor = catalogue[owned.tensor];
      const Box box = word_set(owned.box);
      const Status valid = validate_box(box, tensor.words, tensor.words);
      if (!valid.ok()) {
        return Status(Code::kInvalidArgument,
                      "tensor " + quoted_name(tensor.name) + ", " + owner_text(owner) + ": " +
                          valid.message(),
                      tensor.name);
      }
      if (box.elements() == 0) continue;
      made.boxes_[owner][owned.tensor].push_back(box);
      all[owned.tensor].push_back(box);
    }
  }
  for (std::uint32_t tensor = 0; tensor < catalogue.size(); ++tensor) {
    made.shared_[tensor] = !destinations_disjoint(all[tensor]);
  }
  return made;
}

Status Ownership::check(const Catalogue& catalogue, std::uint32_t owner, std::uint32_t tensor,
                        const ItemBox& item) const {
  const auto fault = [&](Code code, const std::string& what) {
    const std::string& name = catalogue[tensor].name;
    return Status(
        code, "tensor " + quoted_name(name) + ": " + owner_text(owner) + " sent an item " + what,
        name);
  };
  const auto outside = [&] { return fault(Code::kMismatch, "outside of what it owns"); };
  if (owner >= boxes_.size()) return outside();
  const auto found = boxes_[owner].find(tensor);
  if (found == boxes_[owner].end()) return outside();
  const Box set = word_set(item);
  const std::uint64_t last = last_word(set);
  // Boxes of one owner may overlap where a tensor is shared; one that holds the item is enough.
  std::uint64_t met = 0;
  for (const Box& box : found->second) {
    if (box.dst_offset > last || last_word(box) < set.dst_offset) continue;
    const Result<std::vector<Box>> common = compose(set, box, kMetBoxesMax);
    if (!common.ok()) {
      return fault(common.status().code(),
                   "that cannot be compared with what it owns: " + common.status().message());
    }
    std::uint64_t words = 0;
    for (const Box& piece : *common) words += piece.elements();
    if (words == set.elements()) return {};
    met += words;
  }
  return met == set.elements() && !shared_[tensor] ? Status() : outside();
}

}  // namespace dcr
