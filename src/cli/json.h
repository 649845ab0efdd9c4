// What `--json` prints (docs/CLI.md, "JSON"): one object on one line. Keys are only ever added.
#pragma once

#include <string>

#include "channel/keys.h"
#include "cli/commands.h"
#include "dcr/delta.h"
#include "dcr/refit.h"
#include "dcr/status.h"
#include "run/local_cluster.h"
#include "run/operator.h"

namespace dcr {

// Each ends with a newline. Names that are not UTF-8 are printed with U+FFFD for what is not.
std::string diff_json(const DiffResult& result, const Measured& measured);
std::string apply_json(const CommandLine& line, const ApplyResult& result,
                       const Measured& measured);
std::string verify_json(const VerifyResult& result, const Measured& measured);
std::string inspect_json(const InspectResult& result, const Measured& measured);
std::string refit_json(const RefitResult& result, const Measured& measured);
std::string keygen_json(const std::string& endpoint, const MadeKeys& made,
                        const Measured& measured);

// Of clusters.
std::string run_refit_json(const RefitReport& report);
std::string status_json(const RunStatus& status, const std::vector<EngineStatus>& engines,
                        const RunCounts& counts);
std::string abort_json(bool commit_found, const ControlRecords& after);
std::string restore_json(const std::vector<std::string>& receivers);
std::string local_json(const LocalResult& result);

// {"error": {"code", "message", "tensor"?}}
std::string error_json(const Status& error);

}  // namespace dcr
