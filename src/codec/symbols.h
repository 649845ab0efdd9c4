// Byte symbols (docs/FORMAT.md "Values") and bit streams: how a value of any width becomes a
// byte and, beyond 191, some raw extra bits.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "base/bytes.h"
#include "base/checked.h"

namespace dcr {

// Values below this are their own symbol.
inline constexpr std::uint64_t kDirectSymbols = 192;
// Symbol kDirectSymbols + c stands for the values of bit length c + 8, whose lower c + 7 bits
// follow raw.
inline constexpr unsigned kFirstClassBits = 7;
// The largest symbol: bit length 64.
inline constexpr std::uint8_t kSymbolMax = kDirectSymbols + 63 - kFirstClassBits;

inline std::uint8_t byte_symbol(std::uint64_t value) {
  if (value < kDirectSymbols) return static_cast<std::uint8_t>(value);
  const unsigned bits = static_cast<unsigned>(std::bit_width(value)) - 1;
  return static_cast<std::uint8_t>(kDirectSymbols + (bits - kFirstClassBits));
}

// Raw bits that follow a symbol. REQUIRES: symbol <= kSymbolMax.
inline unsigned symbol_extra_bits(std::uint8_t symbol) {
  return symbol < kDirectSymbols ? 0
                                 : static_cast<unsigned>(symbol - kDirectSymbols) + kFirstClassBits;
}

// The value of a symbol and its extra bits.
inline std::uint64_t symbol_value(std::uint8_t symbol, std::uint64_t extra) {
  return symbol < kDirectSymbols ? symbol : (std::uint64_t{1} << symbol_extra_bits(symbol)) | extra;
}

// The value from which a packed symbol of `bits` bits is an escape.
constexpr std::uint64_t escape_value(unsigned bits) { return (std::uint64_t{1} << bits) - 1; }

// Appends bits, lowest first; the last byte is padded with zeros.
class BitWriter {
 public:
  explicit BitWriter(Bytes* out) : out_(out) {}
  ~BitWriter() = default;
  BitWriter(const BitWriter&) = delete;
  BitWriter& operator=(const BitWriter&) = delete;

  // REQUIRES: count <= 63 and value < 2^count.
  void put(std::uint64_t value, unsigned count) {
    held_ |= static_cast<Uint128>(value) << held_bits_;
    held_bits_ += count;
    if (held_bits_ < 64) return;
    append(static_cast<std::uint64_t>(held_), sizeof(std::uint64_t));
    held_ >>= 64;
    held_bits_ -= 64;
  }

  // REQUIRES: called once, last.
  void finish() { append(static_cast<std::uint64_t>(held_), (held_bits_ + 7) / 8); }

 private:
  void append(std::uint64_t word, std::size_t bytes) {
    const std::size_t before = out_->size();
    out_->resize(before + bytes);
    if (bytes > 0) std::memcpy(out_->data() + before, &word, bytes);
  }

  Bytes* out_;
  Uint128 held_ = 0;
  unsigned held_bits_ = 0;
};

// `count` bits from bit `position` on. REQUIRES: count <= 63 and they lie within `bytes`.
inline std::uint64_t read_bits(ByteSpan bytes, std::uint64_t position, unsigned count) {
  const std::size_t first = static_cast<std::size_t>(position / 8);
  const unsigned shift = static_cast<unsigned>(position % 8);
  const std::uint64_t mask = (std::uint64_t{1} << count) - 1;
  if (count + shift <= 64 && first + sizeof(std::uint64_t) <= bytes.size()) {
    return load_little<std::uint64_t>(bytes.data() + first) >> shift & mask;
  }
  Uint128 window = 0;
  const std::size_t end = static_cast<std::size_t>((position + count + 7) / 8);
  for (std::size_t i = end; i > first; --i) window = window << 8 | bytes[i - 1];
  return static_cast<std::uint64_t>(window >> shift) & mask;
}

}  // namespace dcr
