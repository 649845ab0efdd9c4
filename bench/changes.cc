#include "bench/changes.h"

#include <algorithm>

#include "base/checked.h"
#include "bench/parallel_for.h"

namespace dcr {

std::vector<TensorChanges> collect_changes(const WeightPair& pair) {
  const std::uint64_t words = pair.before.size();
  std::vector<TensorChanges> tensors(divide_up(words, kTensorWords));
  parallel_for(tensors.size(), [&](std::uint64_t index) {
    TensorChanges& tensor = tensors[index];
    const std::uint64_t first = index * kTensorWords;
    tensor.words = std::min(kTensorWords, words - first);
    for (std::uint64_t i = first; i < first + tensor.words; ++i) {
      if (pair.before[i] == pair.after[i]) continue;
      tensor.positions.push_back(static_cast<std::uint32_t>(i - first));
      tensor.old_words.push_back(pair.before[i]);
      tensor.new_words.push_back(pair.after[i]);
    }
  });
  return tensors;
}

std::uint64_t count_changes(const std::vector<TensorChanges>& tensors) {
  std::uint64_t changes = 0;
  for (const TensorChanges& tensor : tensors) changes += tensor.positions.size();
  return changes;
}

}  // namespace dcr
