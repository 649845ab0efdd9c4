// The changes of a pair of weights as plain arrays, found by the simplest possible comparison: what
// the codecs are given and what their results are checked against.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/workloads.h"

namespace dcr {

// Weights are treated as tensors of so many words (the last may be shorter): 4096 × 2048, one item
// each in both layouts.
inline constexpr std::uint64_t kTensorWords = std::uint64_t{1} << 23;

struct TensorChanges {
  std::uint64_t words = 0;                          // of the tensor
  std::vector<std::uint32_t> positions;             // ascending
  std::vector<std::uint16_t> old_words, new_words;  // at these positions
};

std::vector<TensorChanges> collect_changes(const WeightPair& pair);

std::uint64_t count_changes(const std::vector<TensorChanges>& tensors);

}  // namespace dcr
