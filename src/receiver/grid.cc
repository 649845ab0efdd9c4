#include "receiver/grid.h"

#include <algorithm>
#include <bit>

#include "base/assert.h"

namespace dcr {

Grid::Grid(const TargetChanges& target)
    : first_(static_cast<std::uint32_t>(target.first)), offset_(target.offset) {
  for (std::size_t i = target.dims.size(); i-- > 0;) {
    const TargetChanges::Dimension& dim = target.dims[i];
    empty_ = empty_ || dim.begin == dim.end;
    const auto size = static_cast<std::uint32_t>(dim.size);
    const auto log = static_cast<unsigned>(std::bit_width(dim.size - 1));
    const unsigned shift = 31 + log;
    axes_.push_back({size, static_cast<std::uint32_t>(dim.begin),
                     static_cast<std::uint32_t>(dim.end - dim.begin), dim.stride,
                     (std::uint64_t{1} << shift) / size + 1, shift});
    if (i > 0) inner_ *= dim.size;
  }
  if (axes_.empty()) axes_.push_back({1, 0, 1, 1, (std::uint64_t{1} << 31) + 1, 31});
}

void Grid::clip(std::span<const std::uint32_t> positions, std::size_t* from,
                std::size_t* to) const {
  *from = *to = 0;
  if (empty_) return;
  const Axis& outer = axes_.back();
  const std::uint64_t begin = outer.begin * inner_;
  const std::uint64_t end = begin + outer.extent * inner_;
  const auto below = [this](std::uint32_t position, std::uint64_t index) {
    return std::uint64_t{position} + first_ < index;
  };
  const auto low = std::lower_bound(positions.begin(), positions.end(), begin, below);
  *from = static_cast<std::size_t>(low - positions.begin());
  *to = static_cast<std::size_t>(std::lower_bound(low, positions.end(), end, below) -
                                 positions.begin());
}

namespace {

// The first place from `from` on whose position is not below `target`. `rate`: places per unit of
// position, times 2^32; where it predicts well this takes a few vector compares.
std::size_t seek(std::span<const std::uint32_t> positions, std::size_t from, std::uint32_t target,
                 std::uint64_t rate) {
  constexpr std::size_t kReach = 16;
  const std::size_t guess = std::min(
      positions.size(), from + static_cast<std::size_t>(((target - positions[from]) * rate) >> 32));
  const std::size_t low = std::max(from, guess - std::min(guess, kReach));
  const std::size_t high = low + 2 * kReach;
  if (high > positions.size() || positions[low] >= target || positions[high - 1] < target) {
    const auto begin = positions.begin() + static_cast<std::ptrdiff_t>(from);
    return static_cast<std::size_t>(std::lower_bound(begin, positions.end(), target) -
                                    positions.begin());
  }
  std::uint32_t below = 0;
  const std::uint32_t* at = positions.data() + low;
  for (std::size_t i = 0; i < 2 * kReach; ++i) below += at[i] < target ? 1u : 0u;
  return low + below;
}

}  // namespace

// Rows of which a window is hit, where so many positions lie in a row that seeking the window is
// quicker than looking at each.
void Grid::map_rows(std::span<const std::uint32_t> positions, std::uint64_t rate,
                    GridHits* hits) const {
  const Axis inner = axes_[0];
  const Axis outer = axes_[1];
  const std::size_t size = positions.size();
  std::size_t count = 0;
  for (std::size_t at = 0; at < size;) {
    const std::uint32_t index = positions[at] + first_;
    auto row = static_cast<std::uint32_t>((index * inner.multiplier) >> inner.shift);
    if (index - row * inner.size >= inner.begin + inner.extent) ++row;
    if (row < outer.begin) row = outer.begin;
    if (row - outer.begin >= outer.extent) break;
    const std::uint32_t begin = row * inner.size + inner.begin;
    if (index < begin) at = seek(positions, at, begin - first_, rate);
    const std::uint64_t word = offset_ + std::uint64_t{row - outer.begin} * outer.stride;
    for (; at < size; ++at) {
      const std::uint32_t column = positions[at] + first_ - begin;
      if (column >= inner.extent) break;
      hits->words[count] = word + column * inner.stride;
      hits->places[count++] = static_cast<std::uint32_t>(at);
    }
  }
  hits->count = count;
}

void Grid::map(std::span<const std::uint32_t> positions, GridHits* hits) const {
  DCR_ASSERT(positions.size() <= kGridBlock);
  hits->count = 0;
  if (positions.empty()) return;
  if (axes_.size() == 2) {  // rows and a window of columns: by far the commonest
    constexpr std::uint64_t kPerRow = 8;
    const std::uint64_t extent = std::uint64_t{positions.back()} - positions[0] + 1;
    if (positions.size() * axes_[0].size >= kPerRow * extent) {
      return map_rows(positions, (std::uint64_t{positions.size()} << 32) / extent, hits);
    }
  }
  std::size_t count = 0;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    std::uint32_t index = positions[i] + first_;
    std::uint64_t word = offset_;
    bool inside = true;
    for (std::size_t axis = 0; axis + 1 < axes_.size(); ++axis) {
      const Axis& at = axes_[axis];
      const auto quotient = static_cast<std::uint32_t>((index * at.multiplier) >> at.shift);
      const std::uint32_t digit = index - quotient * at.size - at.begin;
      inside = inside && digit < at.extent;
      word += digit * at.stride;
      index = quotient;
    }
    const std::uint32_t digit = index - axes_.back().begin;
    inside = inside && digit < axes_.back().extent;
    hits->words[count] = word + digit * axes_.back().stride;
    hits->places[count] = static_cast<std::uint32_t>(i);
    count += inside ? 1 : 0;
  }
  hits->count = count;
}

}  // namespace dcr
