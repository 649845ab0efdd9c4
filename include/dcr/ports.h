// The interfaces through which the outside reaches the core (DESIGN §3b).
#pragma once

#include <cstdint>
#include <span>

#include "dcr/status.h"

namespace dcr {

// Where finished payloads go: a delta file, a transport.
class PayloadSink {
 public:
  virtual ~PayloadSink() = default;

  // Takes payload `number` (0, 1, 2, … in this order, called from one thread). `bytes` is valid
  // during the call. An error ends the construction and is returned from it.
  virtual Status send(std::uint64_t number, std::span<const std::uint8_t> bytes) = 0;
};

}  // namespace dcr
