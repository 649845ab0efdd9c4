// LateDevice as a shared object, to stand where CUDA's stands: two devices.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "device/open_device.h"
#include "device/test_device.h"

extern "C" dcr::Device* dcr_open_device(std::uint64_t layout, int index, dcr::Status* status) {
  dcr::Status said;
  if (layout != dcr::kDeviceLayout) {
    said = {dcr::Code::kUnsupported, "the library of devices is of another build"};
  } else if (index < 0 || index > 1) {
    said = {dcr::Code::kUnavailable, "there is no device " + std::to_string(index)};
  }
  std::swap(*status, said);
  return status->ok() ? std::make_unique<dcr::LateDevice>().release() : nullptr;
}
