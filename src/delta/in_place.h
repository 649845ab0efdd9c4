// Applying deltas to a checkpoint in place, so that a crash or power loss at any moment is
// completed by the same call again. Nothing is written before it is shown that the base's bits and
// the delta give exactly the target's.
//
// Where a delta's application stands is told by what is durable, in this order:
//
// clang-format off
//   state         durable                                   what a later run does
//   ------------  ----------------------------------------  ---------------------------------------
//   untouched     no journal; every tensor at the base      starts from the beginning; files that
//                 (or at the target: it counts as done)     were left beside (".dcr-new") are made
//                                                           anew
//   items [f, e)  files beside, complete; a journal with    makes the files beside anew (their
//                 the new bits of items f to e - 1; items    tensors' base is never written), shows
//                 below f in the files, from e on not       that journal and delta lead to the
//                                                           target, writes the journal's bits
//                                                           again, goes on with item e
//   renaming      all items in the files, files beside      renames those that are still beside,
//                 complete; a journal with the names to     removes what is still to be removed,
//                 rename and to remove                      checks the target
//   done          no journal; everything at the target      is the base of the next delta; after
//                                                           the last one there is nothing to do
// clang-format on
//
// The first journal precedes the first write, each journal replaces the one before by rename, and
// the last one is removed after the target was read back and checked. Deltas of a chain go through
// these states one after another. A tensor whose file is written beside is never written in place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dcr/status.h"
#include "delta/work.h"

namespace dcr {

struct InPlaceResult {
  std::uint64_t tensors = 0;        // of the target
  std::uint64_t changed = 0;        // words that the deltas completed in this run change
  std::uint64_t bytes_written = 0;  // to the checkpoint and beside, journals not counted
  bool already_target = false;      // there was nothing to do
  bool replayed_journal = false;    // an interrupted run was completed
  std::vector<std::string> files;   // of the target
};

// Applies the chain of deltas to the checkpoint at `path`. All deltas are validated, and the chain
// is checked, before the first write. Finds by the tensors' digests where in the chain the
// checkpoint stands, so a chain that was completed in part is gone on with. One run at a time may
// work on a checkpoint, and nothing else may write to it. Work's memory bound holds; `batch_bytes`
// is about the size of a journal (0: by the memory bound). Errors: kMismatch naming the first
// tensor or file that differs from the base, or the delta whose interrupted application must be
// completed first (then nothing was written); kCorrupt (a delta, the journal); kUnsupported; kIo;
// kCancelled. After an error that leaves a journal, the message says to run it again.
Result<InPlaceResult> apply_chain_in_place(const Work& work, const std::vector<std::string>& deltas,
                                           const std::string& path, std::uint64_t batch_bytes = 0);

}  // namespace dcr
