// The arithmetic of kernels, word by word, for the device and, to test it, for the host.
#pragma once

#include <cstdint>

#include "base/limits.h"
#include "dcr/options.h"
#include "tensor/target.h"

#ifdef __CUDACC__
#define DCR_ANYWHERE __host__ __device__
#else
#define DCR_ANYWHERE
#endif

namespace dcr {

// TargetChanges' dimensions, by value, as a kernel takes them. Innermost first.
struct DeviceGrid {
  struct Axis {
    std::uint32_t size = 1;
    std::uint32_t begin = 0;
    std::uint32_t extent = 1;  // the window is [begin, begin + extent)
    std::uint64_t stride = 1;
  };
  std::uint32_t first = 0;
  std::uint64_t offset = 0;
  std::uint32_t rank = 0;
  Axis axes[kGridRankMax];
};

// A view, innermost first.
struct DeviceView {
  std::uint64_t offset = 0;
  std::uint32_t rank = 0;
  std::uint64_t sizes[kRankMax] = {};
  std::uint64_t strides[kRankMax] = {};
};

struct DeviceCounts {
  std::uint64_t words = 0;
  std::uint64_t different = 0;
};

// The storage's word of a position; false: it lies with another receiver.
DCR_ANYWHERE inline bool locate(const DeviceGrid& grid, std::uint32_t position,
                                std::uint64_t* word) {
  std::uint32_t index = position + grid.first;
  *word = grid.offset;
  if (grid.rank == 0) return index == 0;
  for (std::uint32_t i = 0; i < grid.rank; ++i) {
    const DeviceGrid::Axis& axis = grid.axes[i];
    const bool outermost = i + 1 == grid.rank;
    const std::uint32_t quotient = outermost ? 0 : index / axis.size;
    // Below `begin` it wraps, and is above any extent.
    const std::uint32_t digit = index - quotient * axis.size - axis.begin;
    if (digit >= axis.extent) return false;
    *word += digit * axis.stride;
    index = quotient;
  }
  return true;
}

DCR_ANYWHERE inline std::uint64_t view_word(const DeviceView& view, std::uint64_t index) {
  std::uint64_t word = view.offset;
  for (std::uint32_t i = 0; i < view.rank; ++i) {
    const std::uint64_t quotient = index / view.sizes[i];
    word += (index - quotient * view.sizes[i]) * view.strides[i];
    index = quotient;
  }
  return word;
}

// A new word from the resident one and a value, as docs/FORMAT.md "Encodings" has it.
template <typename Word>
DCR_ANYWHERE Word changed_word(Encoding encoding, Word resident, Word value) {
  const Word one_more = static_cast<Word>(value + 1);
  if (encoding == Encoding::kXor) return static_cast<Word>(resident ^ one_more);
  if (encoding == Encoding::kAdd) {
    const Word sign = static_cast<Word>(Word{0} - static_cast<Word>(one_more & 1));
    return static_cast<Word>(resident + static_cast<Word>(static_cast<Word>(one_more >> 1) ^ sign));
  }
  return value;
}

// What one thread does: change number `at`. Returns whether the position is this receiver's, and
// sets whether the resident word differs from an overwrite's.
template <typename Word>
DCR_ANYWHERE bool apply_change(const DeviceGrid& grid, Encoding encoding, bool verify,
                               Word* storage, std::uint32_t position, Word value, bool* different) {
  std::uint64_t word = 0;
  *different = false;
  if (!locate(grid, position, &word)) return false;
  if (verify) {
    *different = storage[word] != value;
  } else {
    storage[word] = changed_word(encoding, storage[word], value);
  }
  return true;
}

}  // namespace dcr
