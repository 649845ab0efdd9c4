// Applying a chain of deltas to a checkpoint, into a new output.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dcr/status.h"
#include "delta/delta_file.h"
#include "delta/work.h"

namespace dcr {

struct ApplyReport {
  std::uint64_t tensors = 0;        // of the target
  std::uint64_t changed = 0;        // words written through items, of all deltas
  std::uint64_t bytes_written = 0;  // of all files
  std::vector<std::string> files;   // of the target; of a single file, the output's own name
};

// Applies the chain to the checkpoint at `base` and makes `output` of it, a file or a directory as
// the last target is, complete and synced, or not at all. All deltas are validated, and the chain
// is checked, before the output is begun; every bit of the base is checked while it is copied, and
// every tensor of the result before the output appears. Errors: kMismatch naming the first tensor
// that differs from the base, or a file, or the delta whose target the base already is; kTooLarge
// when the deltas together cannot be decoded within the memory bound; those of check_output;
// kCorrupt; kIo; kCancelled.
Result<ApplyReport> apply_chain(const Work& work, const std::vector<std::string>& deltas,
                                const std::string& base, const std::string& output);

}  // namespace dcr
