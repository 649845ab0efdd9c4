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

// What a group of threads does at a time: so many changes of one target, or fewer, its last ones.
inline constexpr std::uint32_t kDeviceTurn = 256;

// Changes for one target, all of it in the device's memory.
struct DeviceChanges {
  DeviceGrid grid;
  std::uint8_t width = 1;  // bytes of a word
  Encoding encoding = Encoding::kOverwrite;
  bool verify = false;  // writes nothing; counts words that differ
  void* storage = nullptr;
  const std::uint32_t* positions = nullptr;
  const void* values = nullptr;  // aligned to words
  std::uint64_t count = 0;
  DeviceCounts* counts = nullptr;  // added to
  std::uint64_t first_turn = 0;    // of the batch's turns
};

// Changes for several targets, which are made at once: they reach different words, or give a word
// the same bits.
struct DeviceBatch {
  const DeviceChanges* targets = nullptr;  // in the device's memory, with ascending turns
  std::uint32_t count = 0;                 // at least one
  std::uint64_t turns = 0;                 // of all of them
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

// Returns whether the position is this receiver's, and sets whether the resident word differs from
// an overwrite's.
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

// The target whose turn it is. REQUIRES: turn < batch.turns.
DCR_ANYWHERE inline const DeviceChanges& target_of(const DeviceBatch& batch, std::uint64_t turn) {
  const DeviceChanges* from = batch.targets;
  for (std::uint32_t count = batch.count; count > 1;) {
    const std::uint32_t half = count / 2;
    if (from[half].first_turn <= turn) {
      from += half;
      count -= half;
    } else {
      count = half;
    }
  }
  return *from;
}

// What thread `thread` does in a turn, as apply_change says it; there may be no change for it.
DCR_ANYWHERE inline bool apply_turn(const DeviceChanges& changes, std::uint64_t turn,
                                    std::uint32_t thread, bool* different) {
  const std::uint64_t at = (turn - changes.first_turn) * kDeviceTurn + thread;
  *different = false;
  if (at >= changes.count) return false;
  const auto apply = [&]<typename Word>(Word) {
    return apply_change(changes.grid, changes.encoding, changes.verify,
                        static_cast<Word*>(changes.storage), changes.positions[at],
                        static_cast<const Word*>(changes.values)[at], different);
  };
  switch (changes.width) {
    case 1:
      return apply(std::uint8_t{});
    case 2:
      return apply(std::uint16_t{});
    case 4:
      return apply(std::uint32_t{});
    default:
      return apply(std::uint64_t{});
  }
}

}  // namespace dcr
