// Applying a chain of deltas to tensors in memory.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dcr/delta.h"
#include "dcr/status.h"
#include "delta/apply.h"
#include "delta/work.h"

namespace dcr {

// dcr/delta.h's apply_to_memory.
Result<ApplyReport> apply_chain_to_memory(const Work& work, const std::vector<std::string>& deltas,
                                          const CheckpointSource& base, const TensorMemory& memory);

// dcr/delta.h's apply_in_place of tensors in memory.
Result<ApplyReport> apply_chain_in_memory(const Work& work, const std::vector<std::string>& deltas,
                                          std::span<const MemoryTensor> base);

}  // namespace dcr
