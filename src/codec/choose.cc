#include "codec/choose.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "codec/symbols.h"
#include "simd/words.h"

namespace dcr {
namespace {

// At most so many changes are looked at, evenly spread over the item.
constexpr std::size_t kSampleMax = 4096;
// Costs are in 1/4096 bit.
constexpr std::uint64_t kBit = 4096;
// What one more distinct symbol costs in a table of code lengths; it also keeps tiny items from
// picking by chance.
constexpr std::uint64_t kTableEntryCost = 5 * kBit;
// Below one change in five, bytes of a bitmap are too uneven for codes of at most eleven bits.
constexpr std::uint64_t kBitmapMeanMax = 5;
// Gaps whose continuation bytes are more than this many in a sample are not looked at further: they
// would be all that the histogram sees, and seem to cost nothing.
constexpr std::uint64_t kFarMax = 4 * kSampleMax;
constexpr std::uint64_t kTooDear = ~std::uint64_t{0} >> 2;
// A choice other than the model's must be better by 1/32.
constexpr std::uint64_t kClearlyBetter = 32;

// log2(n) × kBit for n in [1, bound), by repeated squaring: integers only.
std::uint32_t log2_scaled(std::uint32_t n) {
  const unsigned whole = static_cast<unsigned>(std::bit_width(n)) - 1;
  std::uint64_t mantissa = std::uint64_t{n} << (31 - whole);  // in [2^31, 2^32)
  std::uint32_t fraction = 0;
  for (int bit = 0; bit < 12; ++bit) {
    mantissa = mantissa * mantissa >> 31;
    fraction <<= 1;
    if (mantissa >> 32 != 0) {
      fraction |= 1;
      mantissa >>= 1;
    }
  }
  return static_cast<std::uint32_t>(whole * kBit + fraction);
}

std::uint32_t log2_of(std::uint64_t n) {
  static const std::vector<std::uint32_t> kTable = [] {
    std::vector<std::uint32_t> table(8 * kSampleMax + 1, 0);
    for (std::uint32_t i = 1; i < table.size(); ++i) table[i] = log2_scaled(i);
    return table;
  }();
  if (n < kTable.size()) return kTable[n];
  const unsigned shift = static_cast<unsigned>(std::bit_width(n)) - 15;
  return kTable[n >> shift] + static_cast<std::uint32_t>(shift * kBit);
}

// Counts of byte symbols, and what a Huffman code for them is taken to cost. Knows which there are:
// most items are small.
class Histogram {
 public:
  // REQUIRES: times > 0.
  void add(std::uint8_t symbol, std::uint32_t times = 1) {
    if (counts_[symbol] == 0) symbols_[distinct_++] = symbol;
    counts_[symbol] = static_cast<std::uint16_t>(counts_[symbol] + times);
    total_ += times;
  }
  std::uint64_t total() const { return total_; }

  // Order-0 entropy; `whole_bits`: no symbol costs less than one bit, as when each is coded by
  // itself.
  std::uint64_t cost(bool whole_bits) const {
    std::uint64_t cost = 0;
    for (std::size_t i = 0; i < distinct_; ++i) {
      const std::uint32_t count = counts_[symbols_[i]];
      std::uint64_t each = log2_of(total_) - log2_of(count);
      if (whole_bits && count != total_) each = std::max(each, kBit);
      cost += count * each;
    }
    return cost + distinct_ * kTableEntryCost;
  }

 private:
  static_assert(kFarMax + kSampleMax < 1U << 16);
  std::array<std::uint16_t, 256> counts_{};  // a sample's: they fit
  std::array<std::uint8_t, 256> symbols_{};  // those with a count, in the order in which they came
  std::size_t distinct_ = 0;
  std::uint64_t total_ = 0;
};

template <typename Body>
void for_sample(std::size_t count, const Body& body) {
  const std::size_t step = std::max<std::size_t>(1, count / kSampleMax);
  const std::size_t last = std::min(count, step * kSampleMax);
  for (std::size_t i = 0; i < last; i += step) body(i);
}

// Estimated bits, in 1/4096, of the sampled gaps with their low `shift` bits raw.
std::uint64_t gap_cost(std::span<const std::uint32_t> gaps, unsigned shift) {
  Histogram histogram;
  std::uint64_t sampled = 0;
  std::uint64_t far = 0;
  for_sample(gaps.size(), [&](std::size_t i) {
    std::uint32_t quotient = gaps[i] >> shift;
    ++sampled;
    for (; quotient >= 255 && far < kFarMax; quotient -= 255) {
      histogram.add(255);
      ++far;
    }
    histogram.add(static_cast<std::uint8_t>(std::min(quotient, 255u)));
  });
  if (far == kFarMax) return kTooDear;
  return histogram.cost(true) + sampled * shift * kBit;
}

// words × H(changes / words), the bits of a bitmap of unrelated positions.
std::uint64_t bitmap_cost(std::uint64_t changes, std::uint64_t words) {
  const std::uint64_t same = words - changes;
  std::uint64_t cost = changes * (log2_of(words) - log2_of(changes));
  if (same > 0) cost += same * (log2_of(words) - log2_of(same));
  return cost;
}

struct ValueSample {
  Histogram two, two_escapes, four, four_escapes, eight;
  std::array<Histogram, 8> planes;
  std::uint64_t two_extra = 0, four_extra = 0, eight_extra = 0;
  std::uint64_t sampled = 0;

