// Boxes and placements: the one structure for where elements go.
//
// A box maps one flat index space to another: element (i0, i1, …) of the rectangle lies at
// src_offset + Σ i_d · src_stride_d in the source and at dst_offset + Σ i_d · dst_stride_d in the
// destination. Offsets, sizes and strides count elements. A placement is a list of boxes from one
// tensor's space to those of others. Everything that the paper (§4, Appendix A.1) calls affine is a
// placement.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "dcr/status.h"

namespace dcr {

struct BoxDimension {
  std::uint64_t size = 1;
  std::uint64_t src_stride = 1;
  std::uint64_t dst_stride = 1;
  bool operator==(const BoxDimension&) const = default;
};

struct Box {
  std::uint64_t src_offset = 0;
  std::uint64_t dst_offset = 0;
  std::vector<BoxDimension> dims;  // outermost first; empty: one element
  bool operator==(const Box&) const = default;

  // Product of the sizes. REQUIRES: validated.
  std::uint64_t elements() const;
};

// One contiguous piece on both sides.
struct Run {
  std::uint64_t src = 0;
  std::uint64_t dst = 0;
  std::uint64_t length = 0;
  bool operator==(const Run&) const = default;
};

// One destination tensor's share of a placement.
struct PlacementPart {
  std::uint32_t destination = 0;  // index of the destination tensor
  Box box;
  bool operator==(const PlacementPart&) const = default;
};
using Placement = std::vector<PlacementPart>;

// Checks a box from outside: rank within kRankMax and the product of sizes (those that are not 0)
// within kElementsMax, else kTooLarge; every index that it reaches below `src_elements` and
// `dst_elements`, else kCorrupt. Nothing overflows. A valid box may still reach an index twice: see
// destinations_disjoint. All functions below REQUIRE valid boxes.
Status validate_box(const Box& box, std::uint64_t src_elements, std::uint64_t dst_elements);

// The canonical form of the same map in the same order of elements: no dimension of size 1,
// dimensions that are contiguous on both sides merged, a box with no elements has one dimension of
// size 0.
Box normalize(Box box);

// Source and destination exchanged. The order of elements stays.
Box invert(Box box);

// The map "first, then second": boxes that together map each element whose destination under
// `first` is a source of `second`, in no certain order; each has at most kRankMax dimensions.
// REQUIRES: both injective in the space between them. Takes time in the number of boxes of the
// result where strides divide each other (slices, permutations and reshapes of tensors), and at
// most in the number of indices along some of the dimensions. Error kUnsupported if that gives more
// than `boxes_max` boxes or takes more than kComposeStepsMax steps.
inline constexpr std::uint64_t kComposeStepsMax = std::uint64_t{1} << 20;
Result<std::vector<Box>> compose(const Box& first, const Box& second, std::size_t boxes_max);

// Calls `visit` for each maximal contiguous run in the box's order; stops early when it returns
// false.
void for_each_run(const Box& box, const std::function<bool(const Run&)>& visit);

// Destination of the source index, if the box contains it. REQUIRES: injective on the source side.
// Takes time in the rank where each source stride is beyond the reach of the smaller ones.
std::optional<std::uint64_t> map_index(const Box& box, std::uint64_t src);

// Whether no destination element is reached twice by one box or by two boxes of the list (same
// destination tensor). Takes O(n log n) for n boxes, and where several interleave irregularly also
// for the runs of those.
bool destinations_disjoint(const std::vector<Box>& boxes);

// Whether the boxes' destinations cover [0, elements) exactly once. On failure the Status
// (kMismatch) names the first gap, overlap or element past the end by flat index. Takes time as
// destinations_disjoint does.
Status covers_exactly_once(const std::vector<Box>& boxes, std::uint64_t elements);

// Cuts a box into pieces of at most `elements_max` elements, whole rows where possible, by a rule
// that depends on the box alone. The pieces, in order, have the elements of the box in its order;
// they are normalized, and a box without elements has none. REQUIRES: elements_max > 0.
std::vector<Box> split(const Box& box, std::uint64_t elements_max);

}  // namespace dcr
