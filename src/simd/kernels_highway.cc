// One source, compiled by Highway once for every instruction set of the platform. The comparison is
// written with vectors; the packing loops are plain code over blocks of bytes, which compilers
// vectorise well for each target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd/kernels_highway.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h: it must see each target's own definitions.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "simd/front_lanes.h"
#include "simd/kernels.h"
#include "simd/targets.h"
#include "simd/words.h"

HWY_BEFORE_NAMESPACE();
namespace dcr {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Words that one step of the comparison covers: one bit each in a 64-bit mask.
constexpr std::size_t kStepWords = 64;
// Symbols that one step of the packing loops covers: a block of bytes in the first-level cache.
constexpr std::size_t kBlock = 1024;

// Beside the bits whose lowest one is sought: else compilers branch on whether there is any.
constexpr std::uint64_t kHighestBit = std::uint64_t{1} << 63;

// The unsigned integer with a bit for each of so many lanes.
template <std::size_t kLanes>
using LaneBits = std::conditional_t<
    kLanes <= 8, std::uint8_t,
    std::conditional_t<kLanes <= 16, std::uint16_t,
                       std::conditional_t<kLanes <= 32, std::uint32_t, std::uint64_t>>>;

// One bit for each lane of a mask.
template <class D, class Mask>
HWY_INLINE std::uint64_t bits_of(D d, Mask mask) {
  // Exactly as many bytes as are stored: a wider load behind a narrower store would wait for it.
  LaneBits<hn::MaxLanes(d)> bits = 0;
  hn::StoreMaskBits(d, mask, reinterpret_cast<std::uint8_t*>(&bits));
  const std::size_t lanes = hn::Lanes(d);
  return lanes < 8 ? bits & ((std::uint64_t{1} << lanes) - 1) : bits;
}

// Bit i is set where word i of the 64 differs.
template <typename Word>
HWY_INLINE std::uint64_t difference_mask(const std::uint8_t* old_words,
                                         const std::uint8_t* new_words) {
  const hn::CappedTag<Word, kStepWords> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto equal_at = [&](std::size_t i) {
    return hn::Eq(hn::LoadU(d, reinterpret_cast<const Word*>(old_words) + i),
                  hn::LoadU(d, reinterpret_cast<const Word*>(new_words) + i));
  };
  std::uint64_t equal = 0;
#if HWY_TARGET == HWY_AVX2
  // Bits come out of bytes only: of two vectors at once where words are two bytes.
  if constexpr (sizeof(Word) == 2) {
    const hn::Repartition<std::uint8_t, decltype(d)> d8;
    const auto bytes_at = [&](std::size_t i) {
      return hn::BitCast(d8, hn::VecFromMask(d, equal_at(i)));
    };
    for (std::size_t i = 0; i < kStepWords; i += 2 * lanes) {
      const auto bytes = hn::ConcatEven(d8, bytes_at(i + lanes), bytes_at(i));
      equal |= bits_of(d8, hn::MaskFromVec(bytes)) << i;
    }
    return ~equal;
  }
#endif
  for (std::size_t i = 0; i < kStepWords; i += lanes) equal |= bits_of(d, equal_at(i)) << i;
  return ~equal;
}

// The same for fewer than 64 words.
template <typename Word>
std::uint64_t tail_mask(const std::uint8_t* old_words, const std::uint8_t* new_words,
                        std::uint64_t count) {
  std::uint64_t mask = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const bool differs = load_word<Word>(old_words, i) != load_word<Word>(new_words, i);
    mask |= std::uint64_t{differs} << i;
  }
  return mask;
}

// Where scan_words writes next, and the positions (words scanned so far) of the current group and
// after the last change.
template <typename Word>
struct ScanOutput {
  std::uint32_t* gaps;
  Word* values;
  std::uint64_t position;
  std::uint64_t after_last;
};

// How far ahead both inputs are fetched: two pages. Hardware prefetchers stop at the end of a page,
// and the work on changes leaves too few loads in flight to hide what that costs.
constexpr std::size_t kPrefetchBytes = 8192;
// Steps whose masks are made before any of them is looked at. A group has as many words as a byte
// can count, so that whatever an index holds lies in the group.
constexpr std::size_t kGroupSteps = 4;
constexpr std::size_t kGroupWords = kGroupSteps * kStepWords;
static_assert(kGroupWords == 256);
// Indices of a step that are written without a test per change, also where the step has fewer:
// what lies past the last is overwritten by the next step, which is cheaper than a mispredicted
// branch.
constexpr std::size_t kIndexSlots = 3;
// The same for the gaps and values of a group.
constexpr std::size_t kValueSlots = 4;

