// Addresses of endpoints, as membership records and configurations have them: "tcp://HOST:PORT"
// with a numeric HOST, 10.0.0.1 or [fd00::1]. No names: looking one up would hold up all other
// peers. Or "ipc:///PATH", a socket in this machine's file system, which whoever may not open the
// folder cannot reach.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "dcr/status.h"

namespace dcr {

inline constexpr std::uint64_t kAddressBytesMax = 64;
// Of a socket in the file system (sockaddr_un).
inline constexpr std::uint64_t kSocketPathBytesMax = 107;

// An address to connect to: of one machine, with a port. Error: kInvalidArgument.
Status check_address(std::string_view address);

// An address to listen at: port 0 lets the system choose, 0.0.0.0 and [::] are all of this
// machine's. Error: kInvalidArgument.
Status check_listen_address(std::string_view address);

}  // namespace dcr
