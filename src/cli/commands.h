// The commands: each calls one function of dcr/delta.h and turns what it returns into text or JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/exit_code.h"
#include "cli/progress.h"
#include "dcr/delta.h"
#include "dcr/status.h"

namespace dcr {

// What running a command took.
struct Measured {
  double seconds = 0;                // of wall time
  std::uint64_t bytes = 0;           // of tensor data, as the progress last said
  std::uint64_t peak_rss_bytes = 0;  // of the process, until now
};

// What a command has to say at its end.
struct Outcome {
  std::string text;                   // for standard output, ends with a newline
  std::vector<std::string> warnings;  // for standard error, one line each
  ExitCode exit_code = kExitDone;
};

// Runs `line`, reporting to `progress`; `seconds` is the clock. REQUIRES: line.command is not
// kText. Errors: those of dcr/delta.h.
Result<Outcome> run_command(const CommandLine& line, const CancelToken* cancel,
                            const std::function<double()>& seconds, ProgressReporter& progress);

}  // namespace dcr
