// Writes the two versions of a checkpoint for benchmarks that read files.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/workloads.h"
#include "dcr/status.h"
#include "dcr/tensor.h"

namespace dcr {

// A tensor of BF16 words.
struct ModelTensor {
  std::string name;
  Shape shape;
  std::uint64_t words = 0;
  std::uint64_t first_chunk = 0;  // of fill_chunk's; each tensor begins with a chunk of its own
};

// About `bytes` of weights: 4096 × 2048 each, the last maybe shorter.
std::vector<ModelTensor> plain_tensors(std::uint64_t bytes);

// A decoder-only transformer of about `bytes` (in whole layers, at least one): embeddings and head,
// and in each layer grouped-query attention, a gated MLP and two norms, under the names that
// layouts are generated from.
std::vector<ModelTensor> transformer_tensors(std::uint64_t bytes);

// A pair on disk: one .safetensors file each, or with several shards a Hugging Face directory each.
struct CheckpointPair {
  std::string before, after;        // what `dcr diff` is given
  std::vector<std::string> shards;  // file names within the directories; empty for single files
};

// Makes both versions of the tensors under the existing `directory`. Holds only a few chunks in
// memory. REQUIRES: shards > 0, tensors not empty.
Result<CheckpointPair> write_checkpoints(const WorkloadSpec& spec,
                                         const std::vector<ModelTensor>& tensors, unsigned shards,
                                         const std::string& directory);

// Fills both versions of a tensor, on all processors. REQUIRES: spans of tensor.words.
void fill_tensor(const WorkloadSpec& spec, const ModelTensor& tensor,
                 std::span<std::uint16_t> before, std::span<std::uint16_t> after);

// The bytes of two files are equal. Errors: kMismatch naming the first, kIo.
Status compare_files(const std::string& expected, const std::string& actual);

}  // namespace dcr
