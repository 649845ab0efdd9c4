#include "receiver/receiver.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/checked.h"
#include "base/mutant.h"
#include "receiver/attempt_items.h"
#include "tensor/text.h"

namespace dcr {
namespace {

std::string payload_name(const PayloadHeader& header) {
  return "payload " + std::to_string(header.number) + " of owner " + std::to_string(header.owner);
}

}  // namespace

struct Receiver::State {
  State(const Catalogue& the_catalogue, Loader& the_loader, TargetMemory& the_memory,
        Executor& executor, ReceiverOptions the_options, Ownership the_ownership)
      : catalogue(the_catalogue),
        loader(the_loader),
        memory(the_memory),
        options(std::move(the_options)),
        ownership(std::move(the_ownership)),
        applier(the_catalogue, ownership, the_loader, the_memory, executor),
        staging(options.decoded_bytes_max),
        items(options.decoded_bytes_max) {}

  const Catalogue& catalogue;
  Loader& loader;
  TargetMemory& memory;
  ReceiverOptions options;
  Ownership ownership;
  Applier applier;
  Staging staging;
  AttemptItems items;
  std::vector<TensorSpec> specs;
  PrewarmResult prewarm;
  bool prewarmed = false;
  bool active = false;  // an attempt is on
  AttemptHeader attempt;
  Status failure;  // of the attempt
  ReceiverCounts counts;

  Status fail(Status status) {
    failure = status;
    return status;
  }

  Status ask() const { return options.interruption ? options.interruption() : Status(); }

