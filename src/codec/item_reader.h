// From a validated item to its changes, and their exact application to host memory.
#pragma once

#include <cstdint>

#include "codec/payload.h"

namespace dcr {

// Changes per block. Small enough for the first-level cache.
inline constexpr std::size_t kBlockChanges = 1024;

struct ChangeBlock {
  std::size_t count = 0;
  std::uint32_t positions[kBlockChanges];  // in the box's own order, ascending
  alignas(64) std::uint8_t
      values[kBlockChanges * 8];  // `count` words of the item's width; see Kernels::scan_changes
};

// Reads the changes of one item, block by block. The view must outlive it. Cannot fail: the payload
// was validated.
class ItemReader {
 public:
  explicit ItemReader(const ItemView& item);

  // Fills the next block; false (and count 0) at the end.
  bool next(ChangeBlock* block);

 private:
  void read_positions(ChangeBlock* block);
  void read_byte_gaps(ChangeBlock* block);
  void read_split_gaps(ChangeBlock* block);
  void read_bitmap(ChangeBlock* block);
  void read_values(ChangeBlock* block);
  std::uint64_t read_byte_symbol(ByteSpan symbols);

  const ItemView& item_;
  std::uint64_t remaining_;
  std::uint64_t taken_ = 0;     // changes given out
  std::uint64_t position_ = 0;  // next candidate position
  std::size_t location_byte_ = 0;
  std::size_t symbol_byte_ = 0;  // in `escapes` (kSymbol2, kSymbol4) or `symbols` (kSymbol8)
  std::uint64_t low_bit_ = 0;
  std::uint64_t extra_bit_ = 0;
};

// Applies an item to the words of its box, which lie in `words` at the box's own strides relative
// to its offset (so for a range: the range itself). REQUIRES: `words` reaches from the box's first
// word to its last. For xor and add the words must be at the base version. Writes nothing but the
// changed words. Returns the number of words written.
std::uint64_t apply_item(const ItemView& item, MutableByteSpan words);

}  // namespace dcr
