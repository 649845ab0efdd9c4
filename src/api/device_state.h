// What StagedDevice has.
#pragma once

#include <memory>

#include "dcr/device.h"
#include "device/device.h"
#include "device/device_memory.h"

namespace dcr {

struct StagedDevice::State {
  // Errors: DeviceStaging::create's.
  static Result<std::shared_ptr<StagedDevice>> open(std::unique_ptr<Device> device,
                                                    std::uint64_t staging_bytes);

  std::unique_ptr<Device> device;
  std::unique_ptr<DeviceStaging> staging;
};

}  // namespace dcr
