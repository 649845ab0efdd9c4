// Where the words of a box's positions lie (TargetChanges): the arithmetic of the hot loops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dcr/ports.h"
#include "tensor/target.h"

namespace dcr {

// Positions mapped at a time: their words and places stay in the first-level cache.
inline constexpr std::size_t kGridBlock = 1024;

struct GridHits {
  std::size_t count = 0;
  std::uint64_t words[kGridBlock];   // from the storage's begin
  std::uint32_t places[kGridBlock];  // in the block of positions
};

// REQUIRES: check_target succeeded.
class Grid {
 public:
  explicit Grid(const TargetChanges& target);

  // Whether positions stand for words that follow each other: position p's word is word(p).
  bool contiguous() const { return axes_.size() == 1 && axes_[0].stride == 1; }
  std::uint64_t word(std::uint32_t position) const {
    return offset_ + position + first_ - axes_[0].begin;
  }

  // The part [*from, *to) of ascending positions outside of which nothing is hit. Every one of a
  // contiguous grid's is a hit.
  void clip(std::span<const std::uint32_t> positions, std::size_t* from, std::size_t* to) const;

  // Maps at most kGridBlock positions. REQUIRES: each + first is below kGridSizeMax.
  void map(std::span<const std::uint32_t> positions, GridHits* hits) const;

 private:
  struct Axis {
    std::uint32_t size, begin, extent;  // the window is [begin, begin + extent)
    std::uint64_t stride;
    // Quotients by `size`: (g · multiplier) >> shift, exact below 2^31.
    std::uint64_t multiplier;
    unsigned shift;
  };

  void map_rows(std::span<const std::uint32_t> positions, std::uint64_t rate, GridHits* hits) const;

  std::uint32_t first_ = 0;
  std::uint64_t offset_ = 0;
  std::uint64_t inner_ = 1;  // grid indices of one step along the outermost axis
  std::vector<Axis> axes_;   // innermost first
  bool empty_ = false;
};

}  // namespace dcr
