#include "api/refit_receivers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "layout/checkpoint_reader.h"
#include "receiver/needs.h"
#include "receiver/rank_coverage.h"
#include "source/source_plan.h"

namespace dcr {
namespace {

constexpr std::size_t kListedMax = 100;
// Payloads that are decoded side by side: two stay within half of the memory.
constexpr std::size_t kDecodedAtOnce = 2;

// Scratch that a rank's loader and receiver may take together: a few of the largest tensors, and
// those that a loader needs whole, as many as the owners' payloads bring parts of at a time.
std::uint64_t scratch_bytes_max(const Catalogue& catalogue) {
  std::uint64_t largest = 0;
  std::uint64_t all = 0;
  for (const CanonicalTensor& tensor : catalogue.tensors()) {
    const std::uint64_t bytes = tensor.words * word_bytes(tensor.dtype);
    largest = std::max(largest, bytes);
    all += bytes;
  }
  return 8 * largest + all + kMiB;
}

std::uint64_t differing_bytes(ByteSpan a, ByteSpan b) {
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) return 0;
  std::uint64_t different = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) ++different;
  }
  return different;
}

}  // namespace

Result<std::unique_ptr<RefitReceivers>> RefitReceivers::create(
    const RefitContext& context, const Layout& layout,
    const std::vector<std::vector<OwnerBox>>& owner_boxes) {
  auto receivers = std::make_unique<RefitReceivers>(context);
  DCR_ASSIGN(ReceiverPlan plan, ReceiverPlan::make(context.catalogue, layout));
  receivers->plan_ = std::make_unique<ReceiverPlan>(std::move(plan));
  const std::uint32_t count = receivers->plan_->ranks();
  ReceiverOptions options;
  options.owners = owner_boxes;
  for (const TargetBuffer& buffer : layout.buffers) options.never_loaded.push_back(buffer.name);
  options.decoded_bytes_max = context.options.memory_bytes_max / 2;
  options.prefer_scratch = context.options.prefer_scratch;
  options.post_apply_checks = context.options.post_apply_checks;
  receivers->ranks_.resize(count);
  for (std::uint32_t number = 0; number < count; ++number) {
    Rank& rank = receivers->ranks_[number];
    DCR_ASSIGN(rank.model,
               receivers->make_model(number, "weights-of-receiver-" + std::to_string(number)));
    rank.executor = make_executor(std::max(1U, context.executor.threads() / count));
    DCR_ASSIGN(rank.receiver, Receiver::create(context.catalogue, *rank.model.loader,
                                               *rank.model.memory, *rank.executor, options));
  }
  return receivers;
}

Result<RefitReceivers::Model> RefitReceivers::make_model(std::uint32_t rank,
                                                         const std::string& name) const {
  Model model;
  DCR_ASSIGN(model.plan, plan_->rank(context_.catalogue, rank));
  DCR_ASSIGN(model.weights, refit_arena(context_, name, storages_bytes(model.plan.storage_bytes)));
  model.memory = std::make_unique<HostMemory>(scratch_bytes_max(context_.catalogue));
  for (const MutableByteSpan storage : storages_in(model.weights, model.plan.storage_bytes)) {
    model.memory->add(storage);
  }
  model.loader =
      std::make_unique<ReferenceLoader>(context_.catalogue, model.plan, *model.memory, rank);
  return model;
}

Status RefitReceivers::load_model(const Checkpoint& checkpoint, Model& model) const {
  CheckpointReader reader(checkpoint);
  DCR_TRY(load_dense(context_.catalogue, reader, *model.memory, *model.loader));
  return model.loader->process_after_loading();
}

Status RefitReceivers::load(const Checkpoint& checkpoint) {
  return refit_parallel(
      context_, kStageLoad, ranks(),
      [&](std::uint64_t i) { return ranks_[i].model.weights.bytes().size(); },
      [&](std::uint64_t i) {
        const SpanTimer timer(&context_.spans, kStageLoad, static_cast<std::uint32_t>(i));
        return load_model(checkpoint, ranks_[i].model);
      });
}

