// Ports of this machine that nobody listens at.
#pragma once

#include <cstdint>
#include <vector>

#include "dcr/status.h"

namespace dcr {

// `count` different TCP ports of 127.0.0.1. Another process may take one as soon as this returns:
// for clusters that are started by hand on one machine, where a port that is taken is an error that
// the user sees. Error kIo.
Result<std::vector<std::uint16_t>> free_ports(std::size_t count);

}  // namespace dcr
