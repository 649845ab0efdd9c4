// What `dcr inspect` shows people.
#pragma once

#include <string>

#include "dcr/delta.h"

namespace dcr {

// The sections of the report, each with aligned columns; sections with nothing in them are left
// out. Groups come largest first. Ends with a newline.
std::string inspect_text(const InspectResult& result);

}  // namespace dcr