struct GroupIndices {
  static_assert(kIndexSlots <= kValueSlots);
  // Beyond the last index of a group: what slots hold, or an earlier group left, or zero.
  std::uint8_t index[kGroupWords + kValueSlots] = {};
};

// The indices of the words that differ in a group of `steps` steps; returns how many.
HWY_INLINE std::size_t find_changes(const std::uint64_t* masks, std::size_t steps,
                                    GroupIndices* indices) {
  std::size_t found = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    std::uint64_t mask = masks[step];
    std::uint8_t* index = indices->index + found;
    found += static_cast<std::size_t>(std::popcount(mask));
    const std::uint8_t* const end = indices->index + found;
    do {
      for (std::size_t i = 0; i < kIndexSlots; ++i) {
        const int bit = std::countr_zero(mask | kHighestBit);
        index[i] = static_cast<std::uint8_t>(step * kStepWords + static_cast<std::size_t>(bit));
        mask &= mask - 1;
      }
      index += kIndexSlots;
    } while (index < end);
  }
  return found;
}

// Writes the changes of one group, kSlots at a time.
template <std::size_t kSlots, Encoding kEncoding, typename Word>
HWY_INLINE void emit(const GroupIndices& indices, std::size_t found, const std::uint8_t* old_words,
                     const std::uint8_t* new_words, ScanOutput<Word>* out) {
  std::uint64_t before = out->after_last - out->position;
  for (std::size_t done = 0; done < found; done += kSlots) {
    for (std::size_t i = done; i < done + kSlots; ++i) {
      const std::uint64_t index = indices.index[i];
      out->gaps[i] = static_cast<std::uint32_t>(index - before);
      out->values[i] = encode_word(kEncoding, load_word<Word>(old_words, index),
                                   load_word<Word>(new_words, index));
      before = index + 1;
    }
  }
  out->gaps += found;
  out->values += found;
  out->after_last = out->position + indices.index[found - 1] + 1;
}

template <Encoding kEncoding, typename Word>
HWY_INLINE void scan_row(const std::uint8_t* old_words, const std::uint8_t* new_words,
                         std::uint64_t count, GroupIndices* indices, ScanOutput<Word>* out) {
  constexpr std::size_t kStepBytes = kStepWords * sizeof(Word);
  std::uint64_t left = count;
  for (; left >= kGroupWords; left -= kGroupWords) {
    std::uint64_t masks[kGroupSteps];
    std::uint64_t any = 0;
    for (std::size_t i = 0; i < kGroupSteps; ++i) {
      for (std::size_t line = 0; line < kStepBytes; line += 64) {
        __builtin_prefetch(old_words + i * kStepBytes + line + kPrefetchBytes);
        __builtin_prefetch(new_words + i * kStepBytes + line + kPrefetchBytes);
      }
      masks[i] = difference_mask<Word>(old_words + i * kStepBytes, new_words + i * kStepBytes);
      any |= masks[i];
    }
    if (any != 0) {
      const std::size_t found = find_changes(masks, kGroupSteps, indices);
      emit<kValueSlots, kEncoding>(*indices, found, old_words, new_words, out);
    }
    out->position += kGroupWords;
    old_words += kGroupSteps * kStepBytes;
    new_words += kGroupSteps * kStepBytes;
  }
  if (left == 0) return;
  std::uint64_t masks[kGroupSteps];
  std::size_t steps = 0;
  for (std::uint64_t done = 0; done < left; done += kStepWords) {
    const std::uint8_t* const old_step = old_words + done * sizeof(Word);
    const std::uint8_t* const new_step = new_words + done * sizeof(Word);
    masks[steps++] = left - done >= kStepWords ? difference_mask<Word>(old_step, new_step)
                                               : tail_mask<Word>(old_step, new_step, left - done);
  }
  const std::size_t found = find_changes(masks, steps, indices);
  // One by one: what other slots hold may lie past the end of the row.
  if (found != 0) emit<1, kEncoding>(*indices, found, old_words, new_words, out);
  out->position += left;
}

