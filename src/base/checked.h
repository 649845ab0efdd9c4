// Arithmetic on sizes from outside. Nothing here wraps: an overflow is an absent value.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>

namespace dcr {

// Both compilers have it on both platforms, outside the standard.
__extension__ using Uint128 = unsigned __int128;

[[nodiscard]] constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  if (a > std::numeric_limits<std::uint64_t>::max() - b) return std::nullopt;
  return a + b;
}

[[nodiscard]] constexpr std::optional<std::uint64_t> checked_multiply(std::uint64_t a,
                                                                      std::uint64_t b) {
  if (b != 0 && a > std::numeric_limits<std::uint64_t>::max() / b) return std::nullopt;
  return a * b;
}

// `value` as a T, if a T can hold it.
template <std::unsigned_integral T>
[[nodiscard]] constexpr std::optional<T> checked_narrow(std::uint64_t value) {
  if (value > std::numeric_limits<T>::max()) return std::nullopt;
  return static_cast<T>(value);
}

// Rounds up. REQUIRES: divisor > 0.
constexpr std::uint64_t divide_up(std::uint64_t value, std::uint64_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

}  // namespace dcr
