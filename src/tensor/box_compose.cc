// Composition of boxes. Each box is, in the space between the two, a sum of arithmetic
// progressions; the two sums are met axis by axis, largest stride first, cutting one so that
// strides agree.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/limits.h"
#include "tensor/box.h"

namespace dcr {

namespace {

// Indices, strides and differences of them: valid boxes stay below 2^62.
using Int = std::int64_t;
// Products of two of those.
__extension__ using Wide = __int128;

Int floor_divide(Int a, Int b) { return a / b - (a % b < 0 ? 1 : 0); }  // REQUIRES: b > 0
Int ceil_divide(Int a, Int b) { return -floor_divide(-a, b); }

struct SideAxis {
  Int size = 1;
  Int stride = 1;  // in the space between
  Int far = 1;     // in the first box's source, or the second's destination
};

// One box as it is seen from the space between.
struct Side {
  Int base = 0;
  Int far = 0;
  std::vector<SideAxis> axes;  // sizes above 1, descending strides

  Int reach() const {
    Int reach = 0;
    for (const SideAxis& axis : axes) reach += (axis.size - 1) * axis.stride;
    return reach;
  }

  // The part at index `i` of the first axis, without that axis.
  Side at(Int i) const {
    Side part{base + i * axes[0].stride, far + i * axes[0].far, {}};
    part.axes.assign(axes.begin() + 1, axes.end());
    return part;
  }

  // The part at indices [i, i + size) of the first axis.
  Side range(Int i, Int size) const {
    Side part = at(i);
    if (size > 1) part.axes.insert(part.axes.begin(), {size, axes[0].stride, axes[0].far});
    return part;
  }
};

Int signed_index(std::uint64_t value) {
  DCR_ASSERT(value <= std::uint64_t{1} << 62);
  return static_cast<Int>(value);
}

// REQUIRES: normalized, with elements. The space between is the destination of `box`.
Side side_of(const Box& box) {
  Side side{signed_index(box.dst_offset), signed_index(box.src_offset), {}};
  for (const BoxDimension& dim : box.dims) {
    DCR_ASSERT(dim.dst_stride > 0);  // injective
    side.axes.push_back(
        {signed_index(dim.size), signed_index(dim.dst_stride), signed_index(dim.src_stride)});
  }
  std::sort(side.axes.begin(), side.axes.end(),
            [](const SideAxis& a, const SideAxis& b) { return a.stride > b.stride; });
  return side;
}

BoxDimension dimension(Int size, Int src_stride, Int dst_stride) {
  return {static_cast<std::uint64_t>(size), static_cast<std::uint64_t>(src_stride),
          static_cast<std::uint64_t>(dst_stride)};
}

// Adds lists of boxes one after another; lists that are the same but for a constant distance become
// one list with one more dimension.
class Stacker {
 public:
  explicit Stacker(std::vector<Box>* out) : out_(out) {}

  void add(std::vector<Box> next) {
    if (next.empty()) return;
    if (count_ == 1 && next.size() == group_.size()) {
      src_step_ = next[0].src_offset - group_[0].src_offset;
      dst_step_ = next[0].dst_offset - group_[0].dst_offset;
    }
    if (count_ > 0 && follows(next)) {
      ++count_;
      return;
    }
    flush();
    group_ = std::move(next);
    count_ = 1;
  }

  void flush() {
    for (Box& box : group_) {
      if (count_ > 1) box.dims.insert(box.dims.begin(), {count_, src_step_, dst_step_});
      out_->push_back(std::move(box));
    }
    group_.clear();
    count_ = 0;
  }

 private:
  bool follows(const std::vector<Box>& next) const {
    // Strides are not negative; a step back wraps to above 2^63.
    if (next.size() != group_.size() || src_step_ >> 63 != 0 || dst_step_ >> 63 != 0) return false;
    for (std::size_t i = 0; i < next.size(); ++i) {
      if (next[i].src_offset != group_[i].src_offset + count_ * src_step_ ||
          next[i].dst_offset != group_[i].dst_offset + count_ * dst_step_ ||
          next[i].dims != group_[i].dims) {
        return false;
      }
    }
    return true;
  }