template <Encoding kEncoding, typename Word>
std::size_t scan_words(const ScanBox& box, std::uint64_t* unchanged, std::uint32_t* gaps,
                       Word* values) {
  // Positions start at the words that were equal before the box, so that the first gap includes
  // them.
  ScanOutput<Word> out{gaps, values, *unchanged, 0};
  GroupIndices indices;
  for (std::uint64_t row = 0; row < box.rows; ++row) {
    scan_row<kEncoding>(box.old_words + row * box.old_row_stride_bytes,
                        box.new_words + row * box.new_row_stride_bytes, box.row_words, &indices,
                        &out);
  }
  *unchanged = out.position - out.after_last;
  return static_cast<std::size_t>(out.gaps - gaps);
}

std::size_t scan_changes(unsigned width, Encoding encoding, const ScanBox& box,
                         std::uint64_t* unchanged, std::uint32_t* gaps, void* values) {
  return for_width(width, [&]<typename Word>(Word) {
    Word* const words = static_cast<Word*>(values);
    switch (encoding) {
      case Encoding::kXor:
        return scan_words<Encoding::kXor>(box, unchanged, gaps, words);
      case Encoding::kAdd:
        return scan_words<Encoding::kAdd>(box, unchanged, gaps, words);
      case Encoding::kOverwrite:
        break;
    }
    return scan_words<Encoding::kOverwrite>(box, unchanged, gaps, words);
  });
}

std::size_t count_changes(unsigned width, const ScanBox& box) {
  return for_width(width, [&]<typename Word>(Word) {
    std::size_t count = 0;
    for (std::uint64_t row = 0; row < box.rows; ++row) {
      const std::uint8_t* old_words = box.old_words + row * box.old_row_stride_bytes;
      const std::uint8_t* new_words = box.new_words + row * box.new_row_stride_bytes;
      std::uint64_t left = box.row_words;
      for (; left >= kStepWords; left -= kStepWords) {
        count +=
            static_cast<std::size_t>(std::popcount(difference_mask<Word>(old_words, new_words)));
        old_words += kStepWords * sizeof(Word);
        new_words += kStepWords * sizeof(Word);
      }
      count += static_cast<std::size_t>(std::popcount(tail_mask<Word>(old_words, new_words, left)));
    }
    return count;
  });
}

// values → one byte each, clamped to `escape`; returns how many reached it.
template <typename Word>
HWY_INLINE std::size_t narrow_symbols(const Word* HWY_RESTRICT values, std::size_t count,
                                      unsigned escape, std::uint8_t* HWY_RESTRICT symbols) {
  for (std::size_t i = 0; i < count; ++i) {
    symbols[i] = static_cast<std::uint8_t>(std::min<Word>(values[i], static_cast<Word>(escape)));
  }
  std::size_t escapes = 0;
  for (std::size_t i = 0; i < count; ++i) escapes += symbols[i] == escape ? 1 : 0;
  return escapes;
}

// Four two-bit or two four-bit symbols to a byte. REQUIRES: `symbols` is zero up to a whole byte's
// worth.
HWY_INLINE void join_symbols(unsigned bits, const std::uint8_t* HWY_RESTRICT symbols,
                             std::size_t bytes, std::uint8_t* HWY_RESTRICT out) {
  if (bits == 8) {
    std::memcpy(out, symbols, bytes);
  } else if (bits == 4) {
    for (std::size_t i = 0; i < bytes; ++i) {
      std::uint16_t two;
      std::memcpy(&two, symbols + 2 * i, sizeof(two));
      out[i] = static_cast<std::uint8_t>(two | two >> 4);
    }
  } else {
    for (std::size_t i = 0; i < bytes; ++i) {
      std::uint32_t four;
      std::memcpy(&four, symbols + 4 * i, sizeof(four));
      four |= four >> 6;
      out[i] = static_cast<std::uint8_t>((four & 0xf) | (four >> 12 & 0xf0));
    }
  }
}

std::size_t pack_symbols(unsigned width, unsigned bits, const void* values, std::size_t count,
                         std::uint8_t* out) {
  const unsigned escape = (1u << bits) - 1;
  return for_width(width, [&]<typename Word>(Word) {
    const Word* from = static_cast<const Word*>(values);
    std::size_t escapes = 0;
    for (std::size_t done = 0; done < count; done += kBlock) {
      const std::size_t part = std::min(kBlock, count - done);
      alignas(64) std::uint8_t symbols[kBlock + 4] = {};
      escapes += narrow_symbols(from + done, part, escape, symbols);
      join_symbols(bits, symbols, (part * bits + 7) / 8, out);
      out += kBlock * bits / 8;
    }
    return escapes;
  });
}

