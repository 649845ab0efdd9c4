// Views as boxes, and in pieces that fit a buffer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "dcr/ports.h"
#include "dcr/status.h"
#include "tensor/box.h"
#include "tensor/catalogue.h"
#include "tensor/target.h"
#include "tensor/view.h"

namespace dcr {

// Bytes that are read or written at a time.
inline constexpr std::uint64_t kViewBlockBytes = std::uint64_t{1} << 18;

// The view's elements, counted in the order of its indices → words of its storage.
Box view_box(const TensorView& view);

// A part of a view: elements [first, first + words), as a view.
struct ViewBlock {
  TensorView view;
  std::uint64_t first = 0;
  std::uint64_t words = 0;
};

// Calls `visit` for consecutive blocks of at most kViewBlockBytes; the first error ends it.
Status for_each_block(const TensorView& view, const std::function<Status(const ViewBlock&)>& visit);

// Calls `row(word, stride, count)` for the view's elements in the order of its indices: `count` of
// them, `stride` words apart from `word` on.
template <typename Row>
void for_each_row(const TensorView& view, const Row& row) {
  std::vector<std::uint64_t> sizes, strides;  // innermost first; what is contiguous is merged
  for (std::size_t i = view.sizes.size(); i-- > 0;) {
    if (view.sizes[i] == 0) return;
    if (view.sizes[i] == 1) continue;
    if (!sizes.empty() && view.strides[i] == sizes.back() * strides.back()) {
      sizes.back() *= view.sizes[i];
    } else {
      sizes.push_back(view.sizes[i]);
      strides.push_back(view.strides[i]);
    }
  }
  if (sizes.empty()) {
    row(view.offset, std::uint64_t{1}, std::uint64_t{1});
    return;
  }
  std::vector<std::uint64_t> index(sizes.size(), 0);  // [0] stays 0
  std::uint64_t word = view.offset;
  while (true) {
    row(word, strides[0], sizes[0]);
    std::size_t axis = 1;
    while (axis < sizes.size() && index[axis] + 1 == sizes[axis]) {
      word -= index[axis] * strides[axis];
      index[axis++] = 0;
    }
    if (axis == sizes.size()) return;
    ++index[axis];
    word += strides[axis];
  }
}

// Elements [first, first + words) of a contiguous tensor's view.
TensorView range_view(const TensorView& view, std::uint64_t first, std::uint64_t words);

// "storage 3", or the name of the target that lies there.
std::string storage_text(const std::vector<LoaderTarget>& targets, std::uint64_t storage);

}  // namespace dcr
