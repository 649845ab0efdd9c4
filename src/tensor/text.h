// Text from outside: whether it is UTF-8, and how it is shown to people.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dcr {

// Whether `text` is well-formed UTF-8 (RFC 3629: shortest forms only, no surrogates, at most
// U+10FFFF).
bool valid_utf8(std::string_view text);

// A name from outside (tensor, file, field) in double quotes for a message: control characters and
// bytes that are not UTF-8 are shown as \xNN, so that a name cannot drive a terminal, and a long
// name is cut after 1024 bytes and ends in "…".
std::string quoted_name(std::string_view name);

// "rank 3", "ranks 0, 1": the first eight, then "…".
std::string ranks_text(std::span<const std::uint32_t> ranks);

// "a, b, c".
std::string joined(std::span<const std::string> words);

}  // namespace dcr
