// Numbers and names as people read and write them on a command line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dcr/status.h"

namespace dcr {

// "999 bytes", "1.23 MB": three significant digits, decimal units.
std::string bytes_text(std::uint64_t bytes);

// "9999", "22.7 M": exact below 10,000, then three significant digits.
std::string count_text(std::uint64_t count);

// "1 tensor", "3 tensors"; the count as count_text().
std::string counted(std::uint64_t count, std::string_view noun);

// `part` of `whole` as "0.702 %"; "0 %" only for none of it, "100 %" only for all of it.
std::string percent_text(std::uint64_t part, std::uint64_t whole);

// "0.42 s", "3 min 5 s". REQUIRES: seconds >= 0.
std::string seconds_text(double seconds);

// "1.10 GB/s"; empty when nothing was done or no time went by.
std::string rate_text(std::uint64_t bytes, double seconds);

// `text` with control characters as \xNN, so that a name from an input cannot drive the terminal.
std::string printable(std::string_view text);

// Lines of columns, each as wide as its widest cell, two spaces between and before. The first
// column is flush left, the others flush right unless `left` holds their number.
std::string table_text(const std::vector<std::vector<std::string>>& rows,
                       const std::vector<std::size_t>& left = {});

// A size as users write it: a whole number of bytes or of a unit, "1073741824", "512M", "1GiB". K,
// M, G and T, alone or with "iB", are powers of 1024; with "B" powers of 1000; any case. Error:
// kInvalidArgument quoting the word.
Result<std::uint64_t> parse_bytes(std::string_view text);

}  // namespace dcr
