// Weights on devices: dcr/device.h. Internal to the bindings.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "dcr/device.h"
#include "handle.h"

namespace dcr::python {

// What reaches a device. The end may have to wait for the device, and for the turns of others.
template <typename Core>
class OnDevice {
 public:
  OnDevice(const char* what, std::shared_ptr<Core> core) : what_(what), core_(std::move(core)) {}
  ~OnDevice() {
    if (bound_.here()) {
      const nanobind::gil_scoped_release release;
      core_.reset();
    } else {
      // The device is not there in another process, nor are those whose turn it was.
      auto kept = std::make_unique<std::shared_ptr<Core>>(std::move(core_));
      static_cast<void>(kept.release());
    }
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  const std::shared_ptr<Core>& core() const {
    bound_.check(what_);
    return core_;
  }

 private:
  ProcessBound bound_;
  const char* const what_;
  std::shared_ptr<Core> core_;
};

// A StagedDevice, which others may go on using when this is gone.
class PythonDevice final : public OnDevice<StagedDevice> {
 public:
  explicit PythonDevice(std::shared_ptr<StagedDevice> device)
      : OnDevice("a device", std::move(device)) {}
};

class PythonDeviceTargets final : public OnDevice<DeviceTargets> {
 public:
  PythonDeviceTargets(const PythonDevice& device, std::uint64_t scratch_bytes_max)
      : OnDevice("memory on a device", DeviceTargets::create(device.core(), scratch_bytes_max)) {}
};

// Memory on a device, and what keeps it there: what an owner's storages may lie in.
struct DeviceBytes {
  std::shared_ptr<StagedDevice> device;
  DeviceSpan memory;
  nanobind::object keeps;
};

void bind_device(nanobind::module_& module);

}  // namespace dcr::python
