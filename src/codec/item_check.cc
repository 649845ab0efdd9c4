#include "codec/item_check.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/limits.h"
#include "codec/symbols.h"
#include "simd/kernels.h"
#include "simd/words.h"

namespace dcr {
namespace {

// Bits beyond `used` in the last byte are zero.
bool padding_is_zero(ByteSpan bytes, std::uint64_t used) {
  const unsigned tail = static_cast<unsigned>(used % 8);
  return tail == 0 || bytes.empty() || (bytes.back() >> tail) == 0;
}

Status check_gaps(const ItemView& item) {
  const ItemHeader& header = item.header;
  const std::uint64_t words = header.box.words();
  std::uint64_t sum = 0;
  std::uint64_t full = 0;
  kernels().sum_bytes(item.locations.data(), item.locations.size(), &sum, &full);
  if (full != header.continuations || item.locations.back() == 255) {
    return corrupt("gap continuations do not agree with their count");
  }
  const unsigned shift = header.gap_shift;
  // At most 2^25 bytes of at most 255, shifted by at most 24: no overflow.
  std::uint64_t reach = (sum << shift) + header.changes;
  if (shift > 0) {
    const std::uint64_t bits = header.changes * shift;
    for (std::uint64_t bit = 0; bit < bits; bit += shift)
      reach += read_bits(item.gap_low, bit, shift);
    if (!padding_is_zero(item.gap_low, bits)) return corrupt("padding of gap bits is not zero");
  }
  if (reach > words) {
    return corrupt("gaps reach word " + std::to_string(reach - 1) + " of a box of " +
                   std::to_string(words));
  }
  return {};
}

Status check_bitmap(const ItemView& item) {
  std::uint64_t set = 0;
  for (const std::uint8_t byte : item.locations)
    set += static_cast<std::uint64_t>(std::popcount(byte));
  if (set != item.header.changes) {
    return corrupt("bitmap has " + std::to_string(set) + " changes, the item says " +
                   std::to_string(item.header.changes));
  }
  if (!padding_is_zero(item.locations, item.header.box.words())) {
    return corrupt("padding of the bitmap is not zero");
  }
  return {};
}

// The largest value: for xor and add, all ones would be no change.
std::uint64_t value_max(const ItemHeader& header) {
  const std::uint64_t ones = ~std::uint64_t{0} >> (64 - 8 * header.width);
  return header.encoding == Encoding::kOverwrite ? ones : ones - 1;
}

// Byte symbols of values from `base` on, with all of the item's extra bits.
Status check_byte_symbols(const ItemView& item, ByteSpan symbols, std::uint64_t base) {
  const std::uint64_t limit = value_max(item.header);
  // The common case needs no look at each symbol: no classes, and no value that could be too large.
  std::uint8_t largest = 0;
  for (const std::uint8_t symbol : symbols) largest = std::max(largest, symbol);
  if (largest < kDirectSymbols && item.extra.empty() && base + largest <= limit) return {};
  const std::uint64_t available = std::uint64_t{8} * item.extra.size();
  std::uint64_t bit = 0;
  for (const std::uint8_t symbol : symbols) {
    std::uint64_t value = symbol;
    if (symbol >= kDirectSymbols) {
      if (symbol > kSymbolMax) return corrupt("byte symbol " + std::to_string(symbol));
      const unsigned extra = symbol_extra_bits(symbol);
      if (extra > available - bit) return corrupt("extra bits end early");
      value = symbol_value(symbol, read_bits(item.extra, bit, extra));
      if (value < kDirectSymbols) return corrupt("a direct value is spelled as a class");
      bit += extra;
    }
    if (base > limit || value > limit - base) {
      return corrupt("a value does not fit a word of " + std::to_string(item.header.width) +
                     " bytes");
    }
  }
  if ((bit + 7) / 8 != item.extra.size()) return corrupt("extra bytes that belong to no value");
  if (!padding_is_zero(item.extra, bit)) return corrupt("padding of extra bits is not zero");
  return {};
}

Status check_planes(const ItemView& item) {
  if (item.header.encoding == Encoding::kOverwrite) return {};
  const std::size_t count = static_cast<std::size_t>(item.header.changes);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint8_t all = item.planes[0][i];
    for (unsigned plane = 1; plane < item.header.width; ++plane) {
      all = static_cast<std::uint8_t>(all & item.planes[plane][i]);
    }
    if (all == 255) return corrupt("a value that changes nothing");
  }
  return {};
}

// [begin, end) in the flat tensor.
using Interval = std::pair<std::uint64_t, std::uint64_t>;

// Rows of a box as intervals.
void append_runs(const ItemBox& box, std::vector<Interval>* runs) {
  const ItemDimension& inner = box.dims.back();
  const bool contiguous = inner.stride == 1;
  const std::size_t outer = contiguous ? box.dims.size() - 1 : box.dims.size();
  std::vector<std::uint64_t> index(outer, 0);
  const std::uint64_t length = contiguous ? inner.size : 1;
  for (;;) {
    std::uint64_t begin = box.offset;
    for (std::size_t i = 0; i < outer; ++i) begin += index[i] * box.dims[i].stride;
    runs->emplace_back(begin, begin + length);
    std::size_t i = outer;
    while (i > 0 && ++index[i - 1] == box.dims[i - 1].size) index[--i] = 0;
    if (i == 0) return;
  }
}

std::uint64_t run_count(const ItemBox& box) {
  return box.dims.back().stride == 1 ? box.words() / box.dims.back().size : box.words();
}

// Boxes [first, last) of one tensor whose intervals overlap: compares their runs.
Status check_interleaved(std::size_t first, std::size_t last, const HeaderAt& header_at,
                         std::uint64_t runs_max) {
  std::uint64_t count = 0;
  for (std::size_t item = first; item < last; ++item) {
    count += run_count(header_at(item).box);
    if (count > runs_max) {
      return Status(Code::kTooLarge,
                    "interleaved boxes have more than " + std::to_string(runs_max) + " runs");
    }
  }
  std::vector<Interval> runs;
  runs.reserve(static_cast<std::size_t>(count));
  for (std::size_t item = first; item < last; ++item) append_runs(header_at(item).box, &runs);
  std::sort(runs.begin(), runs.end());
  for (std::size_t i = 1; i < runs.size(); ++i) {
    if (runs[i].first >= runs[i - 1].second) continue;
    return corrupt("two items of tensor index " + std::to_string(header_at(first).tensor) +
                   " overlap at word " + std::to_string(runs[i].first));
  }
  return {};
}

}  // namespace

