// Delta files: the exact difference of two checkpoints, made, applied, verified and inspected.
// Start here for work on files; the `dcr` program is these five functions with a command line.
//
//   dcr::DeltaOptions options;
//   auto made = dcr::diff("step0", "step1", "step1.dcr", options);        // what changed, exactly
//   auto applied = dcr::apply({"step1.dcr"}, "step0", "copy", options);   // copy equals step1,
//   file for file auto same = dcr::verify("step1", "copy", {.files = true}, options);   // every
//   bit compared
//
// A checkpoint is a .safetensors file, a Hugging Face directory, or tensors in memory. The format
// is docs/FORMAT.md. Thread safety: each call is independent; calls on different outputs may run at
// the same time. Errors: Status with the failing tensor, file or payload named;
// docs/ARCHITECTURE.md maps codes to exit codes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dcr/cancel.h"
#include "dcr/options.h"
#include "dcr/status.h"
#include "dcr/tensor.h"

namespace dcr {

class FileSystem;

struct DeltaOptions {
  std::uint64_t memory_bytes_max = std::uint64_t{1}
                                   << 30;  // working memory; at least kMemoryBytesMin
  unsigned threads = 0;                    // 0: one per processor
  bool force = false;                      // replace an existing output
  // Called on the calling thread, at most once per piece of work; may be empty.
  std::function<void(const Progress&)> progress;
  const CancelToken* cancel = nullptr;  // not owned
  FileSystem* files = nullptr;          // not owned; null: the operating system's
};
inline constexpr std::uint64_t kMemoryBytesMin = std::uint64_t{256} << 20;

// A checkpoint to read: a path, or tensors in memory, in any order. Neither they nor the files may
// change during the call.
struct CheckpointSource {
  // NOLINTBEGIN(google-explicit-constructor)
  CheckpointSource(std::string from) : path(std::move(from)) {}
  CheckpointSource(const char* from) : path(from) {}
  CheckpointSource(std::span<const MemoryTensor> from) : tensors(from), in_memory(true) {}
  // NOLINTEND(google-explicit-constructor)