  std::vector<Box>* out_;
  std::vector<Box> group_;  // the first of `count_` lists
  std::uint64_t count_ = 0;
  std::uint64_t src_step_ = 0;
  std::uint64_t dst_step_ = 0;
};

class Composer {
 public:
  explicit Composer(std::size_t boxes_max) : boxes_max_(boxes_max) {}

  // Appends the boxes that map the indices common to both.
  Status meet(const Side& first, const Side& second, std::vector<Box>* out) {
    if (++steps_ > kComposeStepsMax) {
      return Status(Code::kUnsupported, "composing two boxes takes more than " +
                                            std::to_string(kComposeStepsMax) + " steps");
    }
    if (first.base > second.base + second.reach() || second.base > first.base + first.reach()) {
      return {};
    }
    DCR_TRY(meet_overlapping(first, second, out));
    if (out->size() <= boxes_max_) return {};
    return Status(Code::kUnsupported, "the composition of two boxes needs more than " +
                                          std::to_string(boxes_max_) + " boxes");
  }

 private:
  Status meet_overlapping(const Side& first, const Side& second, std::vector<Box>* out) {
    if (first.axes.empty() && second.axes.empty()) {
      if (first.base == second.base) add_box(first.far, second.far, {}, out);
      return {};
    }
    if (first.axes.size() == 1 && second.axes.size() == 1) {
      meet_progressions(first, second, out);
      return {};
    }
    const Int first_stride = first.axes.empty() ? 0 : first.axes[0].stride;
    const Int second_stride = second.axes.empty() ? 0 : second.axes[0].stride;
    if (first_stride == second_stride) return meet_equal(first, second, out);
    const bool first_is_larger = first_stride > second_stride;
    const Side& larger = first_is_larger ? first : second;
    const Side& smaller = first_is_larger ? second : first;
    const std::vector<Side> parts = cut(larger, smaller);
    if (parts.empty()) return meet_each(larger, smaller, first_is_larger, out);
    for (const Side& part : parts) {
      DCR_TRY(first_is_larger ? meet(larger, part, out) : meet(part, larger, out));
    }
    return {};
  }

  static void add_box(Int src, Int dst, std::vector<BoxDimension> dims, std::vector<Box>* out) {
    out->push_back(
        {static_cast<std::uint64_t>(src), static_cast<std::uint64_t>(dst), std::move(dims)});
  }

  // base1 + i · stride1 = base2 + j · stride2: the solutions are one progression.
  static void meet_progressions(const Side& first, const Side& second, std::vector<Box>* out) {
    const SideAxis& a = first.axes[0];
    const SideAxis& b = second.axes[0];
    const Int divisor = std::gcd(a.stride, b.stride);
    const Int delta = second.base - first.base;
    if (delta % divisor != 0) return;
    const Int i_step = b.stride / divisor;
    const Int j_step = a.stride / divisor;
    const Wide product = Wide{delta / divisor} * inverse(j_step % i_step, i_step);
    const auto remainder = static_cast<Int>(product % i_step);
    const Int i = remainder < 0 ? remainder + i_step : remainder;  // the lowest that can be
    if (i >= a.size) return;
    const Int j = (i * a.stride - delta) / b.stride;  // exact; may be below 0
    const Int low = j < 0 ? ceil_divide(-j, j_step) : 0;
    const Int high = std::min((a.size - 1 - i) / i_step, floor_divide(b.size - 1 - j, j_step));
    if (low > high) return;
    std::vector<BoxDimension> dims;
    if (high > low) dims = {dimension(high - low + 1, i_step * a.far, j_step * b.far)};
    add_box(first.far + (i + low * i_step) * a.far, second.far + (j + low * j_step) * b.far,
            std::move(dims), out);
  }

  // The inverse of `value` modulo `modulus` (extended Euclid). REQUIRES: coprime.
  static Int inverse(Int value, Int modulus) {
    Int r0 = modulus;
    Int r1 = value;
    Int t0 = 0;
    Int t1 = 1;
    while (r1 != 0) {
      const Int quotient = r0 / r1;
      r0 = std::exchange(r1, r0 - quotient * r1);
      t0 = std::exchange(t1, t0 - quotient * t1);
    }
    return t0 < 0 ? t0 + modulus : t0;
  }

