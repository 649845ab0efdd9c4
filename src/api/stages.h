// Stages of a call, from what its threads recorded.
#pragma once

#include <vector>

#include "dcr/refit.h"
#include "runtime/clock.h"

namespace dcr {

// In the order of their first begins.
std::vector<RefitStage> stages_of(const std::vector<Span>& spans);

}  // namespace dcr
