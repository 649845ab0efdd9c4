// Checks of what a TargetMemory is asked to do, the same for every memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/limits.h"
#include "dcr/ports.h"
#include "dcr/status.h"

namespace dcr {

// A whole box of kRankMax dimensions may be seen in steps and the words between them.
inline constexpr std::size_t kGridRankMax = 2 * kRankMax + 1;

// Checks a target from outside against a storage's bytes. Error: kInvalidArgument.
Status check_target(const TargetChanges& target, std::uint64_t storage_bytes);

// Words that the windows of all dimensions hold. REQUIRES: check_target.
std::uint64_t window_words(const TargetChanges& target);

// That `positions` can be applied to a checked target in this mode. Error: kInvalidArgument.
Status check_positions(const TargetChanges& target, std::span<const std::uint32_t> positions,
                       ApplyMode mode);

// Whether every word of the view lies in a storage of so many bytes, with nothing overflowing.
bool view_fits(const TensorView& view, std::uint64_t storage_bytes);

// That a view lies in its storage and a buffer has its size. Error: kInvalidArgument.
Status check_view(const TensorView& view, std::uint64_t storage_bytes, std::uint64_t buffer_bytes);

// That scratch of `bytes` may be added to what is in use. Error: kTooLarge.
Status check_scratch(std::uint64_t bytes, std::uint64_t in_use, std::uint64_t limit);

}  // namespace dcr
