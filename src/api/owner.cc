#include "dcr/owner.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "api/call_limits.h"
#include "api/owner_tasks.h"
#include "api/stages.h"
#include "base/bytes.h"
#include "base/cancelled.h"
#include "base/digest.h"
#include "base/limits.h"
#include "runtime/clock.h"
#include "source/geometry.h"
#include "source/host_source_memory.h"
#include "source/owner_group.h"
#include "source/source_plan.h"
#include "tensor/text.h"
#include "tensor/view.h"

namespace dcr {
namespace {

EncodingChoice choice_of(const std::optional<Encoding>& encoding) {
  if (!encoding) return EncodingChoice::kSmallest;
  switch (*encoding) {
    case Encoding::kOverwrite:
      return EncodingChoice::kOverwrite;
    case Encoding::kXor:
      return EncodingChoice::kXor;
    case Encoding::kAdd:
      return EncodingChoice::kAdd;
  }
  return EncodingChoice::kSmallest;
}

CanonicalBox canonical_box(const Piece& piece) {
  CanonicalBox box{piece.tensor, piece.box.offset, {}, {}};
  for (const ItemDimension& dim : piece.box.dims) {
    box.sizes.push_back(dim.size);
    box.strides.push_back(dim.stride);
  }
  return box;
}

// What a rank sends, in the order of its items.
Result<std::vector<CanonicalBox>> boxes_of(const Geometry& geometry, std::uint32_t rank,
                                           std::span<const ConversionTask> tasks) {
  SourcePlanInput input;
  input.catalogue = &geometry.catalogue();
  input.tasks = tasks;
  input.rank = rank;
  input.projected = [](std::uint32_t) { return true; };
  input.feeds = [](const std::string&) { return false; };
  const Result<SourcePlan> plan = plan_sources(input);
  if (!plan.ok()) return plan.status().with_context("rank " + std::to_string(rank));
  std::vector<CanonicalBox> boxes;
  boxes.reserve(plan->pieces.size());
  for (const Piece& piece : plan->pieces) boxes.push_back(canonical_box(piece));
  return boxes;
}

Result<std::vector<RankDeclaration>> decode_all(
    std::span<const std::span<const std::uint8_t>> encoded, const CancelToken* cancel) {
  if (encoded.empty()) return Status(Code::kInvalidArgument, "no rank's declaration was given");
  if (encoded.size() > kDeclaredRanksMax) {
    return Status(Code::kTooLarge, std::to_string(encoded.size()) + " ranks");
  }
  std::vector<RankDeclaration> declarations;
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    DCR_TRY(check_cancelled(cancel));
    Result<RankDeclaration> declaration = decode_declaration(encoded[i]);
    if (!declaration.ok()) {
      return declaration.status().with_context("rank " + std::to_string(i));
    }
    declarations.push_back(std::move(declaration).value());
  }
  return declarations;
}

}  // namespace

Status HostStorages::read(const TensorView& view, std::span<std::uint8_t> out) {
  if (view.storage >= storages_.size()) {
    return {Code::kInvalidArgument, "there is no storage " + std::to_string(view.storage)};
  }
  return read_host_view(storages_[static_cast<std::size_t>(view.storage)], view, out);
}

struct EmbeddedOwner::State {
  State(std::uint32_t of, SourceMemory& weights, EmbeddedOwnerOptions chosen)
      : rank(of), memory(weights), options(std::move(chosen)) {}

  Status agree(std::span<const std::span<const std::uint8_t>> encoded, const CancelToken* stop);
  Status make_owner();
  // Begins a call; error kCancelled if it is already to end.
  Status begin(const OwnerCall& next);
  Status stopped() const;
  void report(const char* now, std::uint64_t bytes);
  Result<Digest> digest_of(const ConversionTask& task);
  // What this call sent.
  OwnerResult result_of(const PipelineResult& sent, AttemptMode mode);

