// What a delta says about files and tensors, and a checkpoint on disk, brought together.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "dcr/delta.h"
#include "dcr/status.h"
#include "delta/delta_file.h"
#include "delta/work.h"
#include "tensor/checkpoint.h"

namespace dcr {

// Opens a checkpoint read-only; `name` stands for one in memory in messages. Errors: those of
// open_checkpoint and memory_checkpoint.
Result<Checkpoint> open_source(FileSystem& files, const CheckpointSource& source,
                               const std::string& name);

// The name within a delta of file `name` of a checkpoint: kSingleFileName if it is a single file.
const std::string& delta_name(const Checkpoint& checkpoint, const std::string& name);

// The content of a file as DeltaFile has it, by its name within a delta: the prefix of a weights
// file, all bytes of another. Errors: kNotFound if the checkpoint has no such file; kIo.
Result<Bytes> read_content(FileSystem& files, const Checkpoint& checkpoint, const std::string& name,
                           FileRole role);

// The content of file `file` of the last delta's target: carried by the last delta that has
// another one than its base, else the base checkpoint's. Verified by its digest; a prefix also
// against the delta's tensor table. REQUIRES: a checked chain; the file is in the last target.
// Errors: kMismatch naming the file if the base's differs, kNotFound if it is missing there.
Result<Bytes> target_content(FileSystem& files, const std::vector<DeltaReader>& chain,
                             const Checkpoint& base, std::uint32_t file);

// Whether the checkpoint's tensors have the names, dtypes and shapes that the base (or target) side
// of the delta has. Error kMismatch naming the first tensor, in the table's order, that has not.
Status check_table(const Checkpoint& checkpoint, const DeltaReader& delta, bool target);

// The digests of the tensors at the indices `which`, in that order; in parallel, within a small
// part of work.memory_bytes_max. `progress` may be null.
Result<std::vector<Digest>> digest_tensors(const Work& work, const Checkpoint& checkpoint,
                                           std::span<const std::size_t> which,
                                           ProgressCounter* progress);

// The delta of the chain whose target the checkpoint is, or null. Reads all of the checkpoint if
// its table fits one.
Result<const DeltaReader*> find_target(const Work& work, const Checkpoint& checkpoint,
                                       const std::vector<DeltaReader>& chain);

}  // namespace dcr
