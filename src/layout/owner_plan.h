// What each trainer rank holds, from a catalogue and a layout file for owners.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dcr/cancel.h"
#include "dcr/status.h"
#include "layout/group.h"
#include "layout/layout_file.h"
#include "tensor/catalogue.h"
#include "tensor/task.h"

namespace dcr {

// One rank's source tensors. Task i lies alone and contiguously in storage i.
struct OwnerRank {
  std::vector<ConversionTask> tasks;
  std::vector<std::uint64_t> storage_bytes;
};

class OwnerPlan {
 public:
  // Takes time in the number of tensors, not of tensors times ranks, but for explicit boxes, whose
  // coverage is checked here; that of the other classes is a property of their formulas. Errors:
  // those of make_groups and make_local_tensor; kMismatch naming tensor and ranks where explicit
  // boxes leave a gap or overlap.
  static Result<OwnerPlan> make(const Catalogue& catalogue, Layout layout);

  std::uint32_t ranks() const { return layout_.ranks; }
  const Layout& layout() const { return layout_; }
  const std::vector<LayoutGroup>& groups() const { return groups_; }

  // The names of the tasks that hold the group's tensors, over all ranks.
  std::vector<std::string> task_names(const LayoutGroup& group) const;

  // The tasks of one rank, in the order of their groups. Empty shards are tasks without elements.
  // `catalogue`: the one that the plan was made from.
  OwnerRank rank(const Catalogue& catalogue, std::uint32_t rank) const;

 private:
  Layout layout_;
  std::vector<LayoutGroup> groups_;
};

// Checks tasks of all ranks (index: rank) whatever they come from: replicas must be equal (view,
// placement, list of ranks) on exactly the ranks that they list, and each canonical tensor must be
// covered exactly once by the tasks, replicas counted once. Takes O(n log n) for n boxes. Errors:
// kMismatch naming tensor and ranks; kCancelled once `cancel`, which may be null, is.
Status check_tasks(const Catalogue& catalogue,
                   const std::vector<std::vector<ConversionTask>>& tasks,
                   const CancelToken* cancel = nullptr);

}  // namespace dcr
