// An owner's process: a stand-in for a trainer rank, whose weights come from checkpoints.
#pragma once

#include <string>

#include "dcr/status.h"
#include "run/process_context.h"

namespace dcr {

// The stage in which an owner reads its shard of a checkpoint, for a trainer that trains.
inline constexpr const char* kLoadSpan = "load";

// Loads the rank's shards of the base, makes the first baseline of them, and serves until it is
// asked to end (kCancelled) or an operator is needed. An operator's Command makes it load another
// checkpoint's shards and refit them.
Status run_owner(ProcessContext& context, const std::string& name);

}  // namespace dcr
