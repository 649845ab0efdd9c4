#include "tensor/box.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/checked.h"
#include "base/limits.h"

namespace dcr {

namespace {

// The highest index that one side reaches. REQUIRES: no size is 0.
std::optional<std::uint64_t> last_index(std::uint64_t offset, const std::vector<BoxDimension>& dims,
                                        std::uint64_t BoxDimension::*stride) {
  std::optional<std::uint64_t> last = offset;
  for (const BoxDimension& dim : dims) {
    const auto reach = checked_multiply(dim.size - 1, dim.*stride);
    last = reach ? checked_add(*last, *reach) : std::nullopt;
    if (!last) return last;
  }
  return last;
}

Status check_reach(const char* side, std::optional<std::uint64_t> last, std::uint64_t elements) {
  if (last && *last < elements) return {};
  const std::string reached = last ? std::to_string(*last) : "above 2^64";
  return Status(Code::kCorrupt, std::string("the box reaches ") + side + " element " + reached +
                                    " of " + std::to_string(elements));
}

// Whether `outer` only repeats `inner` where it ends, on one side.
bool continues(std::uint64_t outer_stride, std::uint64_t inner_size, std::uint64_t inner_stride) {
  return checked_multiply(inner_size, inner_stride) == outer_stride;
}

// One dimension while an index is searched for.
struct SearchedAxis {
  BoxDimension dim;
  std::uint64_t below = 0;  // what the axes after this one reach
};

// Finds the indices along axes[at…] that sum to `rest` and adds their destination. Where each
// stride is beyond the reach of the smaller ones, there is one candidate per axis.
std::optional<std::uint64_t> find_destination(const std::vector<SearchedAxis>& axes, std::size_t at,
                                              std::uint64_t rest, std::uint64_t dst) {
  if (at == axes.size()) return rest == 0 ? std::optional(dst) : std::nullopt;
  const auto& [dim, below] = axes[at];
  const std::uint64_t low = rest > below ? divide_up(rest - below, dim.src_stride) : 0;
  const std::uint64_t high = std::min(dim.size - 1, rest / dim.src_stride);
  for (std::uint64_t i = low; i <= high; ++i) {
    const auto found =
        find_destination(axes, at + 1, rest - i * dim.src_stride, dst + i * dim.dst_stride);
    if (found) return found;
  }
  return std::nullopt;
}

}  // namespace

std::uint64_t Box::elements() const {
  std::uint64_t product = 1;
  for (const BoxDimension& dim : dims) product *= dim.size;
  return product;
}

Status validate_box(const Box& box, std::uint64_t src_elements, std::uint64_t dst_elements) {
  if (box.dims.size() > kRankMax) {
    return Status(Code::kTooLarge, "the box has " + std::to_string(box.dims.size()) +
                                       " dimensions, more than " + std::to_string(kRankMax));
  }
  std::uint64_t elements = 1;
  bool empty = false;
  for (const BoxDimension& dim : box.dims) {
    empty = empty || dim.size == 0;
    const auto product = checked_multiply(elements, std::max<std::uint64_t>(dim.size, 1));
    if (!product || *product > kElementsMax) {
      return Status(Code::kTooLarge,
                    "the box has more than " + std::to_string(kElementsMax) + " elements");
    }
    elements = *product;
  }
  if (empty) return {};
  DCR_TRY(check_reach("source", last_index(box.src_offset, box.dims, &BoxDimension::src_stride),
                      src_elements));
  return check_reach("destination", last_index(box.dst_offset, box.dims, &BoxDimension::dst_stride),
                     dst_elements);
}

Box normalize(Box box) {
  std::vector<BoxDimension>& dims = box.dims;
  std::size_t first = dims.size();  // those from here on are kept
  for (std::size_t i = dims.size(); i-- > 0;) {
    const BoxDimension dim = dims[i];
    if (dim.size == 0) return {0, 0, {{0, 1, 1}}};
    if (dim.size == 1) continue;
    if (first < dims.size() &&
        continues(dim.src_stride, dims[first].size, dims[first].src_stride) &&
        continues(dim.dst_stride, dims[first].size, dims[first].dst_stride)) {
      dims[first].size *= dim.size;
    } else {
      dims[--first] = dim;
    }
  }
  dims.erase(dims.begin(), dims.begin() + static_cast<std::ptrdiff_t>(first));
  return box;
}

Box invert(Box box) {
  std::swap(box.src_offset, box.dst_offset);
  for (BoxDimension& dim : box.dims) std::swap(dim.src_stride, dim.dst_stride);
  return box;
}

void for_each_run(const Box& box, const std::function<bool(const Run&)>& visit) {
  const Box normal = normalize(box);
  if (normal.elements() == 0) return;
  std::vector<BoxDimension> outer = normal.dims;
  Run run{normal.src_offset, normal.dst_offset, 1};
  if (!outer.empty() && outer.back().src_stride == 1 && outer.back().dst_stride == 1) {
    run.length = outer.back().size;
    outer.pop_back();
  }
  const std::uint64_t length = run.length;
  std::uint64_t src = run.src;
  std::uint64_t dst = run.dst;
  std::vector<std::uint64_t> index(outer.size(), 0);
  while (true) {
    std::size_t at = outer.size();
    while (at > 0 && index[at - 1] + 1 == outer[at - 1].size) {
      --at;
      src -= index[at] * outer[at].src_stride;
      dst -= index[at] * outer[at].dst_stride;
      index[at] = 0;
    }
    if (at == 0) break;
    ++index[at - 1];
    src += outer[at - 1].src_stride;
    dst += outer[at - 1].dst_stride;
    // A carry may continue the run although no two dimensions merge: 0 3 | 4 7 | 8 11.
    if (src == run.src + run.length && dst == run.dst + run.length) {
      run.length += length;
    } else {
      if (!visit(run)) return;
      run = {src, dst, length};
    }
  }
  visit(run);
}

std::optional<std::uint64_t> map_index(const Box& box, std::uint64_t src) {
  const Box normal = normalize(box);
  if (src < normal.src_offset || normal.elements() == 0) return std::nullopt;
  std::vector<SearchedAxis> axes;
  for (const BoxDimension& dim : normal.dims) {
    DCR_ASSERT(dim.src_stride > 0);
    axes.push_back({dim, 0});
  }
  std::sort(axes.begin(), axes.end(), [](const SearchedAxis& a, const SearchedAxis& b) {
    return a.dim.src_stride > b.dim.src_stride;
  });
  std::uint64_t below = 0;
  for (std::size_t i = axes.size(); i-- > 0;) {
    axes[i].below = below;
    below += (axes[i].dim.size - 1) * axes[i].dim.src_stride;
  }
  return find_destination(axes, 0, src - normal.src_offset, normal.dst_offset);
}

std::vector<Box> split(const Box& box, std::uint64_t elements_max) {
  DCR_ASSERT(elements_max > 0);
  const Box normal = normalize(box);
  if (normal.elements() == 0) return {};
  // Pieces are ranges along the outermost dimension of which one index is small enough.
  std::size_t cut = normal.dims.size();
  std::uint64_t inner = 1;  // elements of one index along dims[cut - 1]
  while (cut > 0 && normal.dims[cut - 1].size <= elements_max / inner) {
    inner *= normal.dims[--cut].size;
  }
  if (cut == 0) return std::vector<Box>(1, normal);
  --cut;
  const BoxDimension& along = normal.dims[cut];
  const std::uint64_t indices = elements_max / inner;
  const std::uint64_t per_row = divide_up(along.size, indices);
  std::vector<std::uint64_t> index(cut, 0);
  std::vector<Box> pieces;
  while (true) {
    Box row{normal.src_offset, normal.dst_offset, {}};
    for (std::size_t i = 0; i < cut; ++i) {
      row.src_offset += index[i] * normal.dims[i].src_stride;
      row.dst_offset += index[i] * normal.dims[i].dst_stride;
    }
    row.dims.assign(normal.dims.begin() + static_cast<std::ptrdiff_t>(cut), normal.dims.end());
    for (std::uint64_t i = 0; i < per_row; ++i) {
      Box piece = row;
      piece.src_offset += i * indices * along.src_stride;
      piece.dst_offset += i * indices * along.dst_stride;
      piece.dims[0].size = std::min(indices, along.size - i * indices);
      pieces.push_back(normalize(std::move(piece)));
    }
    std::size_t at = cut;
    while (at > 0 && ++index[at - 1] == normal.dims[at - 1].size) index[--at] = 0;
    if (at == 0) return pieces;
  }
}

}  // namespace dcr