  // First axes with the same stride D: with i and j along them and x and y the rest of each side,
  // (i − j) · D = delta + y − x, so i − j takes one of few values; for each the rests are met once.
  Status meet_equal(const Side& first, const Side& second, std::vector<Box>* out) {
    const SideAxis& a = first.axes[0];
    const SideAxis& b = second.axes[0];
    const Int delta = second.base - first.base;
    const Int low = std::max(ceil_divide(delta - first.at(0).reach(), a.stride), -(b.size - 1));
    const Int high = std::min(floor_divide(delta + second.at(0).reach(), a.stride), a.size - 1);
    for (Int k = low; k <= high; ++k) {
      const Int i = std::max<Int>(0, k);
      const Int count = std::min(a.size - 1, b.size - 1 + k) - i + 1;
      std::vector<Box> boxes;
      DCR_TRY(meet(first.at(i), second.at(i - k), &boxes));
      for (Box& box : boxes) {
        if (count > 1) box.dims.insert(box.dims.begin(), dimension(count, a.far, b.far));
        out->push_back(std::move(box));
      }
    }
    return {};
  }

  // Cuts the first axis of `smaller` into steps of the larger stride and what is left behind them.
  // Empty if that is no gain.
  static std::vector<Side> cut(const Side& larger, const Side& smaller) {
    if (smaller.axes.empty()) return {};
    const SideAxis& axis = smaller.axes[0];
    const Int stride = larger.axes[0].stride;
    if (stride % axis.stride != 0) return {};
    const Int per_step = stride / axis.stride;
    const Int steps = axis.size / per_step;
    if (steps < 2) return {};
    std::vector<Side> parts = {smaller.range(0, per_step)};
    parts[0].axes.insert(parts[0].axes.begin(), {steps, stride, axis.far * per_step});
    const Int done = steps * per_step;
    if (done < axis.size) parts.push_back(smaller.range(done, axis.size - done));
    return parts;
  }

  // Meets each index along the larger stride by itself.
  Status meet_each(const Side& larger, const Side& smaller, bool first_is_larger,
                   std::vector<Box>* out) {
    const SideAxis& axis = larger.axes[0];
    const Int delta = smaller.base - larger.base;
    const Int low = std::max<Int>(0, ceil_divide(delta - larger.at(0).reach(), axis.stride));
    const Int high = std::min(axis.size - 1, floor_divide(delta + smaller.reach(), axis.stride));
    Stacker stacker(out);
    for (Int i = low; i <= high; ++i) {
      std::vector<Box> boxes;
      DCR_TRY(first_is_larger ? meet(larger.at(i), smaller, &boxes)
                              : meet(smaller, larger.at(i), &boxes));
      stacker.add(std::move(boxes));
      if (out->size() > boxes_max_) break;  // meet() has the words
    }
    stacker.flush();
    return {};
  }

  std::size_t boxes_max_;
  std::uint64_t steps_ = 0;
};

// Appends `box` normalized and with at most kRankMax dimensions.
void append_flat(Box box, std::size_t boxes_max, std::vector<Box>* out) {
  box = normalize(std::move(box));
  if (box.dims.size() <= kRankMax) {
    out->push_back(std::move(box));
    return;
  }
  const BoxDimension outer = box.dims[0];
  box.dims.erase(box.dims.begin());
  for (std::uint64_t i = 0; i < outer.size && out->size() <= boxes_max; ++i) {
    append_flat(box, boxes_max, out);
    box.src_offset += outer.src_stride;
    box.dst_offset += outer.dst_stride;
  }
}

}  // namespace

Result<std::vector<Box>> compose(const Box& first, const Box& second, std::size_t boxes_max) {
  const Box one = normalize(first);
  const Box two = normalize(invert(second));
  std::vector<Box> met;
  if (one.elements() == 0 || two.elements() == 0) return met;
  DCR_TRY(Composer(boxes_max).meet(side_of(one), side_of(two), &met));
  std::vector<Box> flat;
  for (Box& box : met) append_flat(std::move(box), boxes_max, &flat);
  if (flat.size() <= boxes_max) return flat;
  return Status(Code::kUnsupported, "the composition of two boxes needs more than " +
                                        std::to_string(boxes_max) + " boxes");
}

}  // namespace dcr
