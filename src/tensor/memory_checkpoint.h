// Tensors in memory as a checkpoint, so that whatever reads checkpoints reads them too.
#pragma once

#include <span>
#include <string>

#include "dcr/status.h"
#include "dcr/tensor.h"
#include "tensor/checkpoint.h"

namespace dcr {

// A checkpoint of one file, sorted by name, whose bytes are read where they lie. `name` stands for
// it in messages. Errors, which name the tensor: kInvalidArgument (two of one name, a name that
// safetensors does not allow, memory of another size than the tensor's), kTooLarge (limits.h).
Result<Checkpoint> memory_checkpoint(std::span<const MemoryTensor> tensors,
                                     const std::string& name);

}  // namespace dcr
