// Text of messages that people will read: UTF-8 without control characters, so that a peer cannot
// drive a terminal.
#pragma once

#include <string>
#include <string_view>

namespace dcr {

// Whether `text` may stand in a message.
bool clean_text(std::string_view text);

// `text` so that it may: control characters become spaces, and every byte beyond ASCII '?' where it
// is not UTF-8; at most `bytes_max` bytes, ending with a whole character.
std::string cleaned_text(std::string_view text, std::size_t bytes_max);

}  // namespace dcr
