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

// The same for whichever owners join, until the process is asked to end (kCancelled). `idle` is
// called now and then while there are none.
Status serve_joined_owners(ProcessContext& context, const std::string& name,
                           const std::function<void()>& idle);

}  // namespace dcr
