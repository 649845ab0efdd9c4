// Optional post-apply checks (paper A.12).
#pragma once

#include <cstdint>
#include <span>

#include "dcr/ports.h"
#include "dcr/status.h"

namespace dcr {

// Applies changes (kWrite) and checks what came out: reads all words of the target's windows before
// and after, block by block; each must be what its change makes of the saved bits, or unchanged.
// `checked` grows by the words compared. Error kMismatch if one is not.
Status apply_checked(TargetMemory& memory, const TargetChanges& target,
                     std::span<const std::uint32_t> positions, const void* values,
                     ApplyCounts* counts, std::uint64_t* checked);

}  // namespace dcr
