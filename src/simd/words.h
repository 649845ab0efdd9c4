// Words: unaligned access, and the value of a change under each encoding (docs/FORMAT.md
// "Encodings").
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/assert.h"
#include "dcr/options.h"

namespace dcr {

template <typename Word>
inline Word load_word(const std::uint8_t* bytes, std::uint64_t index) {
  Word word;
  std::memcpy(&word, bytes + index * sizeof(Word), sizeof(Word));
  return word;
}

template <typename Word>
inline void store_word(std::uint8_t* bytes, std::uint64_t index, Word word) {
  std::memcpy(bytes + index * sizeof(Word), &word, sizeof(Word));
}

// Small differences of either sign become small numbers: 0, −1, 1, −2, 2 → 0, 1, 2, 3, 4.
template <typename Word>
constexpr Word zigzag(Word difference) {
  constexpr int kSignBit = std::numeric_limits<Word>::digits - 1;
  const Word sign = static_cast<Word>(Word{0} - static_cast<Word>(difference >> kSignBit));
  return static_cast<Word>(static_cast<Word>(difference << 1) ^ sign);
}

template <typename Word>
constexpr Word unzigzag(Word value) {
  const Word sign = static_cast<Word>(Word{0} - static_cast<Word>(value & 1));
  return static_cast<Word>(static_cast<Word>(value >> 1) ^ sign);
}

// The value of a change from `old_word` to `new_word`, as the format stores it. A change is never
// zero under xor and add, so one is subtracted. REQUIRES for xor and add: the words differ.
template <typename Word>
constexpr Word encode_word(Encoding encoding, Word old_word, Word new_word) {
  switch (encoding) {
    case Encoding::kXor:
      return static_cast<Word>((old_word ^ new_word) - 1);
    case Encoding::kAdd:
      return static_cast<Word>(zigzag(static_cast<Word>(new_word - old_word)) - 1);
    case Encoding::kOverwrite:
      break;
  }
  return new_word;
}

// The new word, from the resident one and a value.
template <typename Word>
constexpr Word decode_word(Encoding encoding, Word resident, Word value) {
  switch (encoding) {
    case Encoding::kXor:
      return static_cast<Word>(resident ^ static_cast<Word>(value + 1));
    case Encoding::kAdd:
      return static_cast<Word>(resident + unzigzag(static_cast<Word>(value + 1)));
    case Encoding::kOverwrite:
      break;
  }
  return value;
}

// Eight bytes of packed symbols, or the `left` that there are and zeros.
inline std::uint64_t load_packed(const std::uint8_t* in, std::size_t left) {
  std::uint64_t packed = 0;
  // Of a known size a copy is a plain load, else a call.
  if (left >= sizeof(packed)) {
    std::memcpy(&packed, in, sizeof(packed));
  } else {
    std::memcpy(&packed, in, left);
  }
  return packed;
}

// The lowest bit of each symbol of `bits` (2, 4 or 8) bits that is all ones.
constexpr std::uint64_t escape_bits(unsigned bits, std::uint64_t packed) {
  for (unsigned reach = 1; reach < bits; reach *= 2) packed &= packed >> reach;
  const std::uint64_t lowest = bits == 2   ? 0x5555555555555555
                               : bits == 4 ? 0x1111111111111111
                                           : 0x0101010101010101;
  return packed & lowest;
}

// Calls `body(Word{})` with the unsigned type of `width` bytes. REQUIRES: width is 1, 2, 4 or 8.
template <typename Body>
inline auto for_width(unsigned width, const Body& body) {
  switch (width) {
    case 1:
      return body(std::uint8_t{});
    case 2:
      return body(std::uint16_t{});
    case 4:
      return body(std::uint32_t{});
    default:
      DCR_ASSERT(width == 8);
      return body(std::uint64_t{});
  }
}

}  // namespace dcr
