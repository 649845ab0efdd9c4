#include "receiver/index_map.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"

namespace dcr {

namespace {

// Steps back are no strides: they wrap to above 2^63.
bool forward(std::uint64_t step) { return step >> 63 == 0 && step != 0; }

std::vector<Box> runs_of_indices(std::span<const std::uint64_t> indices) {
  std::vector<Box> runs;
  for (std::size_t e = 0; e < indices.size();) {
    std::size_t end = e + 1;
    const std::uint64_t step = end < indices.size() ? indices[end] - indices[e] : 0;
    if (forward(step)) {
      while (end < indices.size() && indices[end] - indices[end - 1] == step) ++end;
    }
    Box run{indices[e], e, {}};
    if (end > e + 1) run.dims.push_back({end - e, step, 1});
    runs.push_back(std::move(run));
    e = end;
  }
  return runs;
}

// Boxes one after another that are the same but for a constant distance become one.
std::vector<Box> stack(const std::vector<Box>& boxes) {
  std::vector<Box> stacked;
  for (std::size_t at = 0; at < boxes.size();) {
    std::size_t end = at + 1;
    Box box = boxes[at];
    if (end < boxes.size() && boxes[end].dims == box.dims && box.dims.size() < kRankMax) {
      const std::uint64_t src = boxes[end].src_offset - box.src_offset;
      const std::uint64_t dst = boxes[end].dst_offset - box.dst_offset;
      while (forward(src) && end < boxes.size() && boxes[end].dims == box.dims &&
             boxes[end].src_offset - boxes[end - 1].src_offset == src &&
             boxes[end].dst_offset - boxes[end - 1].dst_offset == dst) {
        ++end;
      }
      if (end > at + 1) box.dims.insert(box.dims.begin(), {end - at, src, dst});
      if (!injective(box)) {
        stacked.insert(stacked.end(), boxes.begin() + static_cast<std::ptrdiff_t>(at),
                       boxes.begin() + static_cast<std::ptrdiff_t>(end));
        at = end;
        continue;
      }
    }
    stacked.push_back(std::move(box));
    at = end;
  }
  return stacked;
}

}  // namespace

bool injective(const Box& box) {
  std::vector<BoxDimension> dims = normalize(box).dims;
  std::sort(dims.begin(), dims.end(), [](const BoxDimension& a, const BoxDimension& b) {
    return a.src_stride < b.src_stride;
  });
  std::uint64_t reach = 1;
  for (const BoxDimension& dim : dims) {
    if (dim.src_stride < reach) return false;
    reach += (dim.size - 1) * dim.src_stride;
  }
  return true;
}

std::vector<Box> boxes_of_indices(std::span<const std::uint64_t> indices) {
  std::vector<Box> boxes = runs_of_indices(indices);
  for (std::size_t before = boxes.size() + 1; boxes.size() < before;) {
    before = boxes.size();
    boxes = stack(boxes);
  }
  for (Box& box : boxes) box = normalize(std::move(box));
  return boxes;
}

}  // namespace dcr
