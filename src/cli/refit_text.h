// What `dcr refit` prints for people.
#pragma once

#include <string>

#include "dcr/refit.h"

namespace dcr {

// A table of stages, the tensors that are not applied through their trace, what differs, and one
// line of summary; ends with a newline.
std::string refit_text(bool verify, const RefitResult& result, double seconds);

}  // namespace dcr
