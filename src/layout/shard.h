// The words of a source tensor, taken from the canonical tensors: how a layout's owners are filled
// from a checkpoint.
#pragma once

#include <cstdint>
#include <span>

#include "dcr/status.h"
#include "layout/canonical_reader.h"
#include "tensor/catalogue.h"
#include "tensor/task.h"

namespace dcr {

// Fills `out` (the task's view in the order of its indices) from the canonical tensors: the inverse
// of the task's placement, cast to the task's dtype. Elements that no part maps become zero. Error
// kUnsupported for a cast; the reader's; kInvalidArgument for `out` of another size.
Status fill_shard(const Catalogue& catalogue, const ConversionTask& task, CanonicalReader& reader,
                  std::span<std::uint8_t> out);

}  // namespace dcr
