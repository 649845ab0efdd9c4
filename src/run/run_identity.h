// That the processes of a run on several machines share what they have to: the control plane and
// the objects. A directory of the same path that is another one would not be noticed otherwise:
// endpoints there would wait for ever for others that are not in it.
//
// A run's id is random and made with its control plane. Objects have it in a file, the mark, which
// is there before the control plane is. Control planes are compared through the
// coordinators, which say the id of theirs in every envelope; and the leader's beat must come to
// this one, which a copy of the directory does not get.
#pragma once

#include <string>

#include "dcr/cancel.h"
#include "dcr/control.h"
#include "dcr/status.h"
#include "run/process_context.h"

namespace dcr {

// The id of a run whose control plane is about to be made, and the mark with it. Until
// forget_creation() it is in the directory too, so that whoever goes on where a creation was cut
// short gets the same. Errors: kMismatch, the mark is another run's; kCorrupt for the file in the
// directory; both name the file.
Result<RunId> begin_creation(const RunConfig& config);
// The control plane is there.
Status forget_creation(const RunConfig& config);
// Error kMismatch: the objects are not this run's.
Status check_objects(const RunConfig& config, const RunId& run);

// What opens the control plane that a configuration names. Error kNotFound: there is none, as where
// the directory is not shared.
Result<std::unique_ptr<ProcessContext>> open_shared_run(const RunConfig& config,
                                                        ProcessOptions options);

// Whether endpoint `name` of this process and the coordinators have the same control plane: asks
// them, as that endpoint, which must not be open elsewhere. Coordinators themselves (`leads`) may
// be the first. Errors: kMismatch, it is another; kUnavailable, no coordinator answers; kCancelled,
// the process is to end, or `cancel` (may be null) was cancelled; Mailbox::open's.
Status check_store(ProcessContext& context, const std::string& name, bool leads,
                   const CancelToken* cancel = nullptr);

}  // namespace dcr
