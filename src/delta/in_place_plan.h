// What stands on disk, and what is left to do until it is the target of one delta.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/digest.h"
#include "dcr/status.h"
#include "delta/delta_file.h"
#include "delta/work.h"
#include "tensor/checkpoint.h"

namespace dcr {

// The suffix of files that are written beside and then renamed; open_checkpoint leaves them out.
inline constexpr const char* kBesideSuffix = ".dcr-new";

// A checkpoint, open for writing, with the digests of all that deltas speak of.
struct DiskState {
  Checkpoint checkpoint;
  std::vector<Digest> tensors;           // of Checkpoint::tensors
  std::vector<Digest> prefixes;          // of Checkpoint::files
  std::map<std::string, Digest> others;  // of Checkpoint::others, by name
};

// Opens and digests the checkpoint. Tensors in `known` are not read: the caller vouches for them.
// Errors: open_checkpoint's, kIo, kCancelled.
Result<DiskState> read_disk_state(const Work& work, const char* stage, const std::string& path,
                                  const std::map<std::string, Digest>& known = {});

struct PlannedTensor {
  std::int64_t base = -1;  // index into Checkpoint::tensors from which it is made; -1: from none
  bool at_target = false;  // has the target's bits: its items are not applied
  bool partial = false;    // has neither the base's nor the target's: only a journal explains it
  bool kept = false;       // the target has it in a file that stays
  bool beside = false;     // the target has it in a file that is written beside

  // Whether items are written into the file that it lies in.
  bool in_place() const { return kept && !at_target; }
};

// A file of the target that is written beside as a whole.
struct BesideFile {
  std::uint32_t file = 0;  // index into DeltaFooter::files
  std::string path;        // of the file that it replaces
  std::uint32_t permissions = 0;
};

struct InPlacePlan {
  std::vector<PlannedTensor> tensors;  // one per tensor of the delta's table
  std::vector<BesideFile> beside;      // in the order of renaming: weights, others, the index
  std::vector<std::string> removals;   // names of files that the target does not have

  bool partial() const;
  bool done() const;  // the disk has the target, all of it
};

// Compares the disk with the delta. Every tensor must be at the base or at the target, and so must
// every file that the delta speaks of; with `resumed`, tensors in files that stay may be neither
// (PlannedTensor::partial). Errors: kMismatch naming the first tensor, or file, that differs;
// kUnsupported for what cannot be done in place.
Result<InPlacePlan> make_plan(const Work& work, const DiskState& disk, const DeltaReader& delta,
                              bool resumed);

// The directory in which the checkpoint's files lie.
std::string home_directory(const Checkpoint& checkpoint);

// Checks that what each delta of a valid chain (check_chain) says of files fits the one before, so
// that no delta is applied before one that cannot be. Error kMismatch naming file and delta.
Status check_chain_files(const std::vector<DeltaReader>& chain);

}  // namespace dcr
