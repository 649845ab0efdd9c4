#include "cli/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/checked.h"

namespace dcr {
namespace {

// Three significant digits of a value in [0, 999.5).
std::string three_digits(double value) {
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

// `value` in the first unit in which it has at most three digits before the point.
std::string with_unit(double value, const std::array<std::string_view, 7>& units) {
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{} {}", three_digits(value), units[unit]);
}

// Characters that a terminal shows, for names in UTF-8.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

// What a unit's letters multiply by; absent for other letters.
std::optional<std::uint64_t> unit_bytes(std::string_view unit) {
  if (unit.empty() || unit == "b") return 1;
  static constexpr std::string_view kLetters = "kmgt";
  const std::size_t power = kLetters.find(unit.front());
  if (power == std::string_view::npos) return std::nullopt;
  const std::string_view rest = unit.substr(1);
  if (!rest.empty() && rest != "ib" && rest != "b") return std::nullopt;
  const std::uint64_t step = rest == "b" ? 1000 : 1024;
  std::uint64_t bytes = 1;
  for (std::size_t i = 0; i <= power; ++i) bytes *= step;
  return bytes;
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} byte{}", bytes, bytes == 1 ? "" : "s");
  return with_unit(static_cast<double>(bytes) / 1000, {"kB", "MB", "GB", "TB", "PB", "EB", "ZB"});
}

std::string count_text(std::uint64_t count) {
  if (count < 10'000) return fmt::format("{}", count);
  return with_unit(static_cast<double>(count) / 1000, {"k", "M", "G", "T", "P", "E", "Z"});
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count_text(count), noun, count == 1 ? "" : "s");
}

std::string percent_text(std::uint64_t part, std::uint64_t whole) {
  if (part == 0 || whole == 0) return "0 %";
  if (part >= whole)
    return part == whole ? "100 %"
                         : fmt::format("{:.0f} %", 100.0 * static_cast<double>(part) /
                                                       static_cast<double>(whole));
  const double percent = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  if (percent >= 99.95) return ">99.9 %";
  if (percent < 0.0005) return "<0.001 %";
  if (percent < 0.9995) return fmt::format("{:.3f} %", percent);
  return fmt::format(
      "{} %", percent < 9.995 ? fmt::format("{:.2f}", percent) : fmt::format("{:.1f}", percent));
}

std::string seconds_text(double seconds) {
  if (seconds < 59.95) return fmt::format("{:.{}f} s", seconds, seconds < 9.995 ? 2 : 1);
  const auto whole = static_cast<std::uint64_t>(std::llround(seconds));
  return fmt::format("{} min {} s", whole / 60, whole % 60);
}

std::string rate_text(std::uint64_t bytes, double seconds) {
  if (bytes == 0 || !(seconds > 0)) return {};
  const double rate = static_cast<double>(bytes) / seconds;
  if (rate >= 1e18) return {};  // no time went by, as far as the clock can tell
  return bytes_text(static_cast<std::uint64_t>(rate)) + "/s";
}

std::string printable(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are controls too: bytes C2 80 to C2 9F.
    const bool c1 = c == 0xC2 && i + 1 < text.size() &&
                    static_cast<unsigned char>(text[i + 1]) >= 0x80 &&
                    static_cast<unsigned char>(text[i + 1]) <= 0x9F;
    if (c < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", c);
    } else if (c1) {
      out += fmt::format("\\x{:02x}\\x{:02x}", c, static_cast<unsigned char>(text[i + 1]));
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string table_text(const std::vector<std::vector<std::string>>& rows,
                       const std::vector<std::size_t>& left) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    if (row.size() > widths.size()) widths.resize(row.size());
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string fill(widths[i] - width_of(row[i]), ' ');
      const bool flush_left = i == 0 || std::find(left.begin(), left.end(), i) != left.end();
      line += "  ";
      line += flush_left ? row[i] + fill : fill + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

Result<std::uint64_t> parse_bytes(std::string_view text) {
  const auto error = [&](std::string_view why) {
    return Status(Code::kInvalidArgument,
                  fmt::format("\"{}\" {}; write a whole number of bytes, or one with a unit as in "
                              "512M or 1GiB",
                              printable(text), why));
  };
  std::uint64_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure == std::errc::result_out_of_range) return error("is too large");
  if (failure != std::errc()) return error("is not a size");
  std::string unit(end, text.data() + text.size());
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto factor = unit_bytes(unit);
  if (!factor) return error("has an unknown unit");
  const auto bytes = checked_multiply(number, *factor);
  if (!bytes) return error("is too large");
  return *bytes;
}

}  // namespace dcr
