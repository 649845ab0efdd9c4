// Writes the two versions of a checkpoint for the comparison of tools.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/workloads.h"
#include "dcr/status.h"

namespace dcr {

// A pair on disk: one .safetensors file each, or with several shards a Hugging Face directory each.
struct CheckpointPair {
  std::string before, after;        // what `dcr diff` is given
  std::vector<std::string> shards;  // file names within the directories; empty for single files
};

// Makes `bytes` of BF16 weights in both versions under the existing `directory`. Holds only a few
// chunks in memory. REQUIRES: shards > 0.
Result<CheckpointPair> write_checkpoints(const WorkloadSpec& spec, std::uint64_t bytes,
                                         unsigned shards, const std::string& directory);

// The bytes of two files are equal. Errors: kMismatch naming the first, kIo.
Status compare_files(const std::string& expected, const std::string& actual);

}  // namespace dcr
