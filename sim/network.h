// Messages on their way between processes: lost, repeated, reordered and late, as the swarm says.
#pragma once

#include <cstdint>
#include <string>

#include "protocol/machine.h"

namespace dcr {

class World;
class SimProcess;

class SimNetwork {
 public:
  explicit SimNetwork(World& world) : world_(world) {}

  void send(const SimProcess& from, SendMessage&& message);

  std::uint64_t sent() const { return sent_; }

 private:
  void carry(const SimProcess& from, SendMessage&& message);

  World& world_;
  std::uint64_t sent_ = 0;
};

}  // namespace dcr