// One byte's worth of packed symbols → bytes; the inverse of join_symbols.
HWY_INLINE void separate_symbols(unsigned bits, const std::uint8_t* HWY_RESTRICT in,
                                 std::size_t bytes, std::uint8_t* HWY_RESTRICT symbols) {
  if (bits == 8) {
    std::memcpy(symbols, in, bytes);
  } else if (bits == 4) {
    for (std::size_t i = 0; i < bytes; ++i) {
      const std::uint32_t byte = in[i];
      const std::uint16_t two = static_cast<std::uint16_t>((byte | byte << 4) & 0x0f0f);
      std::memcpy(symbols + 2 * i, &two, sizeof(two));
    }
  } else {
    for (std::size_t i = 0; i < bytes; ++i) {
      std::uint32_t four = in[i];
      four = (four | four << 12) & 0x000f000f;
      four = (four | four << 6) & 0x03030303;
      std::memcpy(symbols + 4 * i, &four, sizeof(four));
    }
  }
}

void unpack_symbols(unsigned width, unsigned bits, const std::uint8_t* in, std::size_t count,
                    void* values) {
  for_width(width, [&]<typename Word>(Word) {
    Word* to = static_cast<Word*>(values);
    for (std::size_t done = 0; done < count; done += kBlock) {
      const std::size_t part = std::min(kBlock, count - done);
      alignas(64) std::uint8_t symbols[kBlock + 4];
      separate_symbols(bits, in, (part * bits + 7) / 8, symbols);
      for (std::size_t i = 0; i < part; ++i) to[done + i] = symbols[i];
      in += kBlock * bits / 8;
    }
  });
}

std::size_t count_escapes(unsigned bits, const std::uint8_t* in, std::size_t count) {
  const std::size_t bytes = (count * bits + 7) / 8;
  std::size_t escapes = 0;
  for (std::size_t done = 0; done < bytes; done += sizeof(std::uint64_t)) {
    const std::uint64_t packed = load_packed(in + done, bytes - done);
    escapes += static_cast<std::size_t>(std::popcount(escape_bits(bits, packed)));
  }
  // Of the last byte, only the bits that hold symbols count.
  const std::size_t used = count * bits % 8;
  if (used == 0) return escapes;
  const std::uint64_t padding = std::uint64_t{in[bytes - 1]} >> used << used;
  return escapes - static_cast<std::size_t>(std::popcount(escape_bits(bits, padding)));
}

std::size_t find_escapes(unsigned bits, const std::uint8_t* in, std::size_t count,
                         std::uint16_t* indices) {
  const unsigned shift = bits == 2 ? 1 : 2;
  const std::size_t bytes = (count * bits + 7) / 8;
  std::size_t found = 0;
  for (std::size_t done = 0; done < bytes; done += sizeof(std::uint64_t)) {
    std::uint64_t left = escape_bits(bits, load_packed(in + done, bytes - done));
    const std::size_t used = (count << shift) - 8 * done;
    if (used < 64) left &= (std::uint64_t{1} << used) - 1;
    const std::size_t end = found + static_cast<std::size_t>(std::popcount(left));
    // The first few without asking whether they exist: how many there are is hard to predict.
    while (true) {
      for (std::size_t i = 0; i < kEscapeSlack; ++i, left &= left - 1) {
        const std::size_t bit =
            8 * done + static_cast<std::size_t>(std::countr_zero(left | kHighestBit));
        indices[found + i] = static_cast<std::uint16_t>(bit >> shift);
      }
      found += kEscapeSlack;
      if (found >= end) break;
    }
    found = end;
  }
  return found;
}

void split_planes(unsigned width, const void* values, std::size_t count,
                  std::uint8_t* const* planes) {
  for_width(width, [&]<typename Word>(Word) {
    const Word* HWY_RESTRICT from = static_cast<const Word*>(values);
    for (unsigned plane = 0; plane < sizeof(Word); ++plane) {
      std::uint8_t* HWY_RESTRICT out = planes[plane];
      for (std::size_t i = 0; i < count; ++i) {
        out[i] = static_cast<std::uint8_t>(from[i] >> (8 * plane));
      }
    }
  });
}