  const std::uint32_t rank;
  SourceMemory& memory;
  const EmbeddedOwnerOptions options;
  AgreedTasks agreed;
  std::vector<std::vector<CanonicalBox>> boxes;
  std::shared_ptr<const Geometry> geometry;
  std::unique_ptr<Executor> executor;
  SpanRecorder spans{&monotonic_clock()};
  std::unique_ptr<Owner> owner;
  std::unique_ptr<OwnerGroup> group;
  // The group's token, which follows that of the call.
  CancelToken cancel;
  OwnerCall call;
  const char* stage = nullptr;  // that progress was last reported for, and its bytes
  std::uint64_t done_bytes = 0;
};

Status EmbeddedOwner::State::agree(std::span<const std::span<const std::uint8_t>> encoded,
                                   const CancelToken* stop) {
  DCR_ASSIGN(const std::vector<RankDeclaration> declarations, decode_all(encoded, stop));
  if (rank >= declarations.size()) {
    return {Code::kInvalidArgument, "rank " + std::to_string(rank) + " of " +
                                        std::to_string(declarations.size()) + " declarations"};
  }
  DCR_ASSIGN(agreed, agree_on_tasks(declarations, stop));
  std::vector<OwnerDeclaration> owned;
  for (std::uint32_t i = 0; i < agreed.tasks.size(); ++i) {
    DCR_TRY(check_cancelled(stop));
    OwnerInput input;
    input.rank = i;
    input.tasks = agreed.tasks[i];
    DCR_ASSIGN(OwnerDeclaration declaration, declare_owner(input));
    owned.push_back(std::move(declaration));
  }
  DCR_ASSIGN(geometry, Geometry::make(agreed.catalogue, owned, stop));
  for (std::uint32_t i = 0; i < agreed.tasks.size(); ++i) {
    DCR_TRY(check_cancelled(stop));
    DCR_ASSIGN(std::vector<CanonicalBox> sent, boxes_of(*geometry, i, agreed.tasks[i]));
    boxes.push_back(std::move(sent));
  }
  return {};
}

Status EmbeddedOwner::State::make_owner() {
  executor = make_call_executor(options.threads);
  OwnerInput input;
  input.rank = rank;
  input.tasks = agreed.tasks[rank];
  input.memory = &memory;
  DCR_ASSIGN(owner, Owner::create(geometry, std::move(input), options.baseline_file));
  OwnerOptions group_options;
  group_options.chunk_bytes = options.chunk_bytes;
  group_options.bucket_bytes = options.bucket_bytes;
  group_options.memory_bytes_max = options.memory_bytes_max;
  group_options.key = options.key;
  group_options.cancel = &cancel;
  group_options.spans = &spans;
  group_options.progress = [this](const char* now, std::uint64_t bytes) { report(now, bytes); };
  DCR_ASSIGN(group, OwnerGroup::create({owner.get()}, *executor, std::move(group_options)));
  return {};
}

Status EmbeddedOwner::State::begin(const OwnerCall& next) {
  call = next;
  stage = nullptr;
  cancel.reset();
  spans.take();
  if (call.cancel == nullptr || !call.cancel->cancelled()) return {};
  return stopped();
}

Status EmbeddedOwner::State::stopped() const {
  return {Code::kCancelled, "owner " + std::to_string(rank) + " was asked to stop"};
}

void EmbeddedOwner::State::report(const char* now, std::uint64_t bytes) {
  if (call.cancel != nullptr && call.cancel->cancelled()) cancel.cancel();
  if (!call.progress) return;
  if (stage != now) done_bytes = 0;
  stage = now;
  done_bytes += bytes;
  call.progress({now, done_bytes, std::max(owner->sizes().projected_bytes, done_bytes)});
}