  void make_spec(std::uint32_t tensor);
  Status check_active() const;
  bool is_current(const PayloadHeader& header) const;
  Status check_header(const PayloadHeader& header, const AttemptHeader& of) const;
  Status check_items(const DecodedPayload& payload, const AttemptHeader& of) const;
  Result<Ingested> take(std::shared_ptr<const DecodedPayload> payload);
};

void Receiver::State::make_spec(std::uint32_t tensor) {
  const bool shared = ownership.shared(tensor);
  Need& need = prewarm.classes[tensor].need;
  if (shared && need == Need::kAny) need = Need::kOverwrite;
  const CanonicalTensor& canonical = catalogue[tensor];
  specs[tensor] = {canonical.words, static_cast<std::uint8_t>(word_bytes(canonical.dtype)),
                   need == Need::kOverwrite || need == Need::kDense || shared};
}

Status Receiver::State::check_active() const {
  if (!failure.ok()) return failure;
  if (active) return {};
  return Status(Code::kInvalidArgument, "the receiver is in no attempt");
}

bool Receiver::State::is_current(const PayloadHeader& header) const {
  return digest_equal(header.run, attempt.run) && header.attempt == attempt.attempt;
}

// Which owners, catalogue and versions the payload belongs to.
Status Receiver::State::check_header(const PayloadHeader& header, const AttemptHeader& of) const {
  const std::string name = payload_name(header);
  if (!digest_equal(header.schema, catalogue.schema())) {
    return Status(Code::kMismatch, name + " is made for another catalogue");
  }
  if (header.owners != ownership.owners()) {
    return Status(Code::kMismatch, name + " counts " + std::to_string(header.owners) +
                                       " owners; there are " + std::to_string(ownership.owners()));
  }
  if (header.owner >= header.owners) {
    return Status(Code::kCorrupt, name + ": there are " + std::to_string(header.owners));
  }
  const auto scaled = checked_multiply(header.number, header.owners);
  if (!scaled || !checked_add(*scaled, header.owner)) {
    return Status(Code::kCorrupt, name + ": its number overflows");
  }
  if (header.base_version == of.base_version && header.target_version == of.target_version) {
    return {};
  }
  return Status(Code::kMismatch,
                name + " goes from version " + std::to_string(header.base_version) + " to " +
                    std::to_string(header.target_version) + "; the attempt goes from " +
                    std::to_string(of.base_version) + " to " + std::to_string(of.target_version));
}

// All that the payload's reader checks, whoever that was; then classification and ownership.
Status Receiver::State::check_items(const DecodedPayload& payload, const AttemptHeader& of) const {
  DCR_TRY(check_decoded(payload.items, specs, options.payload_limits.raw_bytes_max)
              .with_context(payload_name(payload.header)));
  for (const DecodedItem& item : payload.items) {
    const ItemHeader& header = item.header;
    const std::string& name = catalogue[header.tensor].name;
    const TensorClass& one = prewarm.classes[header.tensor];
    if (one.path == TensorPath::kRefused) {
      return Status(Code::kUnsupported,
                    "tensor " + quoted_name(name) + " is refused: " + one.reason, name);
    }
    const bool needs_overwrite =
        specs[header.tensor].overwrite_only || of.overwrite_only || of.mode == ApplyMode::kVerify;
    if (needs_overwrite && header.encoding != Encoding::kOverwrite) {
      return Status(Code::kMismatch,
                    "tensor " + quoted_name(name) + ": " +
                        std::string(encoding_name(header.encoding)) + " where only overwrite " +
                        (of.mode == ApplyMode::kVerify ? "can be verified" : "is exact"),
                    name);
    }
    DCR_TRY(ownership.check(catalogue, payload.header.owner, header.tensor, header.box));
  }
  return {};
}

Result<Ingested> Receiver::State::take(std::shared_ptr<const DecodedPayload> payload) {
  if (!is_current(payload->header)) return Ingested::kOtherAttempt;
  DCR_TRY(check_header(payload->header, attempt));
  DCR_ASSIGN(const Ingested place, staging.classify(*payload));
  if (place != Ingested::kQueued) return place;
  DCR_TRY(check_items(*payload, attempt));
  for (const DecodedItem& item : payload->items) {
    DCR_TRY(items.add(catalogue, ownership, payload->header.owner, item));
  }
  staging.push(std::move(payload));
  return Ingested::kQueued;
}

Receiver::Receiver(std::unique_ptr<State> state) : state_(std::move(state)) {}
Receiver::~Receiver() = default;

Result<std::unique_ptr<Receiver>> Receiver::create(const Catalogue& catalogue, Loader& loader,
                                                   TargetMemory& memory, Executor& executor,
                                                   ReceiverOptions options) {
  DCR_ASSIGN(Ownership ownership, Ownership::make(catalogue, options.owners));
  options.owners.clear();
  return std::make_unique<Receiver>(std::make_unique<State>(
      catalogue, loader, memory, executor, std::move(options), std::move(ownership)));
}

Status Receiver::prewarm() {
  State& state = *state_;
  state.active = false;
  state.prewarmed = false;
  DCR_ASSIGN(state.prewarm,
             dcr::prewarm(state.catalogue, state.loader, state.memory,
                          {state.options.never_loaded, state.options.prefer_scratch,
                           state.options.prewarm_stage, state.options.interruption}));
  state.specs.resize(state.catalogue.size());
  for (std::uint32_t tensor = 0; tensor < state.catalogue.size(); ++tensor) {
    state.make_spec(tensor);
  }
  state.applier.prepare(&state.prewarm, state.options.post_apply_checks);
  DCR_TRY(state.applier.begin());
  state.prewarmed = true;
  return {};
}

const Catalogue& Receiver::catalogue() const { return state_->catalogue; }

std::span<const TensorClass> Receiver::classes() const { return state_->prewarm.classes; }

std::span<const Place> Receiver::places(std::uint32_t tensor) const {
  const PrewarmResult& found = state_->prewarm;
  if (tensor >= found.classes.size() || found.classes[tensor].path != TensorPath::kTraced) {
    return {};
  }
  return found.places[tensor];
}

std::span<const TensorSpec> Receiver::specs() const { return state_->specs; }

Status Receiver::require_scratch(std::uint32_t tensor) {
  State& state = *state_;
  if (!state.prewarmed || tensor >= state.prewarm.classes.size()) {
    return Status(Code::kInvalidArgument, "scratch for a tensor that no prewarm has seen");
  }
  state.active = false;
  TensorClass& one = state.prewarm.classes[tensor];
  if (one.path == TensorPath::kScratch) return {};
  // What is skipped because another tensor has its bytes would write them.
  const std::vector<TracedWrite>& writes = state.prewarm.traces[tensor].writes;
  const bool tied = one.path == TensorPath::kSkip &&
                    std::any_of(writes.begin(), writes.end(), [](const TracedWrite& write) {
                      return !write.elements.empty() || write.kind == WriteKind::kOpaque;
                    });
  if (tied || one.path == TensorPath::kDense || one.path == TensorPath::kRefused) {
    const std::string& name = state.catalogue[tensor].name;
    return Status(Code::kUnsupported,
                  "tensor " + quoted_name(name) +
                      ": its loader talks to other ranks, but here "
                      "it cannot take the scratch path: " +
                      one.reason,
                  name);
  }
  one.path = TensorPath::kScratch;
  one.need = Need::kAny;
  one.reason = "its loader talks to other ranks";
  state.make_spec(tensor);
  return {};
}

Digest Receiver::fingerprint() const {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.text("dcr-classes");
  out.bytes(state_->catalogue.schema());
  out.bytes(state_->prewarm.layout);
  for (const TensorClass& one : state_->prewarm.classes) {
    out.u8(static_cast<std::uint8_t>(one.path));
    out.u8(static_cast<std::uint8_t>(one.need));
  }
  return blake2b(bytes);
}

Status Receiver::audit(const CanonicalRead& base) {
  std::vector<std::uint32_t> all(state_->catalogue.size());
  std::iota(all.begin(), all.end(), std::uint32_t{0});
  return audit(all, base);
}

Status Receiver::audit(std::span<const std::uint32_t> tensors, const CanonicalRead& base) {
  State& state = *state_;
  if (!state.prewarmed) return Status(Code::kInvalidArgument, "an audit before prewarm");
  for (const std::uint32_t tensor : tensors) {
    DCR_ASSERT(tensor < state.catalogue.size());
    DCR_TRY(state.ask());
    DCR_TRY(state.applier.audit(tensor, [&](std::uint64_t first, MutableByteSpan out) {
      return base(tensor, first, out);
    }));
  }
  return {};
}

Result<ReceiverCounts> Receiver::compare(ByteSpan stored, std::uint32_t owner,
                                         const AttemptHeader& sample) {
  State& state = *state_;
  if (!state.prewarmed) return Status(Code::kInvalidArgument, "a comparison before prewarm");
  DCR_ASSIGN(
      const std::shared_ptr<const DecodedPayload> payload,
      decode_payload(stored, state.catalogue.schema(), state.specs,
                     {kSampleBytesMax, kSampleBytesMax}, kSampleBytesMax, state.options.key));
  const PayloadHeader& header = payload->header;
  if (!digest_equal(header.run, sample.run) || header.attempt != sample.attempt ||
      header.owner != owner) {
    return Status(Code::kMismatch, "the sample is of another run, version or owner");
  }
  DCR_TRY(state.check_header(header, sample).with_context("a sample"));
  AttemptHeader compared = sample;
  compared.mode = ApplyMode::kVerify;
  DCR_TRY(state.check_items(*payload, compared).with_context("a sample"));
  // So an item has no more destinations than words that came.
  const bool whole = std::all_of(
      payload->items.begin(), payload->items.end(),
      [](const DecodedItem& item) { return item.positions.size() == item.header.box.words(); });
  if (!whole) return Status(Code::kMismatch, "a sample has items that are not whole");
  ReceiverCounts counts;
  DCR_TRY(state.applier.compare(*payload, &counts));
  return counts;
}

Status Receiver::begin_attempt(const AttemptHeader& header) {
  State& state = *state_;
  if (!state.prewarmed) return Status(Code::kInvalidArgument, "an attempt before prewarm");
  state.active = false;
  state.failure = {};
  DCR_ASSIGN(const Digest layout, layout_fingerprint(state.loader, state.memory));
  if (!digest_equal(layout, state.prewarm.layout)) {
    return Status(Code::kMismatch,
                  "parameters lie elsewhere, or are others, than at prewarm; prewarm again");
  }
  DCR_TRY(state.applier.begin());
  state.staging.begin(state.ownership.owners());
  state.items.clear();
  state.attempt = header;
  state.counts = {};
  state.active = true;
  return {};
}

Result<Ingested> Receiver::ingest(ByteSpan stored) {
  State& state = *state_;
  DCR_TRY(state.check_active());
  // What is late, or would find no room, is not decoded. A header that lies about its order is
  // found out later; one that lies about its attempt is as good as lost.
  const Result<PayloadHeader> peeked = peek_payload_header(stored);
  if (peeked.ok() && !state.is_current(*peeked)) return Ingested::kOtherAttempt;
  if (peeked.ok() && !state.staging.has_room(peeked->order(), 0)) return Ingested::kFull;
  Result<std::shared_ptr<const DecodedPayload>> payload =
      decode_payload(stored, state.catalogue.schema(), state.specs, state.options.payload_limits,
                     state.options.decoded_bytes_max, state.options.key);
  if (!payload.ok()) return state.fail(payload.status());
  return ingest(std::move(payload).value());
}

Result<Ingested> Receiver::ingest(std::shared_ptr<const DecodedPayload> payload) {
  State& state = *state_;
  DCR_TRY(state.check_active());
  Result<Ingested> result = state.take(std::move(payload));
  if (!result.ok()) return state.fail(result.status());
  return result;
}

Status Receiver::end_of_owner(std::uint32_t owner, std::uint64_t payloads) {
  DCR_TRY(state_->check_active());
  const Status status = state_->staging.end_of_owner(owner, payloads);
  return status.ok() ? status : state_->fail(status);
}

Result<std::uint64_t> Receiver::apply() {
  State& state = *state_;
  DCR_TRY(state.check_active());
  std::uint64_t applied = 0;
  while (true) {
    const Status asked = state.ask();
    if (!asked.ok()) return state.fail(asked);
    const std::shared_ptr<const DecodedPayload> payload = state.staging.pop();
    if (payload == nullptr) return applied;
    if (DCR_MUTANT("retry_skips_payload") && state.attempt.overwrite_only && applied == 0) {
      ++applied;
      continue;
    }
    const Status status = state.applier.apply(*payload, state.attempt.mode, &state.counts);
    if (!status.ok()) {
      return state.fail(status.with_context(payload_name(payload->header)));
    }
    ++applied;
  }
}

Result<ReceiverCounts> Receiver::finish() {
  State& state = *state_;
  DCR_TRY(state.check_active());
  if (!state.staging.complete() && !DCR_MUTANT("receiver_finishes_early")) {
    return Status(Code::kMismatch, state.staging.missing() + " has not been applied");
  }
  Status status = state.applier.finish();
  if (status.ok()) status = state.memory.synchronize();
  if (!status.ok()) return state.fail(status);
  DCR_ASSIGN(const Digest layout, layout_fingerprint(state.loader, state.memory));
  if (!digest_equal(layout, state.prewarm.layout)) {
    return state.fail(Status(Code::kMismatch,
                             "parameters moved during the attempt; prewarm again and refit dense"));
  }
  state.active = false;
  return state.counts;
}

std::uint64_t Receiver::memory_bytes() const {
  return state_->applier.memory_bytes() + state_->staging.bytes() + state_->items.bytes();
}

}  // namespace dcr