void join_planes(unsigned width, const std::uint8_t* const* planes, std::size_t count,
                 void* values) {
  for_width(width, [&]<typename Word>(Word) {
    Word* HWY_RESTRICT to = static_cast<Word*>(values);
    for (std::size_t i = 0; i < count; ++i) to[i] = planes[0][i];
    for (unsigned plane = 1; plane < sizeof(Word); ++plane) {
      const std::uint8_t* HWY_RESTRICT in = planes[plane];
      for (std::size_t i = 0; i < count; ++i) {
        to[i] = static_cast<Word>(to[i] | static_cast<Word>(Word{in[i]} << (8 * plane)));
      }
    }
  });
}

std::size_t narrow_gaps(const std::uint32_t* gaps, std::size_t count, std::uint8_t* out) {
  constexpr std::size_t kNarrowGroup = 64;
  std::size_t taken = 0;
  while (taken + kNarrowGroup <= count) {
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < kNarrowGroup; ++i) largest = std::max(largest, gaps[taken + i]);
    if (largest >= 255) break;
    for (std::size_t i = 0; i < kNarrowGroup; ++i) {
      out[taken + i] = static_cast<std::uint8_t>(gaps[taken + i]);
    }
    taken += kNarrowGroup;
  }
  while (taken < count && gaps[taken] < 255) {
    out[taken] = static_cast<std::uint8_t>(gaps[taken]);
    ++taken;
  }
  return taken;
}

#if HWY_TARGET != HWY_SCALAR
// Positions of the changes whose gaps' last bytes are among the next eight; returns how many.
// `positions` is written for all eight.
template <bool kContinued>
HWY_INLINE std::size_t expand_eight_gaps(const std::uint8_t* gaps, std::uint32_t* next,
                                         std::uint32_t* positions) {
  const hn::FixedTag<std::uint8_t, 8> d8;
  const hn::FixedTag<std::uint16_t, 8> d16;
  const hn::FixedTag<std::uint16_t, 4> d16_half;
  const hn::FixedTag<std::uint32_t, 4> d32;
  // Sums up to and with each, in 16 bits, which eight bytes cannot overflow. A gap's last byte also
  // passes over the change itself.
  auto sums = hn::PromoteTo(d16, hn::LoadU(d8, gaps));
  const auto last = hn::Ne(sums, hn::Set(d16, 255));
  const auto one = hn::Set(d16, 1);
  sums = hn::Add(sums, kContinued ? hn::IfThenElseZero(last, one) : one);
  sums = hn::Add(sums, hn::ShiftLeftLanes<1>(d16, sums));
  sums = hn::Add(sums, hn::ShiftLeftLanes<2>(d16, sums));
  sums = hn::Add(sums, hn::ShiftLeftLanes<4>(d16, sums));
  const auto before = hn::Set(d32, *next - 1);
  *next += hn::ExtractLane(sums, 7);
  const std::uint64_t ends = kContinued ? bits_of(d16, last) : 255;
  if (kContinued) {
    const hn::Repartition<std::uint8_t, decltype(d16)> bytes;
    const auto front = hn::Load(bytes, kFrontLanes.bytes[ends]);
    sums = hn::BitCast(d16, hn::TableLookupBytes(hn::BitCast(bytes, sums), front));
  }
  const auto low = hn::PromoteTo(d32, hn::LowerHalf(d16_half, sums));
  const auto high = hn::PromoteTo(d32, hn::UpperHalf(d16_half, sums));
  hn::StoreU(hn::Add(low, before), d32, positions);
  hn::StoreU(hn::Add(high, before), d32, positions + 4);
  return static_cast<std::size_t>(std::popcount(ends));
}

// Whether any of kGapBytes bytes is 255.
constexpr std::size_t kGapBytes = 64;
HWY_INLINE bool has_continuation(const std::uint8_t* gaps) {
  const hn::FixedTag<std::uint8_t, 16> d8;
  auto largest = hn::LoadU(d8, gaps);
  for (std::size_t i = 16; i < kGapBytes; i += 16) {
    largest = hn::Max(largest, hn::LoadU(d8, gaps + i));
  }
  return !hn::AllFalse(d8, hn::Eq(largest, hn::Set(d8, 255)));
}
#endif

