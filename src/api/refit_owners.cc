#include "api/refit_owners.h"

#include <algorithm>
#include <string>
#include <utility>

#include "layout/checkpoint_reader.h"
#include "layout/converters.h"
#include "layout/shard.h"
#include "source/geometry.h"
#include "source/pipeline.h"
#include "source/source_plan.h"

namespace dcr {

namespace {

// The allocator takes long to count a heap of many blocks: it is asked after a piece's bytes, or
// after so many smaller ones.
constexpr std::uint64_t kReportsMax = 512;

}  // namespace

Result<std::unique_ptr<RefitOwners>> RefitOwners::create(const RefitContext& context,
                                                         const Layout& layout) {
  DCR_ASSIGN(const OwnerPlan plan, OwnerPlan::make(context.catalogue, layout));
  auto owners = std::make_unique<RefitOwners>(context);
  DCR_TRY(owners->make_ranks(plan));
  DCR_TRY(owners->make_owners());
  DCR_TRY(owners->make_group());
  return owners;
}

Status RefitOwners::make_ranks(const OwnerPlan& plan) {
  local_ = std::make_unique<LocalRanks>(plan.ranks());
  for (std::uint32_t number = 0; number < plan.ranks(); ++number) {
    auto rank = std::make_unique<Rank>();
    rank->plan = plan.rank(context_.catalogue, number);
    DCR_ASSIGN(rank->weights, refit_arena(context_, "weights-of-owner-" + std::to_string(number),
                                          storages_bytes(rank->plan.storage_bytes)));
    rank->storages = storages_in(rank->weights, rank->plan.storage_bytes);
    for (const MutableByteSpan storage : rank->storages) rank->memory.add(storage);
    rank->collective = std::make_unique<LocalCollective>(*local_, number);
    if (context_.options.construction == RefitConstruction::kFullConversion) {
      rank->converters = make_identity_converters(context_.catalogue, plan, number, rank->memory);
    } else {
      rank->converters = make_rule_converters(context_.catalogue, plan, number, rank->memory);
    }
    ranks_.push_back(std::move(rank));
  }
  return {};
}

Status RefitOwners::make_owners() {
  std::vector<OwnerInput> inputs;
  std::vector<OwnerDeclaration> declarations;
  for (std::uint32_t number = 0; number < ranks(); ++number) {
    Rank& rank = *ranks_[number];
    OwnerInput input;
    input.rank = number;
    input.tasks = rank.plan.tasks;
    for (const auto& converter : rank.converters) input.converters.push_back(converter.get());
    input.memory = &rank.memory;
    input.collective = rank.collective.get();
    DCR_ASSIGN(OwnerDeclaration declaration, declare_owner(input));
    declarations.push_back(std::move(declaration));
    inputs.push_back(std::move(input));
  }
  DCR_ASSIGN(const std::shared_ptr<const Geometry> geometry,
             Geometry::make(context_.catalogue, declarations));
  const std::string& directory = context_.options.arena_directory;
  for (std::uint32_t number = 0; number < ranks(); ++number) {
    const std::string path = directory.empty()
                                 ? std::string()
                                 : directory + "/dcr-baseline-" + std::to_string(number) + ".arena";
    DCR_ASSIGN(ranks_[number]->owner, Owner::create(geometry, std::move(inputs[number]), path));
    local_->connect(number, ranks_[number]->owner->residual());
  }
  return {};
}

Status RefitOwners::make_group() {
  std::vector<Owner*> owners;
  std::uint64_t total = 0;
  for (const auto& rank : ranks_) {
    owners.push_back(rank->owner.get());
    total += rank->owner->sizes().projected_bytes + rank->owner->sizes().residual_bytes;
  }
  OwnerOptions options;
  options.chunk_bytes = context_.options.chunk_bytes;
  options.bucket_bytes = refit_bucket_bytes(context_.options);
  options.memory_bytes_max = context_.options.memory_bytes_max * ranks_.size();
  options.cancel = context_.options.cancel;
  options.spans = &context_.spans;
  options.progress = [this, total](const char* stage, std::uint64_t bytes) {
    report(stage, bytes, total);
  };
  DCR_ASSIGN(group_, OwnerGroup::create(std::move(owners), context_.executor, std::move(options)));
  return {};
}

void RefitOwners::report(const char* stage, std::uint64_t bytes, std::uint64_t total) {
  unmeasured_bytes_ += bytes;
  if (memory_of_others_ && (unmeasured_bytes_ >= kPieceBytesMax || ++unmeasured_ >= kReportsMax)) {
    unmeasured_bytes_ = 0;
    unmeasured_ = 0;
    const std::uint64_t now = heap_bytes();
    const std::uint64_t then = memory_begin_ + memory_of_others_();
    if (now > then) memory_peak_ = std::max(memory_peak_, now - then);
  }
  if (!context_.options.progress) return;
  if (stage_ != stage) done_bytes_ = 0;
  stage_ = stage;
  done_bytes_ += bytes;
  context_.options.progress({stage, done_bytes_, std::max(total, done_bytes_)});
}

void RefitOwners::measure_memory(std::function<std::uint64_t()> others) {
  const std::uint64_t now = heap_bytes();
  memory_begin_ = now - std::min(now, others());
  memory_peak_ = 0;
  unmeasured_ = kReportsMax;  // the next report is measured
  memory_of_others_ = std::move(others);
}

Status RefitOwners::load(const Checkpoint& checkpoint) {
  std::vector<std::pair<Rank*, std::size_t>> tasks;
  for (const auto& rank : ranks_) {
    for (std::size_t i = 0; i < rank->plan.tasks.size(); ++i) tasks.emplace_back(rank.get(), i);
  }
  CheckpointReader reader(checkpoint);
  return refit_parallel(
      context_, kStageLoad, tasks.size(),
      [&](std::uint64_t i) { return tasks[i].first->plan.storage_bytes[tasks[i].second]; },
      [&](std::uint64_t i) {
        const auto& [rank, task] = tasks[i];
        const SpanTimer timer(&context_.spans, kStageLoad, rank->collective->rank());
        return fill_shard(context_.catalogue, rank->plan.tasks[task], reader, rank->storages[task]);
      });
}

std::vector<std::vector<OwnerBox>> RefitOwners::boxes() const {
  std::vector<std::vector<OwnerBox>> boxes;
  for (const auto& rank : ranks_) {
    std::vector<OwnerBox>& of = boxes.emplace_back();
    for (auto& [tensor, box] : rank->owner->item_boxes()) of.push_back({tensor, box});
  }
  return boxes;
}

}  // namespace dcr
