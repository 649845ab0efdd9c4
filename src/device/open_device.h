// The one symbol of a device's shared object.
#pragma once

#include "dcr/status.h"

namespace dcr {
class Device;
}

extern "C" {
// Opens device `index`, counted as CUDA counts. Null: `status` says why. The caller owns what it
// gets, and keeps the shared object loaded meanwhile.
__attribute__((visibility("default"))) dcr::Device* dcr_open_device(int index, dcr::Status* status);
}
