// The commands of clusters: processes, operators, and a whole cluster on one machine.
#pragma once

#include <cstdio>
#include <functional>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "runtime/threads.h"

namespace dcr {

bool is_run_command(Command command);

// What a person sees while a command works: a line each. Empty: nothing is shown.
using Say = std::function<void(const std::string& text)>;

// Takes a part of a command's result before the command ends: text that is complete as it is.
using Show = std::function<Status(const std::string& text)>;

// Runs `line`, one of these commands. Errors: those of src/run and of `show`.
Result<Outcome> run_cluster_command(const CommandLine& line, const CancelToken& cancel,
                                    const Say& say, const Show& show);

}  // namespace dcr
