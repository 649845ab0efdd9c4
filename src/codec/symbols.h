// Byte symbols (docs/FORMAT.md "Byte symbols") and bit streams: how a value of any width becomes a
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
    while (held_bits_ >= 8) {
      out_->push_back(static_cast<std::uint8_t>(held_));
      held_ >>= 8;
      held_bits_ -= 8;
    }
  }

  // REQUIRES: called once, last.
  void finish() {
    if (held_bits_ > 0) out_->push_back(static_cast<std::uint8_t>(held_));
    held_bits_ = 0;
  }

 private:
  Bytes* out_;
  Uint128 held_ = 0;
  unsigned held_bits_ = 0;
};

// `count` bits from bit `position` on. REQUIRES: count <= 63 and they lie within `bytes`.
inline std::uint64_t read_bits(ByteSpan bytes, std::uint64_t position, unsigned count) {
  if (count == 0) return 0;
  const std::size_t first = static_cast<std::size_t>(position / 8);
  const unsigned shift = static_cast<unsigned>(position % 8);
  if (first + 16 <= bytes.size()) {
    Uint128 window;
    std::memcpy(&window, bytes.data() + first, sizeof(window));
    return static_cast<std::uint64_t>(window >> shift) & ((std::uint64_t{1} << count) - 1);
  }
  Uint128 window = 0;
  const std::size_t last = static_cast<std::size_t>((position + count - 1) / 8);
  for (std::size_t i = last + 1; i > first; --i) window = window << 8 | bytes[i - 1];
  return static_cast<std::uint64_t>(window >> shift) & ((std::uint64_t{1} << count) - 1);
}

}  // namespace dcr
