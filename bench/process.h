// Runs another program and says what it took.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dcr/status.h"

namespace dcr {

struct ProcessRun {
  int exit_code = 0;
  double seconds = 0;                // wall clock, from start to end
  std::uint64_t peak_rss_bytes = 0;  // ru_maxrss; never less than that of the caller at the start
};

// Runs `command` (the first word is looked up in PATH) and waits for its end. Standard output is
// dropped, standard error goes to the file `log`, which is replaced. Errors: kNotFound when there
// is no such program, kIo when it cannot be run or a signal ended it.
Result<ProcessRun> run_process(const std::vector<std::string>& command, const std::string& log);

}  // namespace dcr
