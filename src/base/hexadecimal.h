// Bytes as lower-case hexadecimal, two letters each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/bytes.h"

namespace dcr {

// `Letters`: of characters or of bytes.
template <typename Letters>
void append_hexadecimal(ByteSpan bytes, Letters* out) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (const std::uint8_t byte : bytes) {
    for (const int digit : {byte >> 4, byte & 15}) {
      out->push_back(
          static_cast<typename Letters::value_type>(kDigits[static_cast<std::size_t>(digit)]));
    }
  }
}

// False: `text` is not exactly as many bytes as `out` has, in this spelling; `out` is then
// anything.
inline bool parse_hexadecimal(std::string_view text, MutableByteSpan out) {
  const auto digit = [](char letter) {
    if (letter >= '0' && letter <= '9') return letter - '0';
    if (letter >= 'a' && letter <= 'f') return letter - 'a' + 10;
    return -1;
  };
  if (text.size() != 2 * out.size()) return false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const int high = digit(text[2 * i]);
    const int low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = static_cast<std::uint8_t>(16 * high + low);
  }
  return true;
}

}  // namespace dcr
