// Items (docs/FORMAT.md "Items"): one owner's entries for one box of one tensor.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "dcr/options.h"
#include "dcr/status.h"

namespace dcr {

struct ItemDimension {
  std::uint64_t size = 1;
  std::uint64_t stride = 1;
  bool operator==(const ItemDimension&) const = default;
};

// Which words of a tensor an item speaks of, and in which order: word (i0, i1, …) lies at offset +
// Σ i_d · stride_d of the flat tensor. Counts are words (word_bytes(dtype)). One dimension of
// stride 1 is a range.
struct ItemBox {
  std::uint64_t offset = 0;
  std::vector<ItemDimension> dims;
  bool operator==(const ItemBox&) const = default;

  static ItemBox range(std::uint64_t offset, std::uint64_t size) { return {offset, {{size, 1}}}; }
  bool is_range() const { return dims.size() == 1 && dims[0].stride == 1; }
  // Product of the sizes. REQUIRES: at most kItemElementsMax.
  std::uint64_t words() const;
  // One past the highest index. REQUIRES: no overflow, words() > 0.
  std::uint64_t end() const;
};

// How the positions of an item's changes are stored; chosen per item.
enum class LocationCoding : std::uint8_t {
  kAll = 0,     // every word of the box has an entry: nothing is stored
  kGaps = 1,    // gaps: the low `shift` bits packed raw, the rest a byte with 255 as continuation
  kBitmap = 2,  // one bit a word
};

// How the values of an item's changes are stored; chosen per item.
enum class ValueCoding : std::uint8_t {
  kPlanes = 0,  // byte planes of the words
  kSymbol2 =
      1,  // two-bit symbols 0, 1, 2, escape, four to a byte; escapes as kSymbol8 of value − 3
  kSymbol4 =
      2,  // four-bit symbols 0 … 14, escape, two to a byte; escapes as kSymbol8 of value − 15
  kSymbol8 = 3,  // byte symbols: 0 … 191, then classes by bit length with raw extra bits
};

struct ItemHeader {
  std::uint32_t tensor = 0;  // index into the sorted tensor table
  std::uint8_t width = 1;    // bytes of a word; the table's, not on the wire
  Encoding encoding = Encoding::kOverwrite;
  LocationCoding location = LocationCoding::kAll;
  ValueCoding value = ValueCoding::kPlanes;
  std::uint8_t gap_shift = 0;
  ItemBox box;
  std::uint64_t changes = 0;
  std::uint64_t continuations = 0;  // kGaps: bytes of value 255
  std::uint64_t escapes = 0;        // kSymbol2, kSymbol4
  std::uint64_t extra_bytes = 0;    // raw bits of the byte symbols' classes
};

// An item with its streams' bytes, before compression. Move-only in spirit: buffers may be large.
struct EncodedItem {
  ItemHeader header;
  Bytes locations;  // gap bytes, or the bitmap
  Bytes gap_low;    // kGaps with shift > 0
  Bytes symbols;  // kSymbol2, kSymbol4: packed; kSymbol8: the byte symbols; kPlanes: width planes,
                  // one after another
  Bytes escapes;  // byte symbols of escapes
  Bytes extra;    // raw bits

  std::uint64_t raw_bytes() const {
    return locations.size() + gap_low.size() + symbols.size() + escapes.size() + extra.size();
  }
};

}  // namespace dcr