std::size_t expand_gaps(const std::uint8_t* gaps, [[maybe_unused]] std::size_t bytes,
                        std::size_t count, std::uint32_t* next, std::uint32_t* positions) {
  std::size_t taken = 0;
  std::size_t found = 0;
  std::uint32_t at = *next;
#if HWY_TARGET != HWY_SCALAR
  for (; found + kGapBytes <= count && taken + kGapBytes <= bytes; taken += kGapBytes) {
    if (has_continuation(gaps + taken)) {
      for (std::size_t i = 0; i < kGapBytes; i += 8) {
        found += expand_eight_gaps<true>(gaps + taken + i, &at, positions + found);
      }
    } else {
      for (std::size_t i = 0; i < kGapBytes; i += 8) {
        found += expand_eight_gaps<false>(gaps + taken + i, &at, positions + found);
      }
    }
  }
#endif
  for (; found < count; ++found) {
    for (; gaps[taken] == 255; ++taken) at += 255;
    positions[found] = at + gaps[taken++];
    at = positions[found] + 1;
  }
  *next = at;
  return taken;
}

void sum_bytes(const std::uint8_t* bytes, std::size_t count, std::uint64_t* sum,
               std::uint64_t* full) {
  std::uint64_t total = 0;
  std::uint64_t full_total = 0;
  std::size_t done = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<std::uint8_t> d8;
  const hn::Repartition<std::uint64_t, decltype(d8)> d64;
  const auto all_ones = hn::Set(d8, 255);
  const auto one = hn::Set(d8, 1);
  auto sums = hn::Zero(d64);
  auto full_sums = hn::Zero(d64);
  for (; done + hn::Lanes(d8) <= count; done += hn::Lanes(d8)) {
    const auto some = hn::LoadU(d8, bytes + done);
    sums = hn::Add(sums, hn::SumsOf8(some));
    full_sums = hn::Add(full_sums, hn::SumsOf8(hn::IfThenElseZero(hn::Eq(some, all_ones), one)));
  }
  total = hn::GetLane(hn::SumOfLanes(d64, sums));
  full_total = hn::GetLane(hn::SumOfLanes(d64, full_sums));
#endif
  for (; done < count; ++done) {
    total += bytes[done];
    full_total += bytes[done] == 255 ? 1 : 0;
  }
  *sum = total;
  *full = full_total;
}

template <Encoding kEncoding, typename Word>
HWY_INLINE void apply_words(const Word* HWY_RESTRICT values, std::size_t count,
                            std::uint8_t* HWY_RESTRICT target) {
  for (std::size_t i = 0; i < count; ++i) {
    store_word(target, i, decode_word(kEncoding, load_word<Word>(target, i), values[i]));
  }
}

void apply_dense(unsigned width, Encoding encoding, const void* values, std::size_t count,
                 void* target) {
  for_width(width, [&]<typename Word>(Word) {
    const Word* words = static_cast<const Word*>(values);
    std::uint8_t* bytes = static_cast<std::uint8_t*>(target);
    switch (encoding) {
      case Encoding::kXor:
        return apply_words<Encoding::kXor>(words, count, bytes);
      case Encoding::kAdd:
        return apply_words<Encoding::kAdd>(words, count, bytes);
      case Encoding::kOverwrite:
        break;
    }
    std::memcpy(bytes, words, count * sizeof(Word));
  });
}

const Kernels* target_kernels() {
  static const Kernels kTable = {hwy::TargetName(HWY_TARGET),
                                 &scan_changes,
                                 &count_changes,
                                 &pack_symbols,
                                 &unpack_symbols,
                                 &count_escapes,
                                 &find_escapes,
                                 &split_planes,
                                 &join_planes,
                                 &narrow_gaps,
                                 &expand_gaps,
                                 &sum_bytes,
                                 &apply_dense};
  return &kTable;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace dcr
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dcr {

HWY_EXPORT(target_kernels);

std::vector<const Kernels*> highway_kernels() {
  std::vector<const Kernels*> found;
  // The CPU may have instruction sets that this build has no code for.
  const auto supported = hwy::SupportedTargets() & HWY_TARGETS;
  for (auto left = supported; left != 0; left &= left - 1) {
    // Dispatch to one target at a time; lower bits are better targets.
    hwy::SetSupportedTargetsForTest(left & -left);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    found.push_back(HWY_DYNAMIC_DISPATCH(target_kernels)());
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return found;
}

}  // namespace dcr
#endif  // HWY_ONCE
