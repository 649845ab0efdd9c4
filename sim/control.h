// The control plane of a simulated world: the reference itself, behind calls that take their time,
// are refused, or lose their answers.
#pragma once

#include <cstdint>
#include <memory>

#include "control/memory_control.h"
#include "protocol/machine.h"

namespace dcr {

class World;
class SimProcess;

class SimControl {
 public:
  explicit SimControl(World& world);

  // Carries the call out some time, even if the caller does not live to see it, and answers it.
  void call(SimProcess& from, CallControl&& call);

  MemoryControl& plane() { return *plane_; }

 private:
  ControlReply carry_out(const ControlRequest& request);

  World& world_;
  std::unique_ptr<MemoryControl> plane_;
};

}  // namespace dcr
