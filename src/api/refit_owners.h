// The owners of a refit in one process, and the trainer ranks' weights that they read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "api/refit_context.h"
#include "dcr/ports.h"
#include "dcr/status.h"
#include "layout/owner_plan.h"
#include "receiver/ownership.h"
#include "source/attempt.h"
#include "source/host_source_memory.h"
#include "source/local_collective.h"
#include "source/owner_group.h"
#include "tensor/checkpoint.h"

namespace dcr {

class RefitOwners {
 public:
  // Of create().
  explicit RefitOwners(const RefitContext& context) : context_(context) {}

  // `context` must outlive it. Errors: of the layout, the geometry and the arenas.
  static Result<std::unique_ptr<RefitOwners>> create(const RefitContext& context,
                                                     const Layout& layout);

  std::uint32_t ranks() const { return static_cast<std::uint32_t>(ranks_.size()); }

  // Gives every rank's source tensors their values of the checkpoint, which has the catalogue's
  // tensors.
  Status load(const Checkpoint& checkpoint);

  OwnerGroup& group() { return *group_; }
  const OwnerSizes& sizes(std::uint32_t rank) const { return ranks_[rank]->owner->sizes(); }

  // From now on follows the heap, of which `others` is what is held for somebody else, whenever the
  // group reports progress; memory_peak() is by how much it grew at most for owners.
  void measure_memory(std::function<std::uint64_t()> others);
  std::uint64_t memory_peak() const { return memory_peak_; }

  // What receivers let each owner send.
  std::vector<std::vector<OwnerBox>> boxes() const;

 private:
  struct Rank {
    OwnerRank plan;
    Arena weights;
    std::vector<MutableByteSpan> storages;  // in the arena
    HostSourceMemory memory;
    std::unique_ptr<LocalCollective> collective;
    std::vector<std::unique_ptr<Converter>> converters;
    std::unique_ptr<Owner> owner;
  };

  Status make_ranks(const OwnerPlan& plan);
  Status make_owners();
  Status make_group();
  void report(const char* stage, std::uint64_t bytes, std::uint64_t total);

  const RefitContext& context_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<LocalRanks> local_;
  std::uint64_t done_bytes_ = 0;  // of the stage that progress was last reported for
  const char* stage_ = nullptr;
  std::function<std::uint64_t()> memory_of_others_;
  std::uint64_t memory_begin_ = 0;
  std::uint64_t memory_peak_ = 0;
  // Progress since the last measurement.
  std::uint64_t unmeasured_bytes_ = 0;
  std::uint64_t unmeasured_ = 0;
  std::unique_ptr<OwnerGroup> group_;
};

}  // namespace dcr
