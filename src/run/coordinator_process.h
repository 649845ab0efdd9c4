// A coordinator's process: it leads, or stands by.
#pragma once

#include <string>

#include "dcr/status.h"
#include "protocol/coordinator.h"
#include "run/process_context.h"

namespace dcr {

// Serves until it is asked to end (kCancelled). With `abort`, claims leadership, ends an active
// transition and returns what it found. `progress` may be empty; it is called on this thread.
// `cancelled`: another way to ask it to end; may be empty.
Status run_coordinator(ProcessContext& context, const std::string& name, bool abort,
                       const std::function<void(const CoordinatorProgress&)>& progress,
                       const std::function<bool()>& cancelled = {});

}  // namespace dcr
