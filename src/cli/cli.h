// The whole program but its process: `main` is this function with standard streams and signals.
#pragma once

#include <cstdio>

#include "runtime/threads.h"

namespace dcr {

struct CliStreams {
  std::FILE* out = nullptr;      // results; not owned
  std::FILE* err = nullptr;      // errors, warnings, progress; not owned
  bool err_is_terminal = false;  // progress rewrites one line
};

// Parses the arguments, runs the command, prints what it has to say and returns the exit code
// (docs/CLI.md). `cancel` stops the command from outside. Everything is flushed; a result that
// cannot be written to `out` is an error.
int run_cli(int argc, const char* const* argv, const CliStreams& streams,
            const CancelToken& cancel);

}  // namespace dcr