Status RefitReceivers::prewarm(const Checkpoint& checkpoint) {
  const auto weight = [&](std::uint64_t i) { return ranks_[i].model.weights.bytes().size(); };
  const auto prewarm_one = [&](std::uint64_t i) {
    const std::uint32_t rank = static_cast<std::uint32_t>(i);
    const SpanTimer timer(&context_.spans, kStagePrewarm, rank);
    return ranks_[i].receiver->prewarm().with_context("receiver " + std::to_string(rank));
  };
  DCR_TRY(refit_parallel(context_, kStagePrewarm, ranks(), weight, prewarm_one));
  DCR_TRY(share_collectives(receivers()));
  DCR_TRY(refuse());
  return refit_parallel(context_, kStageAudit, ranks(), weight, [&](std::uint64_t i) {
    const std::uint32_t rank = static_cast<std::uint32_t>(i);
    const SpanTimer timer(&context_.spans, kStageAudit, rank);
    CheckpointReader reader(checkpoint);
    return ranks_[i]
        .receiver
        ->audit([&](std::uint32_t tensor, std::uint64_t first, MutableByteSpan out) {
          return reader.read(tensor, first, out);
        })
        .with_context("receiver " + std::to_string(rank));
  });
}

std::vector<Receiver*> RefitReceivers::receivers() const {
  std::vector<Receiver*> receivers;
  for (const Rank& rank : ranks_) receivers.push_back(rank.receiver.get());
  return receivers;
}

Status RefitReceivers::refuse() const {
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    DCR_TRY(
        check_not_refused(*ranks_[rank].receiver).with_context("receiver " + std::to_string(rank)));
  }
  return {};
}

std::vector<Need> RefitReceivers::needs() const {
  std::vector<Need> needs(context_.catalogue.size(), Need::kSkip);
  for (const Rank& rank : ranks_) add_needs(needs_of(rank.receiver->classes()), &needs);
  return needs;
}

std::vector<TensorSpec> RefitReceivers::specs() const {
  std::vector<TensorSpec> specs;
  const std::vector<Need> needs = this->needs();
  for (std::uint32_t tensor = 0; tensor < needs.size(); ++tensor) {
    const CanonicalTensor& of = context_.catalogue[tensor];
    specs.push_back(
        {of.words, static_cast<std::uint8_t>(word_bytes(of.dtype)), needs[tensor] != Need::kAny});
  }
  return specs;
}

Status RefitReceivers::apply_one(Rank& rank,
                                 const std::shared_ptr<const DecodedPayload>& payload) const {
  DCR_ASSIGN(const Ingested ingested, rank.receiver->ingest(payload));
  if (ingested != Ingested::kQueued) {
    return Status(Code::kInternal, "a payload in its order was not queued");
  }
  rank.memory_peak = std::max(rank.memory_peak, rank.receiver->memory_bytes());
  return rank.receiver->apply().status();
}

Status RefitReceivers::apply_everywhere(const std::shared_ptr<const DecodedPayload>& payload) {
  return ordered_map<bool>(
      context_.executor, ranks(), ranks(), context_.options.cancel,
      [&](std::uint64_t rank) -> Result<bool> {
        const SpanTimer timer(&context_.spans, kStageApply, static_cast<std::uint32_t>(rank));
        DCR_TRY(apply_one(ranks_[rank], payload).with_context("receiver " + std::to_string(rank)));
        return true;
      },
      [](std::uint64_t, bool&&) -> Status { return {}; });
}

Status RefitReceivers::begin(const AttemptHeader& header, std::uint32_t owners) {
  specs_ = specs();
  payloads_.assign(owners, std::nullopt);
  for (Rank& rank : ranks_) DCR_TRY(rank.receiver->begin_attempt(header));
  return {};
}

Status RefitReceivers::take(std::uint32_t owner, std::uint64_t number, ByteSpan payload) {
  waiting_.emplace(std::pair(number, owner), Bytes(payload.begin(), payload.end()));
  return apply_in_turn(std::min<std::size_t>(kDecodedAtOnce, context_.executor.threads()));
}

Status RefitReceivers::end(const std::vector<std::uint64_t>& owner_payloads) {
  for (std::uint32_t owner = 0; owner < owner_payloads.size(); ++owner) {
    payloads_[owner] = owner_payloads[owner];
    for (Rank& rank : ranks_) {
      DCR_TRY(rank.receiver->end_of_owner(owner, owner_payloads[owner]));
    }
  }
  DCR_TRY(apply_in_turn(1));
  for (Rank& rank : ranks_) {
    DCR_TRY(rank.receiver->apply().status());
    DCR_ASSIGN(rank.counts, rank.receiver->finish());
  }
  return {};
}

std::uint64_t RefitReceivers::held_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [order, payload] : waiting_) bytes += payload.size();
  for (const Rank& rank : ranks_) bytes += rank.receiver->memory_bytes();
  return bytes;
}

