// Writing items into the files that they lie in, batch by batch through the journal.
#pragma once

#include <cstdint>
#include <span>

#include "codec/payload.h"
#include "dcr/status.h"
#include "delta/delta_file.h"
#include "delta/in_place_plan.h"
#include "delta/work.h"

namespace dcr {

struct InPlaceCounts {
  std::uint64_t changed = 0;        // words written
  std::uint64_t bytes_written = 0;  // to the checkpoint, not to the journal
};

// Checks that a journal's payload holds what run_batches puts there: overwrites of ranges, in files
// that stay. Error kCorrupt naming the tensor.
Status check_journalled(const DeltaReader& delta, const InPlacePlan& plan, const Payload& payload);

// Writes the new bits of a journal's payload into the files and syncs those. Writing them again
// gives the same, whatever part of them was written before. Bytes between changes are written too
// where they share a page with one, as they are. REQUIRES: check_journalled.
Status write_journalled(const DiskState& disk, const InPlacePlan& plan, const Payload& payload,
                        InPlaceCounts* counts);

// Applies items [from, …) of tensors that are in place (PlannedTensor::in_place) in batches of
// whole items whose journal holds about `batch_bytes`, at least one item. Of each batch the journal
// is made durable, then the items are written and synced. On return all are in the files and the
// last journal stands. `places`: DeltaReader::validate_all. REQUIRES: the items' words are at the
// base. Errors: kIo, kCancelled, the delta's; a later run can go on from the journal.
Status run_batches(const Work& work, const DiskState& disk, const DeltaReader& delta,
                   std::span<const ItemPlace> places, const InPlacePlan& plan, std::uint64_t from,
                   std::uint64_t batch_bytes, InPlaceCounts* counts);

}  // namespace dcr
