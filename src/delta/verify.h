// Comparing two checkpoints, over every bit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "dcr/delta.h"
#include "dcr/status.h"
#include "delta/work.h"

namespace dcr {

enum class DifferenceKind : std::uint8_t {
  kMissing,  // a tensor of the first that the second lacks
  kExtra,    // a tensor of the second that the first lacks
  kDtype,
  kShape,
  kBits,
  kMetadata,  // an entry of "__metadata__"
  kFile,      // a file, with `files`
};

struct VerifyReport {
  std::uint64_t tensors = 0, elements = 0, bytes = 0;  // compared
  std::uint64_t files = 0;                             // compared, with `files`
  std::uint64_t differing = 0;                         // differences in all
};

// Takes a difference: its kind, the tensor (or the file, or the metadata key), and words for
// people.
using DifferenceSink =
    std::function<void(DifferenceKind kind, const std::string& name, const std::string& detail)>;

// Compares names, dtypes, shapes, every bit, and the metadata of all files together (so that
// sharding may differ). With `files` also every other file, and safetensors headers byte by byte,
// so that sharding must agree. `found` is called on the calling thread, in an order that depends on
// the checkpoints alone. Differences are no error. Errors: those of open_checkpoint; kIo;
// kCancelled.
Result<VerifyReport> compare_checkpoints(const Work& work, const CheckpointSource& a,
                                         const CheckpointSource& b, bool files,
                                         const DifferenceSink& found);

}  // namespace dcr
