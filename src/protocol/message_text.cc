#include "protocol/message_text.h"

#include <algorithm>

#include "tensor/text.h"

namespace dcr {
namespace {

bool control(char letter) {
  const auto byte = static_cast<unsigned char>(letter);
  return byte < 0x20 || byte == 0x7f;
}

}  // namespace

bool clean_text(std::string_view text) {
  return std::none_of(text.begin(), text.end(), control) && valid_utf8(text);
}

std::string cleaned_text(std::string_view text, std::size_t bytes_max) {
  std::string clean(text.substr(0, bytes_max));
  std::replace_if(clean.begin(), clean.end(), control, ' ');
  const bool cut = clean.size() < text.size();
  // At most three bytes of a character that was cut in two.
  for (int taken = 0; cut && taken < 3 && !clean.empty() && !valid_utf8(clean); ++taken) {
    clean.pop_back();
  }
  if (valid_utf8(clean)) return clean;
  std::replace_if(
      clean.begin(), clean.end(), [](char letter) { return (letter & 0x80) != 0; }, '?');
  return clean;
}

}  // namespace dcr
