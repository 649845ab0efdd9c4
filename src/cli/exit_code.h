// The exit codes of `dcr` (docs/CLI.md).
#pragma once

#include "dcr/status.h"

namespace dcr {

enum ExitCode : int {
  kExitDone = 0,      // done; verify: equal
  kExitDiffers = 1,   // verify: the checkpoints differ
  kExitUsage = 2,     // the command line asks for something that cannot be
  kExitBadInput = 3,  // an input is missing, malformed, or does not belong to the others
  kExitIo = 4,        // the machine or a signal stopped it; the same command may work later
  kExitOperator = 5,  // an operator is needed: the message says for what
};

// The exit code for an error. Every code has exactly one; never kExitDiffers.
ExitCode exit_code_for(Code code);

}  // namespace dcr
