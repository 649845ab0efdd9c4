// The one symbol of a device's shared object.
#pragma once

#include <cstdint>

#include "dcr/status.h"
#include "device/device.h"

namespace dcr {

// Another one whenever Device's functions change, or kDeviceMarks, or kDeviceTurn.
inline constexpr std::uint64_t kDeviceInterface = 2;

// What both sides must have alike.
inline constexpr std::uint64_t kDeviceLayout =
    (std::uint64_t{sizeof(Status)} << 48) | (std::uint64_t{sizeof(DeviceChanges)} << 32) |
    (std::uint64_t{sizeof(DeviceWords)} << 16) | (kDeviceInterface << 8) | kFormatVersion;

}  // namespace dcr

extern "C" {
// Opens device `index`, counted as CUDA counts, for a caller with the layout kDeviceLayout. Null:
// `status` says why. The caller owns what it gets, and keeps the shared object loaded meanwhile.
__attribute__((visibility("default"))) dcr::Device* dcr_open_device(std::uint64_t layout, int index,
                                                                    dcr::Status* status);
}