Status check_locations(const ItemView& item) {
  switch (item.header.location) {
    case LocationCoding::kGaps:
      return check_gaps(item);
    case LocationCoding::kBitmap:
      return check_bitmap(item);
    case LocationCoding::kAll:
      break;
  }
  return {};
}

Status check_values(const ItemView& item) {
  const ItemHeader& header = item.header;
  if (header.value == ValueCoding::kPlanes) return check_planes(item);
  if (header.value == ValueCoding::kSymbol8) return check_byte_symbols(item, item.symbols, 0);
  const unsigned bits = header.value == ValueCoding::kSymbol2 ? 2 : 4;
  const std::size_t count = static_cast<std::size_t>(header.changes);
  if (kernels().count_escapes(bits, item.symbols.data(), count) != header.escapes) {
    return corrupt("escapes do not agree with their count");
  }
  if (!padding_is_zero(item.symbols, header.changes * bits)) {
    return corrupt("padding of symbols is not zero");
  }
  return check_byte_symbols(item, item.escapes, escape_value(bits));
}

Status check_box(const ItemBox& box, std::uint64_t words) {
  const std::size_t rank = box.dims.size();
  if (rank == 0 || rank > kRankMax) return corrupt_rank(rank);
  std::uint64_t product = 1;
  std::uint64_t last = box.offset;
  for (const ItemDimension& dim : box.dims) {
    if (dim.size == 0) return corrupt("item box is empty");
    const auto grown = checked_multiply(product, dim.size);
    if (!grown || *grown > kItemElementsMax) {
      return Status(Code::kTooLarge,
                    "item box has more than " + std::to_string(kItemElementsMax) + " words");
    }
    product = *grown;
    const auto reach = checked_multiply(dim.size - 1, dim.stride);
    const auto end = reach ? checked_add(last, *reach) : std::nullopt;
    if (!end) return corrupt("item box overflows");
    last = *end;
  }
  if (last >= words) {
    return corrupt("item box ends at word " + std::to_string(last) + " of a tensor of " +
                   std::to_string(words));
  }
  // Rows nest: each stride steps over all that the inner dimensions reach.
  std::uint64_t inner = 1;
  for (std::size_t i = box.dims.size(); i > 0; --i) {
    const ItemDimension& dim = box.dims[i - 1];
    if (dim.stride < inner) return corrupt("item box reaches a word twice");
    inner = (dim.size - 1) * dim.stride + inner;
  }
  return {};
}

Status check_overlap(std::size_t items, const HeaderAt& header_at, std::uint64_t memory_bytes_max) {
  const std::uint64_t runs_max =
      std::min<std::uint64_t>(kRunsPerPayloadMax, memory_bytes_max / sizeof(Interval));
  for (std::size_t first = 0; first < items;) {
    const std::uint32_t tensor = header_at(first).tensor;
    std::size_t last = first + 1;
    std::uint64_t end = header_at(first).box.end();
    for (; last < items; ++last) {
      const ItemHeader& next = header_at(last);
      if (next.tensor != tensor || next.box.offset >= end) break;
      end = std::max(end, next.box.end());
    }
    if (last - first > 1) DCR_TRY(check_interleaved(first, last, header_at, runs_max));
    first = last;
  }
  return {};
}

}  // namespace dcr