  std::string path;
  std::span<const MemoryTensor> tensors;
  bool in_memory = false;
};

// A file of the new checkpoint that the delta does not carry, and why.
struct LeftOut {
  std::string name;
  std::string reason;
};

struct DiffResult {
  std::uint64_t tensors = 0;   // common ones: same name, dtype and shape
  std::uint64_t elements = 0;  // of those
  std::uint64_t changed = 0;   // of those; of sub-byte dtypes, bytes
  std::uint64_t delta_bytes = 0;
  std::uint64_t payload_bytes = 0;                    // of the payloads within it
  std::map<std::string, std::uint64_t> encodings;     // items by encoding name
  std::vector<std::string> added, removed, replaced;  // tensor names; replaced: retyped or reshaped
  std::vector<std::string> carried_files;
  std::vector<LeftOut> left_out;
};

// Writes the delta from `before` to `after` into `output`. The output appears under its name
// complete and synced, or not at all. Reads each input byte once.
Result<DiffResult> diff(const CheckpointSource& before, const CheckpointSource& after,
                        const std::string& output, const DeltaOptions& options);

struct ApplyResult {
  std::uint64_t tensors = 0;
  std::uint64_t changed = 0;  // elements written through items
  std::uint64_t bytes_written = 0;
  bool already_target = false;     // in place: the base was the target before
  bool replayed_journal = false;   // in place: an interrupted run was completed
  std::vector<std::string> files;  // the files of the result
};

// Applies a chain of deltas (each one's base is the one before's target: checked whole before the
// first write) to the checkpoint at `base` and writes the result to `output`. The base is checked
// while it is copied. Errors: kMismatch naming the first tensor that differs, or saying that the
// base is already the target.
Result<ApplyResult> apply(const std::vector<std::string>& deltas, const std::string& base,
                          const std::string& output, const DeltaOptions& options);

// The same into the base itself, through a journal, so that a crash or power loss at any point is
// completed by running it again (docs/FORMAT.md "Journal").
Result<ApplyResult> apply_in_place(const std::vector<std::string>& deltas, const std::string& base,
                                   const DeltaOptions& options);

// Where a tensor of a result goes: memory of its size, which stays until the call returns.
using TensorMemory = std::function<std::span<std::uint8_t>(const CanonicalTensor&)>;

// The same into memory: `memory` is called on the calling thread for each tensor of the target, in
// the order of names, after the chain was validated. Metadata and other files of the chain are
// passed over. After an error what was written is of no use.
Result<ApplyResult> apply_to_memory(const std::vector<std::string>& deltas,
                                    const CheckpointSource& base, const TensorMemory& memory,
                                    const DeltaOptions& options);

// The same into the base's own memory, whole or not at all: the deltas, the bits of the base and
// those that come out are checked before the first write. The writing itself, whose work grows with
// what changed, is not cancelled; it reads the deltas once more, and only if that fails (kIo) is a
// part changed. Tensors may share memory if they share all of it and get the same
// bits. Errors: those of apply; kMismatch naming a tensor that the deltas add, remove, or give
// another dtype or shape, or one that shares memory and gets other bits; kInvalidArgument naming a
// tensor that overlaps another in part.
Result<ApplyResult> apply_in_place(const std::vector<std::string>& deltas,
                                   std::span<const MemoryTensor> base, const DeltaOptions& options);

struct VerifyOptions {
  bool files = false;  // compare the other files too, and safetensors headers byte by byte
};

struct Difference {
  std::string kind;    // "missing", "extra", "dtype", "shape", "bits", "metadata", "file"
  std::string tensor;  // or the file's name, or the metadata's key
  std::string detail;  // for people
};

struct VerifyResult {
  std::uint64_t tensors = 0;
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;              // compared
  std::uint64_t files = 0;              // compared, with `files`
  std::uint64_t differing = 0;          // differences in all
  std::vector<Difference> differences;  // the first 100
};

// Compares two checkpoints: every tensor's bits, names, dtypes and shapes; where both are on disk,
// the metadata too. Differences are no error.
Result<VerifyResult> verify(const CheckpointSource& a, const CheckpointSource& b,
                            const VerifyOptions& what, const DeltaOptions& options);

struct StreamInfo {
  std::string kind;
  unsigned width = 0;  // bytes of the words it belongs to; 0 for streams without one
  std::uint64_t raw_bytes = 0;
  std::uint64_t stored_bytes = 0;
};

// Tensors whose names differ only in numbers, e.g. "model.layers.*.mlp.up_proj.weight".
struct GroupInfo {
  std::string name;
  std::uint64_t tensors = 0;
  std::uint64_t elements = 0;
  std::uint64_t changed = 0;
  std::uint64_t raw_bytes = 0;  // of its items in the streams, before compression
};

struct InspectResult {
  std::uint32_t format_version = 0;
  std::uint64_t delta_bytes = 0;
  std::uint64_t payloads = 0, items = 0;
  std::uint64_t tensors = 0, elements = 0, changed = 0;
  std::string base_identity, target_identity;  // hexadecimal
  std::map<std::string, std::uint64_t> encodings;
  std::vector<StreamInfo> streams;
  std::vector<GroupInfo> groups;
  std::vector<std::string> added, removed, replaced;
  struct Carried {
    std::string name;
    std::uint64_t bytes = 0, stored_bytes = 0;
    std::string source;  // "carried" or "base" (equal to OLD's)
  };
  std::vector<Carried> files;
  std::vector<LeftOut> left_out;
};

// Reads and validates a delta whole and says what is in it.
Result<InspectResult> inspect(const std::string& delta, const DeltaOptions& options);

}  // namespace dcr
