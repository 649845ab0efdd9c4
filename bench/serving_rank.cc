#include "bench/serving_rank.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "api/refit_context.h"
#include "base/limits.h"
#include "layout/checkpoint_reader.h"
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
                                                       unsigned tensor_parallel,
                                                       std::vector<std::vector<OwnerBox>> owners) {
  auto rank = std::make_unique<ServingRank>(pair);
  rank->owners_ = std::move(owners);
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
  return rank;
}

std::vector<std::vector<ServingRank::Run>> ServingRank::runs() const {
  std::vector<std::vector<Run>> runs;
  for (const LoadSteps& steps : plan_.steps) {
    std::vector<Run>& of = runs.emplace_back();
    for (const LoadWrite& write : steps.writes) {
      const auto storage = static_cast<std::size_t>(plan_.targets[write.target].view.storage);
      for_each_run(write.box, [&](const dcr::Run& run) {
        of.push_back({storage, run.src, run.dst, static_cast<std::size_t>(run.length)});
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

Status ServingRank::prepare(unsigned threads) {
  ReceiverOnThreads& made = receivers_[threads];
  made.executor = make_executor(threads);
  ReceiverOptions options;
  options.owners = owners_;
  DCR_ASSIGN(made.receiver, Receiver::create(pair_.catalogue, *loader_, *memory_, *made.executor,
                                             std::move(options)));
  DCR_TRY(made.receiver->prewarm());
  for (const TensorClass& one : made.receiver->classes()) {
    if (one.path == TensorPath::kTraced) continue;
    return Status(Code::kInternal, "a tensor of the benchmark is not traced: " + one.reason);
  }
  return {};
}

Status ServingRank::apply(unsigned threads,
                          std::span<const std::shared_ptr<const DecodedPayload>> payloads) {
  Receiver& receiver = *receivers_[threads].receiver;
  if (payloads.empty()) return {};
  const PayloadHeader& first = payloads[0]->header;
  DCR_TRY(receiver.begin_attempt(
      {first.run, first.attempt, first.base_version, first.target_version, ApplyMode::kWrite}));
  for (const auto& payload : payloads) {
    const Result<Ingested> ingested = receiver.ingest(payload);
    if (!ingested.ok()) return ingested.status();
    DCR_TRY(receiver.apply().status());
  }
  return {};
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
