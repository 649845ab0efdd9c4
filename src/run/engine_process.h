// An engine's process: a stand-in for a serving runtime, with all its ranks, their receivers and
// the gate. While the gate is open a reader checks the weights (run/engine_reader.h).
#pragma once

#include <string>

#include "dcr/status.h"
#include "run/process_context.h"

namespace dcr {

// `name`: the engine's, or that of one of its receivers. Loads the base, traces the loaders, and
// serves until it is asked to end (kCancelled) or an operator is needed. Operators' Commands:
// verify.
Status run_engine(ProcessContext& context, const std::string& name);

}  // namespace dcr
