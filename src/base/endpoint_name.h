// Names of endpoints, wherever they come from: records, messages, key files, configurations.
#pragma once

#include <string_view>

#include "dcr/control.h"
#include "dcr/status.h"

namespace dcr {

// What a name may be (dcr/control.h): kInvalidArgument says what is wrong.
Status check_endpoint_name(std::string_view name);

}  // namespace dcr
