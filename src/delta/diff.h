// The exact difference of two checkpoints, as a delta file.
#pragma once

#include <cstdint>
#include <string>

#include "dcr/delta.h"
#include "dcr/status.h"
#include "delta/delta_file.h"
#include "delta/work.h"
#include "source/pipeline.h"

namespace dcr {

struct DiffReport {
  DeltaFooter footer;  // as written
  PipelineResult pipeline;
  std::uint64_t delta_bytes = 0;
};

// How much may be in flight at a time so that the construction stays within `memory_bytes_max`; at
// least one of each, which takes less than 128 MiB more than kMemoryBytesMin (dcr/delta.h).
struct DiffPlan {
  std::uint64_t window = 1;   // pieces
  std::uint64_t sealing = 1;  // buckets that are compressed
};
DiffPlan plan_diff(std::uint64_t memory_bytes_max, unsigned threads);

// Writes the delta from the checkpoint `before` to the one `after` into `output`, which
// appears complete and synced, or not at all. Each input byte is read once. The delta's bytes
// depend on the two checkpoints alone: not on threads, memory or paths. Errors: those of
// open_checkpoint and check_output; kIo, kCancelled, kTooLarge.
Result<DiffReport> write_diff(const Work& work, const CheckpointSource& before,
                              const CheckpointSource& after, const std::string& output);

}  // namespace dcr