Result<Digest> EmbeddedOwner::State::digest_of(const ConversionTask& task) {
  const std::uint64_t words = view_words(task.view);
  const unsigned width = word_bytes(task.view.dtype);
  std::vector<Digest> leaves;
  Bytes leaf;
  for (std::uint64_t first = 0; first < words; first += kDigestLeafBytes / width) {
    if (call.cancel != nullptr && call.cancel->cancelled()) return stopped();
    const std::uint64_t count = std::min<std::uint64_t>(words - first, kDigestLeafBytes / width);
    leaf.resize(static_cast<std::size_t>(count) * width);
    DCR_TRY(read_range(memory, task.view, first, leaf));
    leaves.push_back(xxh3(leaf));
  }
  return combine_leaves(leaves);
}

OwnerResult EmbeddedOwner::State::result_of(const PipelineResult& sent, AttemptMode mode) {
  OwnerResult result;
  result.mode = mode;
  result.payloads = sent.payloads;
  result.payload_bytes = sent.payload_bytes;
  result.items = sent.items;
  std::ranges::copy(sent.items_by_encoding, result.items_by_encoding.begin());
  result.stages = stages_of(spans.take());
  return result;
}

EmbeddedOwner::EmbeddedOwner(std::unique_ptr<State> state) : state_(std::move(state)) {}
EmbeddedOwner::~EmbeddedOwner() = default;

Result<std::unique_ptr<EmbeddedOwner>> EmbeddedOwner::create(
    std::span<const std::span<const std::uint8_t>> declarations, std::uint32_t rank,
    SourceMemory& memory, EmbeddedOwnerOptions options, const CancelToken* cancel) {
  DCR_TRY(check_call(options.memory_bytes_max, options.threads));
  if (!options.key.empty() && (options.key.size() < 16 || options.key.size() > 64)) {
    return Status(Code::kInvalidArgument,
                  "a key of " + std::to_string(options.key.size()) + " bytes; 16 to 64 are needed");
  }
  auto state = std::make_unique<State>(rank, memory, std::move(options));
  DCR_TRY(state->agree(declarations, cancel));
  DCR_TRY(state->make_owner());
  return std::make_unique<EmbeddedOwner>(std::move(state));
}

std::uint32_t EmbeddedOwner::rank() const { return state_->rank; }

std::uint32_t EmbeddedOwner::ranks() const {
  return static_cast<std::uint32_t>(state_->agreed.tasks.size());
}

OwnedSizes EmbeddedOwner::sizes() const {
  const OwnerSizes& sizes = state_->owner->sizes();
  return {sizes.source_elements, sizes.projected_words, sizes.projected_bytes,
          sizes.baseline_bytes};
}

const std::vector<CanonicalTensor>& EmbeddedOwner::tensors() const {
  return state_->agreed.catalogue.tensors();
}

const std::vector<std::vector<CanonicalBox>>& EmbeddedOwner::boxes() const { return state_->boxes; }

Result<std::vector<std::uint8_t>> EmbeddedOwner::replica_digests(const OwnerCall& call) {
  DCR_TRY(state_->begin(call));
  const std::vector<ConversionTask>& tasks = state_->agreed.tasks[state_->rank];
  Bytes digests;
  DCR_TRY(ordered_map<Digest>(
      *state_->executor, tasks.size(), 2 * std::uint64_t{state_->executor->threads()},
      &state_->cancel,
      [&](std::uint64_t i) -> Result<Digest> {
        const ConversionTask& task = tasks[static_cast<std::size_t>(i)];
        Result<Digest> digest = state_->digest_of(task);
        if (digest.ok()) return digest;
        return digest.status().with_context("task " + quoted_name(task.name));
      },
      [&](std::uint64_t i, Digest&& digest) -> Status {
        digests.insert(digests.end(), digest.begin(), digest.end());
        const TensorView& view = tasks[static_cast<std::size_t>(i)].view;
        state_->report("digest", view_words(view) * word_bytes(view.dtype));
        return {};
      }));
  return digests;
}

