#include "channel/address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace dcr {
namespace {

constexpr std::string_view kScheme = "tcp://";
constexpr std::string_view kLocalScheme = "ipc://";

struct Parsed {
  bool everywhere = false;  // the host stands for all of a machine's addresses
  std::uint16_t port = 0;
};

// Whether `host` is of the family; `everywhere` if it is all zero.
template <int family, typename Address>
std::optional<bool> parse_host(const std::string& host) {
  Address address = {};
  if (::inet_pton(family, host.c_str(), &address) != 1) return std::nullopt;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&address);
  return std::all_of(bytes, bytes + sizeof(address), [](std::uint8_t byte) { return byte == 0; });
}

std::optional<Parsed> parse(std::string_view text) {
  if (text.size() > kAddressBytesMax || !text.starts_with(kScheme)) return std::nullopt;
  text.remove_prefix(kScheme.size());
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const std::string_view digits = text.substr(colon + 1);
  std::string host(text.substr(0, colon));
  if (host.find('\0') != std::string::npos) return std::nullopt;

  Parsed parsed;
  const char* end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, parsed.port);
  if (error != std::errc() || stopped != end || (digits.size() > 1 && digits.front() == '0')) {
    return std::nullopt;
  }
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::optional<bool> everywhere =
      bracketed ? parse_host<AF_INET6, in6_addr>(host.substr(1, host.size() - 2))
                : parse_host<AF_INET, in_addr>(host);
  if (!everywhere) return std::nullopt;
  parsed.everywhere = *everywhere;
  return parsed;
}

// An absolute path of plain letters: what is the same to every library that reads it.
Status check_local(std::string_view address) {
  const std::string_view path = address.substr(kLocalScheme.size());
  if (path.size() > kSocketPathBytesMax) {
    return {Code::kInvalidArgument,
            "the path of a socket has at most " + std::to_string(kSocketPathBytesMax) +
                " bytes, and \"" + std::string(path.substr(0, kSocketPathBytesMax)) + "…\" has " +
                std::to_string(path.size()) + ": use a folder with a shorter name"};
  }
  const bool plain = std::all_of(path.begin(), path.end(), [](char letter) {
    return letter > ' ' && letter < 0x7f && letter != '*' && letter != '@';
  });
  if (path.size() > 1 && path.front() == '/' && plain) return {};
  return {Code::kInvalidArgument,
          "\"" + std::string(address) + "\" is no address: it is written as ipc:///run/owner-0"};
}

Status malformed(std::string_view address, const char* example) {
  return {Code::kInvalidArgument, "\"" + std::string(address.substr(0, kAddressBytesMax)) +
                                      "\" is no address: it is written as " + example +
                                      ", with a number for the host"};
}

}  // namespace

Status check_address(std::string_view address) {
  if (address.starts_with(kLocalScheme)) return check_local(address);
  const std::optional<Parsed> parsed = parse(address);
  if (parsed && !parsed->everywhere && parsed->port != 0) return {};
  return malformed(address, "tcp://10.0.0.1:4711 or tcp://[fd00::1]:4711");
}

Status check_listen_address(std::string_view address) {
  if (address.starts_with(kLocalScheme)) return check_local(address);
  if (parse(address)) return {};
  return malformed(address, "tcp://10.0.0.1:0 or tcp://[fd00::1]:0");
}

}  // namespace dcr
