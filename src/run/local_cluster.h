// A whole cluster of processes on one machine: coordinators, owners, nodes and engines, which are
// killed and paused where they are told to be, and started again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dcr/status.h"
#include "run/operation_points.h"
#include "run/operator.h"
#include "run/process_context.h"
#include "run/run_config.h"
#include "runtime/child_process.h"

namespace dcr {

struct LocalOptions {
  std::string base;                   // the checkpoint that is version 0
  std::vector<std::string> versions;  // that it is refitted to, in this order
  std::uint64_t owners = 2;
  std::uint64_t nodes = 1;
  std::uint64_t receivers_per_node = 2;  // one engine, tensor parallel over so many ranks
  bool asynchronous = false;
  bool convert = false;  // owners convert every tensor instead of projecting it
  std::vector<OperationPoint> points;
  std::string directory;  // of the run: exists, empty
  std::string program;    // that has the commands coordinator, owner, node and receiver
  std::uint64_t memory_bytes_max = kGiB;
  std::uint64_t staging_bytes_max = kGiB;
  std::uint64_t bucket_bytes = 512 * kMiB;
  bool requests = true;  // to engines, while gates are open
  Waits waits;
  const CancelToken* cancel = nullptr;  // required
  Clock* clock = nullptr;               // required
  // What happens, in a line each: a process that died, a version that is committed.
  std::function<void(const std::string& text)> note;
  // Called a few times a second while something is waited for.
  std::function<void(const RunStatus& status)> progress;
};

// A stage of a refit at one endpoint, in seconds since the first owner began construction.
struct LocalSpan {
  std::string stage;
  std::string endpoint;
  double begin = 0, end = 0, busy = 0;
};

// A refit on the same axis: from when the first owner began construction (t0) to when the last one
// had updated its baseline (t1).
struct LocalWindow {
  std::uint64_t version = 0;  // that it committed
  double begin = 0, end = 0;
  // Processor time of all processes, from the call to its return, without owners' reading of the
  // checkpoint. Means nothing where a process was killed.
  double processor = 0;
};

// Gates that were closed before everything was staged.
struct LocalEarlyClose {
  std::uint64_t version = 0;  // that was committed
  std::string reason;
  double seconds = 0;  // since the attempt was prepared
};

struct LocalResult {
  CommitRecord committed;
  std::uint64_t refits = 0;
  std::uint64_t attempts = 0;
  std::uint64_t kills = 0;   // processes that died at a point
  std::uint64_t pauses = 0;  // and that were stopped for a while
  std::uint64_t receivers = 0;
  std::uint64_t bytes_compared = 0;
  std::uint64_t bytes_differing = 0;
  std::uint64_t reads = 0;            // by engines' readers, of all weights
  std::uint64_t reads_different = 0;  // that were not their label's version
  std::uint64_t payload_bytes = 0;
  double gate_seconds = 0;               // that gates were closed in refits, the longest engine's
  double seconds = 0;                    // of the refits, until refit() returned
  std::vector<std::string> not_reached;  // points that no process came to
  std::vector<LocalEarlyClose> gates_closed_early;
  std::vector<LocalWindow> windows;  // one of each refit
  std::vector<LocalSpan> spans;
};

// Runs all of it. Errors: the first refit's or verification's that could not be had; kCancelled.
Result<LocalResult> run_local(const LocalOptions& options);

}  // namespace dcr
