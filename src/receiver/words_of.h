// What dtypes' bits look like, for probes and placeholders. No arithmetic on values.
#pragma once

#include <cstdint>

#include "base/checked.h"
#include "dcr/tensor.h"

namespace dcr {

// The bit fields of the floating-point dtypes that may take the scratch path with placeholders.
struct FloatBits {
  unsigned width = 0;  // bytes; 0: the dtype has no placeholder
  unsigned mantissa = 0;
};

constexpr FloatBits float_bits(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF16:
      return {2, 10};
    case Dtype::kBF16:
      return {2, 7};
    case Dtype::kF32:
      return {4, 23};
    case Dtype::kF64:
      return {8, 52};
    default:
      return {};
  }
}

// Exponent bits all ones: infinity.
constexpr std::uint64_t infinity_word(FloatBits bits) {
  const std::uint64_t below_sign = (std::uint64_t{1} << (8 * bits.width - 1)) - 1;
  return below_sign - ((std::uint64_t{1} << bits.mantissa) - 1);
}

constexpr bool is_nan(FloatBits bits, std::uint64_t word) {
  const std::uint64_t below_sign = (std::uint64_t{1} << (8 * bits.width - 1)) - 1;
  return (word & below_sign) > infinity_word(bits);
}

// Quiet NaN number `number`; see kPlaceholders.
constexpr std::uint64_t quiet_nan(FloatBits bits, std::uint64_t number) {
  return infinity_word(bits) + (std::uint64_t{1} << (bits.mantissa - 1)) + number;
}
// BF16 has 64 of one sign.
inline constexpr std::uint64_t kPlaceholders = 64;

// A number between 1 and 2 whose mantissa comes from `seed`.
constexpr std::uint64_t ordinary_word(FloatBits bits, std::uint64_t seed) {
  const std::uint64_t exponents = infinity_word(bits) >> bits.mantissa;  // all ones
  return (exponents >> 1) << bits.mantissa | (seed & ((std::uint64_t{1} << bits.mantissa) - 1));
}

// Mixes an index and a seed into 64 bits.
constexpr std::uint64_t mix(std::uint64_t index, std::uint64_t seed) {
  std::uint64_t z = (index + 1) * 0x9e3779b97f4a7c15 + seed;
  z = (z ^ (z >> 29)) * 0xbf58476d1ce4e5b9;
  return z ^ (z >> 32);
}

}  // namespace dcr
