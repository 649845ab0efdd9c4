// A rollout node's process: its agent.
#pragma once

#include <string>

#include "dcr/status.h"
#include "run/process_context.h"

namespace dcr {

// Serves until it is asked to end (kCancelled) or an operator is needed.
Status run_node(ProcessContext& context, const std::string& name);

}  // namespace dcr
