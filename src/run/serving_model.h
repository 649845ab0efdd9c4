// One serving rank's parameters and native loader in host memory: a stand-in for a serving runtime.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "layout/receiver_plan.h"
#include "layout/reference_loader.h"
#include "receiver/host_memory.h"
#include "run/run_model.h"
#include "runtime/arena.h"

namespace dcr {

struct ServingModel {
  ReceiverRank plan;
  Arena weights;
  std::unique_ptr<HostMemory> memory;
  std::unique_ptr<ReferenceLoader> loader;

  // `model` must outlive it. Errors: of the layout and of memory.
  static Result<std::unique_ptr<ServingModel>> make(const RunModel& model, std::uint32_t rank);

  // Loads a checkpoint densely, as a start of the runtime would.
  Status load(const RunModel& model, const Checkpoint& checkpoint);
};

// What comparing two ranks' storages found.
struct StorageComparison {
  std::uint64_t bytes = 0;
  std::uint64_t differing = 0;
};
// REQUIRES: of one rank.
StorageComparison compare_storages(const ServingModel& a, const ServingModel& b);

// Over every byte of every storage.
Digest storage_digest(const ServingModel& model);

}  // namespace dcr
