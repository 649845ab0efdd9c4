// Weights on devices: dcr/device.h. Internal to the bindings.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "dcr/device.h"
#include "handle.h"

namespace dcr::python {

// A StagedDevice, which others may go on using when this is gone.
class PythonDevice {
 public:
  explicit PythonDevice(std::shared_ptr<StagedDevice> device) : device_(std::move(device)) {}

  const std::shared_ptr<StagedDevice>& core() const {
    bound_.check("a device");
    return device_;
  }

 private:
  ProcessBound bound_;
  std::shared_ptr<StagedDevice> device_;
};

// Memory on a device, and what keeps it there: what an owner's storages may lie in.
struct DeviceBytes {
  std::shared_ptr<StagedDevice> device;
  std::uintptr_t address = 0;
  std::uint64_t bytes = 0;
  nanobind::object keeps;
};

void bind_device(nanobind::module_& module);

}  // namespace dcr::python
