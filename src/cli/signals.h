// Signals become a cancellation, so that temporary files are removed before the program ends.
#pragma once

#include <string_view>

#include "runtime/threads.h"

namespace dcr {

// From now on SIGINT, SIGTERM and SIGHUP (the last not under nohup) cancel the returned token,
// which lives as long as the process; SIGPIPE and SIGXFSZ are ignored, so that a closed pipe and a
// file size limit are errors of the write that met them. Call once, before other threads start.
const CancelToken& install_signal_handlers();

// The name of the last signal that cancelled, "SIGTERM"; empty if there was none.
std::string_view received_signal();

}  // namespace dcr
