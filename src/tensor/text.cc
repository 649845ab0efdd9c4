#include "tensor/text.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace dcr {

namespace {

constexpr std::size_t kShownBytesMax = 1024;  // a tensor's name is shown whole

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// Bytes of the well-formed sequence at the start of `text`; 0 if there is none.
std::size_t sequence_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return 1;
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if (!is_continuation(text[i])) return 0;
  }
  const auto second = static_cast<unsigned char>(text[1]);
  if (first == 0xe0 && second < 0xa0) return 0;  // longer than needed
  if (first == 0xed && second > 0x9f) return 0;  // a surrogate
  if (first == 0xf0 && second < 0x90) return 0;  // longer than needed
  if (first == 0xf4 && second > 0x8f) return 0;  // above U+10FFFF
  return bytes;
}

}  // namespace

bool valid_utf8(std::string_view text) {
  while (!text.empty()) {
    std::uint64_t eight = 0;  // headers are nearly all ASCII
    if (text.size() >= sizeof(eight)) {
      std::memcpy(&eight, text.data(), sizeof(eight));
      if ((eight & 0x8080808080808080) == 0) {
        text.remove_prefix(sizeof(eight));
        continue;
      }
    }
    const std::size_t bytes = sequence_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string quoted_name(std::string_view name) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "\"";
  std::size_t shown = 0;
  while (shown < name.size() && shown < kShownBytesMax) {
    const std::size_t bytes = sequence_bytes(name.substr(shown));
    const auto c = static_cast<unsigned char>(name[shown]);
    // U+0080 … U+009F (c2 80 … c2 9f) are control characters as well.
    const bool control =
        c < 0x20 || c == 0x7f ||
        (c == 0xc2 && bytes == 2 && static_cast<unsigned char>(name[shown + 1]) < 0xa0);
    if (bytes == 0 || control) {
      text += "\\x";
      text += kDigits[c >> 4];
      text += kDigits[c & 0xf];
      // The second byte of a control character follows alone and is shown the same way.
      shown += 1;
    } else {
      text += name.substr(shown, bytes);
      shown += bytes;
    }
  }
  return text + (shown < name.size() ? "\"…" : "\"");
}

std::string ranks_text(std::span<const std::uint32_t> ranks) {
  constexpr std::size_t kNamedMax = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i == kNamedMax) return text + ", …";
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

std::string joined(std::span<const std::string> words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace dcr