Status EmbeddedOwner::check_replicas(std::span<const std::span<const std::uint8_t>> digests) const {
  const std::vector<std::vector<ConversionTask>>& tasks = state_->agreed.tasks;
  if (digests.size() != tasks.size()) {
    return {Code::kInvalidArgument, "digests of " + std::to_string(digests.size()) + " ranks, of " +
                                        std::to_string(tasks.size())};
  }
  struct First {
    std::span<const std::uint8_t> digest;
    std::size_t rank;
  };
  std::map<std::string_view, First> seen;
  for (std::size_t rank = 0; rank < tasks.size(); ++rank) {
    if (digests[rank].size() != tasks[rank].size() * sizeof(Digest)) {
      return {Code::kCorrupt,
              "rank " + std::to_string(rank) + " has " + std::to_string(tasks[rank].size()) +
                  " tasks and sent digests of " + std::to_string(digests[rank].size()) + " bytes"};
    }
    for (std::size_t i = 0; i < tasks[rank].size(); ++i) {
      const auto digest = digests[rank].subspan(i * sizeof(Digest), sizeof(Digest));
      const auto [found, fresh] = seen.emplace(tasks[rank][i].name, First{digest, rank});
      if (fresh || std::ranges::equal(found->second.digest, digest)) continue;
      return {Code::kMismatch, "replicas of " + quoted_name(tasks[rank][i].name) +
                                   " differ: rank " + std::to_string(found->second.rank) +
                                   " and rank " + std::to_string(rank) +
                                   " hold different bits; make them equal first (a broadcast)"};
    }
  }
  return {};
}

Status EmbeddedOwner::initialize(std::uint64_t version, const OwnerCall& call) {
  DCR_TRY(state_->begin(call));
  return state_->group->initialize(version);
}

std::optional<std::uint64_t> EmbeddedOwner::baseline_version() const {
  return state_->owner->baseline_version();
}

Result<OwnerResult> EmbeddedOwner::prepare(const OwnerAttempt& attempt, PayloadSink& sink,
                                           const OwnerCall& call) {
  DCR_TRY(state_->begin(call));
  Attempt inner;
  inner.run = attempt.run;
  inner.attempt = attempt.attempt;
  inner.candidate = attempt.candidate;
  inner.base_version = attempt.base_version;
  inner.target_version = attempt.target_version;
  inner.mode = attempt.mode;
  inner.mixed = choice_of(attempt.encoding);
  inner.needs = attempt.needs;
  PayloadSink* const sinks[] = {&sink};
  DCR_ASSIGN(const std::vector<PrepareResult> prepared, state_->group->prepare(inner, sinks));
  const PrepareResult& of = prepared.front();
  OwnerResult result = state_->result_of(of.pipeline, of.mode);
  result.entries = of.pipeline.changed;
  result.changed_source_elements = of.changed_source_elements;
  result.changed_canonical_words = of.changed_projected_words;
  return result;
}

Status EmbeddedOwner::commit(std::uint64_t version, const OwnerCall& call) {
  DCR_TRY(state_->begin(call));
  return state_->group->commit(version);
}

void EmbeddedOwner::drop_attempt() { state_->group->drop_attempt(); }

Result<OwnerResult> EmbeddedOwner::restore(const RunId& run, std::uint64_t attempt,
                                           std::uint64_t version, PayloadSink& sink,
                                           const OwnerCall& call) {
  DCR_TRY(state_->begin(call));
  PayloadSink* const sinks[] = {&sink};
  DCR_ASSIGN(const std::vector<PipelineResult> sent,
             state_->group->restore({run, attempt, version}, sinks));
  return state_->result_of(sent.front(), AttemptMode::kDense);
}

Result<std::vector<std::uint8_t>> EmbeddedOwner::sample(const RunId& run, std::uint64_t attempt,
                                                        std::uint64_t version, std::uint64_t seed) {
  DCR_TRY(state_->begin({}));
  DCR_ASSIGN(std::vector<Bytes> samples, state_->group->sample({run, attempt, version}, seed));
  return std::move(samples.front());
}

}  // namespace dcr
