// What the commands of clusters print.
#pragma once

#include <string>
#include <vector>

#include "run/local_cluster.h"
#include "run/operator.h"

namespace dcr {

// Each ends with a newline.
std::string run_refit_text(const RefitReport& report);
std::string status_text(const RunStatus& status, const std::vector<EngineStatus>& engines);
// `commit_found`: the attempt that was to be ended was committed instead.
std::string abort_text(bool commit_found, const ControlRecords& after);
std::string restore_text(const std::vector<std::string>& receivers);
std::string local_text(const LocalResult& result);

// As one line without its newline: what is waited for.
std::string status_line(const RunStatus& status);

}  // namespace dcr