  void add(unsigned width, std::uint64_t value, std::uint32_t times) {
    sampled += times;
    add_packed(value, times, 2, &two, &two_escapes, &two_extra);
    add_packed(value, times, 4, &four, &four_escapes, &four_extra);
    add_byte(value, times, &eight, &eight_extra);
    for (unsigned plane = 0; plane < width; ++plane) {
      planes[plane].add(static_cast<std::uint8_t>(value >> (8 * plane)), times);
    }
  }

  static void add_byte(std::uint64_t value, std::uint32_t times, Histogram* histogram,
                       std::uint64_t* extra) {
    const std::uint8_t symbol = byte_symbol(value);
    histogram->add(symbol, times);
    *extra += std::uint64_t{times} * symbol_extra_bits(symbol);
  }

  static void add_packed(std::uint64_t value, std::uint32_t times, unsigned bits, Histogram* packed,
                         Histogram* escapes, std::uint64_t* extra) {
    const std::uint64_t escape = escape_value(bits);
    packed->add(static_cast<std::uint8_t>(std::min(value, escape)), times);
    if (value >= escape) add_byte(value - escape, times, escapes, extra);
  }
};

}  // namespace

LocationChoice choose_location(std::span<const std::uint32_t> gaps, std::uint64_t words) {
  const std::uint64_t changes = gaps.size();
  if (changes == words) return {LocationCoding::kAll, 0};
  // For unrelated positions gaps are geometric. Up to a mean of 127 a byte holds most of them, and
  // a code of at most eleven bits fits the byte within 1 %; beyond, a mean quotient of 32 to 64
  // does, and leaves low bits that are as good as uniform.
  const std::uint64_t mean = words / changes;
  const unsigned length = static_cast<unsigned>(std::bit_width(mean));
  const std::uint8_t model = static_cast<std::uint8_t>(length > 7 ? length - 6 : 0);
  LocationChoice choice{LocationCoding::kGaps, model};
  std::uint64_t best = gap_cost(gaps, model);
  // Clustered changes: small gaps and a few far jumps, whose mean says nothing.
  for (const std::uint8_t shift : {std::uint8_t{0}, static_cast<std::uint8_t>(model / 2)}) {
    if (shift == choice.gap_shift) continue;
    const std::uint64_t cost = gap_cost(gaps, shift);
    if (cost + cost / kClearlyBetter < best) {
      best = cost;
      choice.gap_shift = shift;
    }
  }
  const std::uint64_t sampled = std::min<std::uint64_t>(changes, kSampleMax);
  if (mean < kBitmapMeanMax && bitmap_cost(changes, words) / changes * sampled < best) {
    return {LocationCoding::kBitmap, 0};
  }
  return choice;
}

ValueChoice choose_value(unsigned width, const void* values, std::size_t count) {
  ValueSample sample;
  // Nearly all values are small ones: how often each comes up is counted first.
  std::array<std::uint32_t, kDirectSymbols> small{};
  for_width(width, [&]<typename Word>(Word) {
    for_sample(count, [&](std::size_t i) {
      const Word value = static_cast<const Word*>(values)[i];
      if (value < kDirectSymbols) {
        ++small[value];
      } else {
        sample.add(width, value, 1);
      }
    });
  });
  for (std::size_t value = 0; value < small.size(); ++value) {
    if (small[value] != 0) sample.add(width, value, small[value]);
  }
  // Packed symbols are coded several to a byte, so that a code of whole bits loses little.
  const std::uint64_t two =
      sample.two.cost(false) + sample.two_escapes.cost(true) + sample.two_extra * kBit;
  const std::uint64_t four =
      sample.four.cost(false) + sample.four_escapes.cost(true) + sample.four_extra * kBit;
  const std::uint64_t eight = sample.eight.cost(true) + sample.eight_extra * kBit;
  std::uint64_t planes = 0;
  for (unsigned plane = 0; plane < width; ++plane) planes += sample.planes[plane].cost(true);
  ValueCoding coding = ValueCoding::kSymbol2;
  std::uint64_t best = two;
  const auto consider = [&](ValueCoding other, std::uint64_t cost) {
    if (cost + cost / (2 * kClearlyBetter) >= best) return;
    best = cost;
    coding = other;
  };
  consider(ValueCoding::kSymbol4, four);
  consider(ValueCoding::kSymbol8, eight);
  consider(ValueCoding::kPlanes, planes);
  return {coding, best / sample.sampled};
}

}  // namespace dcr