Status RefitReceivers::apply_in_turn(std::size_t least) {
  using Waiting = decltype(waiting_)::iterator;
  std::vector<Waiting> turn;
  std::uint64_t number = next_number_;
  std::uint32_t owner = next_owner_;
  while (turn.size() < waiting_.size()) {
    const Waiting next = waiting_.find({number, owner});
    if (next != waiting_.end()) {
      turn.push_back(next);
    } else {
      const std::optional<std::uint64_t>& count = payloads_[owner];
      if (!count || number < *count) break;  // it is still to come
    }
    if (++owner == payloads_.size()) {
      owner = 0;
      ++number;
    }
  }
  if (turn.empty() || turn.size() < least) return {};
  next_number_ = number;
  next_owner_ = owner;
  const PayloadLimits limits = {kPayloadStoredBytesMax, kPayloadRawBytesMax};
  using Decoded = std::shared_ptr<const DecodedPayload>;
  const auto decode = [&](std::uint64_t i) -> Result<Decoded> {
    const auto& [order, stored] = *turn[static_cast<std::size_t>(i)];
    const SpanTimer timer(&context_.spans, kStageDecode, order.second);
    return decode_payload(stored, context_.catalogue.schema(), specs_, limits,
                          context_.options.memory_bytes_max / 4);
  };
  const auto apply = [&](std::uint64_t i, Decoded&& decoded) -> Status {
    waiting_.erase(turn[static_cast<std::size_t>(i)]);
    return apply_everywhere(decoded);
  };
  return ordered_map<Decoded>(context_.executor, turn.size(), kDecodedAtOnce,
                              context_.options.cancel, decode, apply);
}

Status RefitReceivers::compare(const Checkpoint& checkpoint, RefitResult* result) {
  std::vector<std::vector<std::uint64_t>> different(ranks());  // by storage
  const auto compare_one = [&](std::uint64_t i) -> Status {
    DCR_ASSIGN(Model dense, make_model(static_cast<std::uint32_t>(i),
                                       "dense-load-of-receiver-" + std::to_string(i)));
    DCR_TRY(load_model(checkpoint, dense));
    const Model& model = ranks_[i].model;
    for (std::size_t s = 0; s < model.plan.storage_bytes.size(); ++s) {
      different[i].push_back(differing_bytes(model.memory->bytes(s), dense.memory->bytes(s)));
    }
    return {};
  };
  DCR_TRY(refit_parallel(
      context_, kStageCompare, ranks(),
      [&](std::uint64_t i) { return ranks_[i].model.weights.bytes().size(); }, compare_one));
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    const Model& model = ranks_[rank].model;
    for (std::size_t s = 0; s < different[rank].size(); ++s) {
      result->compared_bytes += model.plan.storage_bytes[s];
      result->differing_bytes += different[rank][s];
    }
    for (const LoaderTarget& target : model.plan.targets) {
      if (different[rank][static_cast<std::size_t>(target.view.storage)] == 0) continue;
      if (result->differing.size() == kListedMax) break;
      result->differing.push_back(target.name + " of receiver " + std::to_string(rank));
    }
  }
  return {};
}

void RefitReceivers::report(RefitResult* result) const {
  result->receivers = ranks();
  for (std::uint32_t number = 0; number < ranks(); ++number) {
    const Rank& rank = ranks_[number];
    result->destinations += rank.counts.destinations;
    result->resident_different += rank.counts.different;
    result->checked += rank.counts.checked;
    result->receiver_memory_bytes += rank.memory_peak + rank.model.memory->scratch_bytes_peak();
    for (std::uint32_t tensor = 0; tensor < context_.catalogue.size(); ++tensor) {
      const TensorClass& found = rank.receiver->classes()[tensor];
      ++result->paths[std::string(path_name(found.path))];
      if (found.path == TensorPath::kTraced || found.path == TensorPath::kSkip) continue;
      if (result->not_traced.size() == kListedMax) continue;
      result->not_traced.push_back({context_.catalogue[tensor].name, number,
                                    std::string(path_name(found.path)), found.reason});
    }
  }
  for (UnevenTensor& found : uneven_tensors(receivers())) {
    if (result->uneven.size() == kListedMax) break;
    result->uneven.push_back({context_.catalogue[found.tensor].name, std::move(found.reason)});
  }
}

}  // namespace dcr
