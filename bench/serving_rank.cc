#include "bench/serving_rank.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "api/refit_context.h"
#include "base/limits.h"
#include "layout/generators.h"
#include "layout/layout_file.h"

namespace dcr {
namespace {

constexpr std::uint64_t kScratchBytesMax = 4 * kGiB;

}  // namespace

Result<ServingRank::Weights> ServingRank::allocate() const {
  std::uint64_t bytes = 0;
  for (const std::uint64_t storage : plan_.storage_bytes) bytes += arena_bytes_of(storage);
  Weights weights;
  DCR_ASSIGN(weights.arena, Arena::anonymous(bytes));
  std::uint64_t offset = 0;
  for (const std::uint64_t storage : plan_.storage_bytes) {
    weights.storages.push_back(weights.arena.bytes().subspan(static_cast<std::size_t>(offset),
                                                             static_cast<std::size_t>(storage)));
    offset += arena_bytes_of(storage);
  }
  return weights;
}

Status ServingRank::load(const Checkpoint& checkpoint, const Weights& weights) const {
  HostMemory memory(kScratchBytesMax);
  for (const MutableByteSpan storage : weights.storages) memory.add(storage);
  ReferenceLoader loader(pair_.catalogue, plan_, memory, 0);
  CheckpointReader reader(checkpoint);
  return load_dense(pair_.catalogue, reader, memory, loader);
}

Result<std::unique_ptr<ServingRank>> ServingRank::make(const OpenPair& pair,
                                                       unsigned tensor_parallel) {
  auto rank = std::make_unique<ServingRank>(pair);
  DCR_ASSIGN(
      const std::string text,
      generate_receiver_layout(pair.catalogue, "fused-tp:" + std::to_string(tensor_parallel)));
  DCR_ASSIGN(const Layout layout, parse_receiver_layout(text));
  DCR_ASSIGN(const ReceiverPlan plan, ReceiverPlan::make(pair.catalogue, layout));
  DCR_ASSIGN(rank->plan_, plan.rank(pair.catalogue, 0));
  DCR_ASSIGN(rank->old_, rank->allocate());
  DCR_TRY(rank->load(pair.before, rank->old_));
  DCR_ASSIGN(rank->new_, rank->allocate());
  DCR_TRY(rank->load(pair.after, rank->new_));
  DCR_ASSIGN(rank->resident_, rank->copy_of_old());
  rank->memory_ = std::make_unique<HostMemory>(kScratchBytesMax);
  for (const MutableByteSpan storage : rank->resident_.storages) rank->memory_->add(storage);
  rank->loader_ = std::make_unique<ReferenceLoader>(pair.catalogue, rank->plan_, *rank->memory_, 0);
  DCR_ASSIGN(rank->prewarm_, prewarm(pair.catalogue, *rank->loader_, *rank->memory_, {}));
  for (const TensorClass& one : rank->prewarm_.classes) {
    if (one.path == TensorPath::kTraced) continue;
    return Status(Code::kInternal, "a tensor of the benchmark is not traced: " + one.reason);
  }
  return rank;
}

std::vector<std::vector<ServingRank::Run>> ServingRank::runs() const {
  std::vector<std::vector<Run>> runs;
  for (const std::vector<Place>& places : prewarm_.places) {
    std::vector<Run>& of = runs.emplace_back();
    for (const Place& place : places) {
      for_each_run(place.box, [&](const dcr::Run& run) {
        of.push_back({static_cast<std::size_t>(place.storage), run.src, run.dst,
                      static_cast<std::size_t>(run.length)});
        return true;
      });
    }
  }
  return runs;
}

Result<ServingRank::Weights> ServingRank::copy_of_old() const {
  DCR_ASSIGN(Weights copy, allocate());
  for (std::size_t i = 0; i < copy.storages.size(); ++i) {
    std::copy(old_.storages[i].begin(), old_.storages[i].end(), copy.storages[i].begin());
  }
  return copy;
}

Status ServingRank::apply(Executor& executor,
                          std::span<const std::shared_ptr<const DecodedPayload>> payloads) {
  std::unique_ptr<Applier>& applier = appliers_[&executor];
  if (!applier) {
    applier = std::make_unique<Applier>(pair_.catalogue, *loader_, *memory_, executor);
    DCR_TRY(applier->begin(&prewarm_, false));
  }
  ReceiverCounts counts;
  for (const auto& payload : payloads) {
    DCR_TRY(applier->apply(*payload, ApplyMode::kWrite, &counts));
  }
  return applier->finish();
}

Status ServingRank::check_and_restore(std::span<const MutableByteSpan> storages) const {
  for (std::size_t i = 0; i < storages.size(); ++i) {
    if (!std::equal(storages[i].begin(), storages[i].end(), new_.storages[i].begin())) {
      return Status(Code::kMismatch,
                    "apply: target " + std::to_string(i) + " has other weights than NEW");
    }
    std::copy(old_.storages[i].begin(), old_.storages[i].end(), storages[i].begin());
  }
  return {};
}

}  // namespace dcr
