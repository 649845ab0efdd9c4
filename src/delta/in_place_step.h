// One delta's way through the states of in_place.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "dcr/status.h"
#include "delta/delta_file.h"
#include "delta/in_place_batches.h"
#include "delta/in_place_plan.h"
#include "delta/journal.h"
#include "delta/work.h"

namespace dcr {

// A delta of the chain, validated.
struct ValidDelta {
  const DeltaReader* reader = nullptr;
  std::span<const ItemPlace> places;
};

// Brings the checkpoint from `*disk`, for which `plan` was made, to the delta's target, and leaves
// the target's state in `*disk`. `journal`: the one that stands, in state kItems and of this delta;
// null if there is none; its payload is taken out. REQUIRES: plan made with resumed = (journal !=
// null).
Status run_step(const Work& work, const ValidDelta& delta, const InPlacePlan& plan,
                Journal* journal, std::uint64_t batch_bytes, DiskState* disk,
                InPlaceCounts* counts);

// Completes state "renaming" of the checkpoint at `path`, and leaves the target's state in `*disk`.
Status complete_renaming(const Work& work, const DeltaReader& delta, const std::string& path,
                         const Journal& journal, DiskState* disk);

// Removes files that an interrupted run left beside the checkpoint's and that no journal names.
Status remove_leftovers(FileSystem& files, const Checkpoint& checkpoint);

}  // namespace dcr
