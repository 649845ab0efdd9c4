#include "receiver/plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "receiver/ownership.h"

namespace dcr {

namespace {

std::uint64_t last_source(const Box& box) {
  std::uint64_t last = box.src_offset;
  for (const BoxDimension& dim : box.dims) last += (dim.size - 1) * dim.src_stride;
  return last;
}

// Whether each stride is a multiple of the next one and beyond its reach. `dims` by descending
// source stride.
bool nested(const std::vector<BoxDimension>& dims) {
  for (std::size_t i = 0; i + 1 < dims.size(); ++i) {
    const std::uint64_t inner = dims[i + 1].src_stride;
    if (dims[i].src_stride % inner != 0) return false;
    if (dims[i + 1].size > dims[i].src_stride / inner) return false;
  }
  return true;
}

// The grid of a box (positions → words) whose strides are nested. Shifting the positions to a
// multiple of the largest stride lets every window but the outermost begin at 0.
void append_grid(const Box& box, std::uint64_t positions, TargetChanges target,
                 std::vector<TargetChanges>* out) {
  target.offset = box.dst_offset;
  const std::uint64_t outer = box.dims.empty() ? 1 : box.dims[0].src_stride;
  target.first = (outer - box.src_offset % outer) % outer;
  const std::uint64_t begin = (box.src_offset + target.first) / outer;
  const std::uint64_t count = box.dims.empty() ? 1 : box.dims[0].size;
  const std::uint64_t size = (positions + target.first + outer - 1) / outer;
  target.dims.push_back({std::max(size, begin + count),
                         box.dims.empty() ? 1 : box.dims[0].dst_stride, begin, begin + count});
  for (std::size_t i = 1; i < box.dims.size(); ++i) {
    const BoxDimension& dim = box.dims[i];
    target.dims.push_back(
        {box.dims[i - 1].src_stride / dim.src_stride, dim.dst_stride, 0, dim.size});
  }
  if (!box.dims.empty() && box.dims.back().src_stride > 1) {
    target.dims.push_back({box.dims.back().src_stride, 1, 0, 1});
  }
  out->push_back(std::move(target));
}

// Unrolls the outermost dimension until the rest is nested.
Status append_targets(Box box, std::uint64_t positions, const TargetChanges& target,
                      std::vector<TargetChanges>* out) {
  if (out->size() >= kTargetsMax) {
    return Status(Code::kUnsupported,
                  "an item would go to more than " + std::to_string(kTargetsMax) + " places");
  }
  if (nested(box.dims)) {
    append_grid(box, positions, target, out);
    return {};
  }
  const BoxDimension outer = box.dims[0];
  box.dims.erase(box.dims.begin());
  for (std::uint64_t i = 0; i < outer.size; ++i) {
    DCR_TRY(append_targets(box, positions, target, out));
    box.src_offset += outer.src_stride;
    box.dst_offset += outer.dst_stride;
  }
  return {};
}

}  // namespace

Result<std::vector<TargetChanges>> plan_item(const ItemBox& item, std::span<const Place> places) {
  std::vector<TargetChanges> targets;
  const std::uint64_t positions = item.words();
  if (positions == 0) return targets;
  const Box map = position_box(item);
  for (const Place& place : places) {
    if (item.end() <= place.box.src_offset || last_source(place.box) < item.offset) continue;
    DCR_ASSIGN(std::vector<Box> boxes, compose(map, place.box, kTargetsMax));
    TargetChanges target;
    target.storage = place.storage;
    target.width = place.width;
    for (Box& box : boxes) {
      box = normalize(std::move(box));
      if (box.elements() == 0) continue;
      std::stable_sort(
          box.dims.begin(), box.dims.end(),
          [](const BoxDimension& a, const BoxDimension& b) { return a.src_stride > b.src_stride; });
      DCR_TRY(append_targets(normalize(std::move(box)), positions, target, &targets));
    }
  }
  return targets;
}

TargetChanges whole_target(const ItemHeader& item, std::uint64_t storage) {
  TargetChanges target;
  target.storage = storage;
  target.width = item.width;
  target.offset = item.box.offset;
  for (const ItemDimension& dim : item.box.dims) {
    target.dims.push_back({dim.size, dim.stride, 0, dim.size});
  }
  return target;
}

Result<PlanCache::Plan> PlanCache::find(std::uint32_t tensor, const ItemBox& item,
                                        std::span<const Place> places) {
  Key key{tensor, {item.offset}};
  for (const ItemDimension& dim : item.dims) {
    key.box.push_back(dim.size);
    key.box.push_back(dim.stride);
  }
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second;
  DCR_ASSIGN(std::vector<TargetChanges> plan, plan_item(item, places));
  std::uint64_t bytes = 128 + key.box.size() * sizeof(std::uint64_t);
  for (const TargetChanges& target : plan) {
    bytes += sizeof(target) + target.dims.size() * sizeof(TargetChanges::Dimension);
  }
  if (bytes_ + bytes > bytes_max_) clear();
  bytes_ += bytes;
  auto made = std::make_shared<const std::vector<TargetChanges>>(std::move(plan));
  return plans_.emplace(std::move(key), std::move(made)).first->second;
}

void PlanCache::clear() {
  plans_.clear();
  bytes_ = 0;
}

}  // namespace dcr
