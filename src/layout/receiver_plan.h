// What each serving rank holds, and where its loader puts each canonical tensor, from a catalogue
// and a layout file for receivers.
#pragma once

#include <cstdint>
#include <vector>

#include "dcr/ports.h"
#include "dcr/status.h"
#include "layout/group.h"
#include "layout/layout_file.h"
#include "tensor/catalogue.h"

namespace dcr {

// What a rank's loader does with one canonical tensor.
struct LoadWrite {
  std::uint32_t target = 0;  // index in ReceiverRank::targets
  Box box;                   // words of the canonical tensor → words of the target's storage
};
struct LoadFill {
  std::uint32_t target = 0;
  std::uint64_t begin = 0, end = 0;  // words of the target that get zero
};
struct LoadSteps {
  Behaviour behaviour = Behaviour::kSkip;
  std::vector<LoadWrite> writes;
  std::vector<LoadFill> fills;
};

// One rank's targets. Storage i of the rank's TargetMemory has storage_bytes[i] bytes; targets lie
// alone and contiguously in storages, except aliases, which share one.
struct ReceiverRank {
  std::vector<LoaderTarget> targets;
  std::vector<std::uint64_t> storage_bytes;
  std::vector<LoadSteps> steps;  // index: of the canonical tensor in the catalogue
};

class ReceiverPlan {
 public:
  // Errors: those of make_groups; kMismatch naming an alias of no target, or a buffer that has the
  // name of a target.
  static Result<ReceiverPlan> make(const Catalogue& catalogue, Layout layout);

  std::uint32_t ranks() const { return layout_.ranks; }
  const Layout& layout() const { return layout_; }

  // `catalogue`: the one that the plan was made from. Errors: those of make_local_tensor; kMismatch
  // naming an alias whose shape is not that of its target.
  Result<ReceiverRank> rank(const Catalogue& catalogue, std::uint32_t rank) const;

 private:
  Layout layout_;
  std::vector<LayoutGroup> groups_;
};

}  // namespace dcr
