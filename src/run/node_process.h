// A rollout node's process: its agent.
#pragma once

#include <functional>
#include <string>

#include "dcr/status.h"
#include "run/process_context.h"
#include "run/published_source.h"

namespace dcr {

// Serves until it is asked to end (kCancelled) or an operator is needed.
Status run_node(ProcessContext& context, const std::string& name);

// The same for what owners have published, until `cancelled` says so (kCancelled).
Status serve_node(ProcessContext& context, const std::string& name, const PublishedSource& source,
                  std::function<bool()> cancelled);

}  // namespace dcr
