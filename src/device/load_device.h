// Devices by their shared object, which is loaded when the first is opened and never unloaded: the
// core needs neither CUDA nor its driver to be there.
#pragma once

#include <memory>
#include <string>

#include "dcr/status.h"
#include "device/device.h"

namespace dcr {

// Device `index` of the library at `path`. Errors: kNotFound, there is no such library or it is
// none of ours; kUnsupported, it is of another build; kUnavailable, no driver or no such device, in
// the runtime's words.
Result<std::unique_ptr<Device>> load_device(const std::string& path, int index);

}  // namespace dcr
