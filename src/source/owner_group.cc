#include "source/owner_group.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/assert.h"
#include "base/probe.h"
#include "runtime/ordered_map.h"

namespace dcr {
namespace {

// A piece that is scanned: the candidate's words, a block before its cast, and the encoder's gaps
// and values, at most 4 + width bytes a word, which is most for two-byte words.
constexpr std::uint64_t kEncoderBytes = piece_words(2) * (4 + 2);
static_assert(kEncoderBytes >= piece_words(1) * 5 && kEncoderBytes >= piece_words(8) * 12);
constexpr std::uint64_t kScannedBytes = kPieceBytesMax + kEncoderBytes + kMiB;
// An item is at most the words and a little.
constexpr std::uint64_t kItemSlackBytes = kMiB;
constexpr std::uint64_t kRawBytesMin = kPieceBytesMax + kItemSlackBytes;
constexpr std::uint64_t kSealing = 2;  // payloads in flight of each owner, if memory allows

// What a plan takes at most.
std::uint64_t takes(const OwnerMemory& plan, unsigned threads, std::size_t owners, bool residual) {
  const std::uint64_t workers = std::min<std::uint64_t>(plan.window, threads);
  const std::uint64_t scan =
      workers * kScannedBytes +
      plan.window * (std::max(plan.chunk_bytes, kPieceBytesMax) + kItemSlackBytes);
  // Two rounds' items may wait while parts are converted and compared.
  const std::uint64_t rounds =
      owners * 2 * (kRoundBytesMax + kItemSlackBytes) +
      std::min<std::uint64_t>(owners, threads) * (kPieceBytesMax + kEncoderBytes);
  // A bucket that fills has its streams, and again as much while one moves to make room; one that
  // is sealed has them and what comes of them; residual items wait to be sorted.
  const std::uint64_t buckets =
      owners * plan.raw_bytes_max * (2 + 2 * plan.sealing + (residual ? 1 : 0));
  return buckets + (residual ? std::max(scan, rounds) : scan);
}

// Keeps the one payload that comes.
struct KeepSink final : PayloadSink {
  Status send(std::uint64_t /*number*/, std::span<const std::uint8_t> bytes) override {
    DCR_ASSERT(payload.empty());
    payload.assign(bytes.begin(), bytes.end());
    return {};
  }
  Bytes payload;
};

Status other_failed() { return {Code::kCancelled, "another owner failed; its error says why"}; }

}  // namespace

Result<OwnerMemory> plan_owner_memory(const OwnerOptions& options, unsigned threads,
                                      std::size_t owners, bool residual) {
  const std::uint64_t memory = options.memory_bytes_max;
  // Half of the memory is for buckets: what closes one, and so the payloads, must not depend on
  // threads or chunks.
  const std::uint64_t shares = owners * (2 + 2 * kSealing + (residual ? 1 : 0));
  const std::uint64_t raw_bytes =
      std::clamp(memory / 2 / shares, kRawBytesMin, kPayloadStoredBytesMax - kMiB);
  OwnerMemory plan{std::min(options.chunk_bytes, kPieceBytesMax), 1, kSealing, raw_bytes};
  const auto fits = [&](const OwnerMemory& wanted) {
    return takes(wanted, threads, owners, residual) <= memory;
  };
  if (!fits(plan)) plan.sealing = 1;
  if (!fits(plan)) {
    return Status(Code::kInvalidArgument,
                  "memory of " + std::to_string(memory) + " bytes is too little for " +
                      std::to_string(owners) + " owners: at least " +
                      std::to_string(takes(plan, threads, owners, residual)) + " are needed");
  }
  const std::uint64_t window_max = std::uint64_t{threads} + 1;
  while (plan.window < window_max &&
         fits({plan.chunk_bytes, plan.window + 1, plan.sealing, plan.raw_bytes_max})) {
    ++plan.window;
  }
  const std::uint64_t rest = memory - takes(plan, threads, owners, residual);
  plan.chunk_bytes = std::min(options.chunk_bytes, plan.chunk_bytes + rest / plan.window);
  return plan;
}

Result<std::unique_ptr<OwnerGroup>> OwnerGroup::create(std::vector<Owner*> owners,
                                                       Executor& executor, OwnerOptions options) {
  if (owners.empty()) return Status(Code::kInvalidArgument, "a group without owners");
  const bool residual = !owners[0]->geometry().groups().empty();
  for (const Owner* owner : owners) {
    if (&owner->geometry() != &owners[0]->geometry()) {
      return Status(Code::kInvalidArgument, "owners of one group have one geometry");
    }
    if (residual && owner->collective() == nullptr) {
      return Status(Code::kInvalidArgument,
                    "owner " + std::to_string(owner->rank()) + " has no collective");
    }
  }
  DCR_ASSIGN(const OwnerMemory memory,
             plan_owner_memory(options, executor.threads(), owners.size(), residual));
  return std::make_unique<OwnerGroup>(std::move(owners), executor, std::move(options), memory);
}

OwnerGroup::OwnerGroup(std::vector<Owner*> owners, Executor& executor, OwnerOptions options,
                       const OwnerMemory& memory)
    : owners_(std::move(owners)),
      executor_(executor),
      options_(std::move(options)),
      memory_(memory) {}

Status OwnerGroup::scan(std::span<const Lane> lanes, const char* stage) {
  ScanOptions scan;
  scan.chunk_bytes = memory_.chunk_bytes;
  scan.window = memory_.window;
  scan.cancel = options_.cancel;
  scan.spans = options_.spans;
  scan.stage = stage;
  if (options_.progress) {
    scan.progress = [this, stage](std::uint64_t bytes) { options_.progress(stage, bytes); };
  }
  return scan_lanes(executor_, lanes, scan);
}

Status OwnerGroup::reduce(std::span<std::uint8_t> flags) {
  const SpanTimer timer(options_.spans, kStageFlags, owners_[0]->rank());
  Status status = owners_[0]->collective()->all_reduce_flags(flags);
  if (!status.ok()) DCR_PROBE("owners that convert lose each other");
  return status;
}

// Waits for all ranks and learns whether one failed.
Status OwnerGroup::meet(const Status& status) {
  std::uint8_t failed = status.ok() ? 0 : 1;
  Status met = reduce({&failed, 1});
  if (!status.ok()) return status;
  if (!met.ok()) return met;
  return failed != 0 ? other_failed() : Status();
}

Status OwnerGroup::convert(std::span<const std::uint32_t> round) {
  const auto produce = [&](std::uint64_t index) -> Result<bool> {
    DCR_TRY(owners_[static_cast<std::size_t>(index)]->convert_round(round));
    return true;
  };
  return ordered_map<bool>(executor_, owners_.size(), owners_.size(), options_.cancel, produce,
                           [](std::uint64_t, bool&&) { return Status(); });
}

// Converts pieces round by round. A rank that fails comes to the next meeting and says so there;
// the others would wait for it for ever.
Status OwnerGroup::run_rounds(std::span<const std::uint32_t> pieces, Status status) {
  for (const std::vector<std::uint32_t>& round : geometry().rounds(pieces)) {
    if (status.ok()) status = convert(round);
    DCR_TRY(meet(status));
    for (Owner* owner : owners_) {
      if (status.ok()) status = owner->take_round(round);
    }
    if (!options_.progress) continue;
    std::uint64_t bytes = 0;
    for (const std::uint32_t index : round) {
      bytes += geometry().residual()[index].words * geometry().residual()[index].width;
    }
    options_.progress(kStageConvert, bytes);
  }
  return meet(status);
}

Status OwnerGroup::initialize(std::uint64_t version) {
  std::vector<Lane> lanes;
  for (Owner* owner : owners_) {
    owner->begin_initialize(options_.spans);
    lanes.push_back(owner->storing());
  }
  converted_.clear();
  Status status = scan(lanes, kStageInitialize);
  if (residual()) {
    status = meet(status);  // no part may come before all are ready for it
    std::vector<std::uint32_t> all(geometry().residual().size());
    for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
    if (status.ok()) status = run_rounds(all, status);
  }
  for (Owner* owner : owners_) {
    if (status.ok()) {
      owner->finish_initialize(version);
    } else {
      owner->fail();
    }
  }
  return status;
}

BucketOptions OwnerGroup::bucket_options() const {
  BucketOptions buckets;
  buckets.bytes = options_.bucket_bytes;
  buckets.raw_bytes_max = memory_.raw_bytes_max;
  buckets.sealing = memory_.sealing;
  buckets.key = options_.key;
  buckets.spans = options_.spans;
  return buckets;
}

Status OwnerGroup::check_sinks(std::size_t sinks) const {
  if (sinks == owners_.size()) return {};
  return {Code::kInvalidArgument,
          std::to_string(sinks) + " sinks for " + std::to_string(owners_.size()) + " owners"};
}

Status OwnerGroup::check_attempt(const Attempt& attempt, std::size_t sinks) const {
  const std::size_t tensors = geometry().catalogue().size();
  if (!attempt.needs.empty() && attempt.needs.size() != tensors) {
    return {Code::kInvalidArgument, "needs of " + std::to_string(attempt.needs.size()) +
                                        " tensors for a catalogue of " + std::to_string(tensors)};
  }
  return check_sinks(sinks);
}

Result<std::vector<PrepareResult>> OwnerGroup::prepare(const Attempt& attempt,
                                                       std::span<PayloadSink* const> sinks) {
  DCR_TRY(check_attempt(attempt, sinks.size()));
  converted_.clear();
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    owners_[i]->begin_prepare(attempt, executor_, bucket_options(), *sinks[i]);
  }
  Status status = construct(attempt);
  std::vector<PrepareResult> results;
  for (Owner* owner : owners_) {
    if (!status.ok()) break;
    Result<PrepareResult> result = owner->finish_prepare();
    status = result.status();
    if (status.ok()) results.push_back(*result);
  }
  if (status.ok()) return results;
  for (Owner* owner : owners_) {
    owner->fail();
    owner->drop_attempt();
  }
  return status;
}

Status OwnerGroup::construct(const Attempt& attempt) {
  std::vector<Lane> lanes;
  lanes.reserve(owners_.size());
  for (Owner* owner : owners_) lanes.push_back(owner->lane());
  Status status = scan(lanes, kStageScan);
  for (Owner* owner : owners_) {
    if (status.ok()) status = owner->close_affine();
  }
  if (!residual()) return status;
  std::vector<std::uint8_t> flags(geometry().flags().count, 0);
  for (const Owner* owner : owners_) owner->raise_flags(flags);
  flags[FlagLayout::kFailed] = status.ok() ? 0 : 1;
  const Status reduced = reduce(flags);
  DCR_TRY(status);
  DCR_TRY(reduced);
  if (flags[FlagLayout::kFailed] != 0) return other_failed();
  converted_ = geometry().select(flags, attempt.needs);
  return run_rounds(converted_, status);
}

Status OwnerGroup::commit(std::uint64_t version) {
  const bool done = std::all_of(owners_.begin(), owners_.end(), [version](const Owner* owner) {
    return owner->baseline_version() == version && !owner->prepared();
  });
  if (done) return {};
  for (const Owner* owner : owners_) {
    if (owner->prepared() && owner->target_version() == version) continue;
    return {Code::kMismatch, "owner " + std::to_string(owner->rank()) + ": version " +
                                 std::to_string(version) +
                                 " is not the one that was prepared last"};
  }
  for (Owner* owner : owners_) owner->begin_commit(options_.spans);
  Status status = update_baselines();
  for (Owner* owner : owners_) {
    if (status.ok()) {
      owner->finish_commit();
    } else {
      owner->fail();
    }
  }
  return status;
}

Status OwnerGroup::update_baselines() {
  std::vector<Lane> lanes;
  lanes.reserve(owners_.size());
  for (Owner* owner : owners_) lanes.push_back(owner->storing());
  Status status = scan(lanes, kStageCommit);
  if (!residual()) return status;
  // Which pieces changed is known where they were compared; who converts them must know too.
  std::vector<std::uint8_t> flags(1 + converted_.size(), 0);
  const std::span<std::uint8_t> changed = std::span(flags).subspan(1);
  for (const Owner* owner : owners_) owner->raise_changed(converted_, changed);
  flags[0] = status.ok() ? 0 : 1;
  const Status reduced = reduce(flags);
  DCR_TRY(status);
  DCR_TRY(reduced);
  if (flags[0] != 0) return other_failed();
  std::vector<std::uint32_t> pieces;
  for (std::size_t i = 0; i < converted_.size(); ++i) {
    if (changed[i] != 0) pieces.push_back(converted_[i]);
  }
  return run_rounds(pieces, status);
}

Status OwnerGroup::check_baseline(std::uint64_t version) const {
  for (const Owner* owner : owners_) {
    if (owner->baseline_version() == version) continue;
    return {Code::kMismatch,
            "owner " + std::to_string(owner->rank()) + ": its baseline is " +
                (owner->baseline_valid()
                     ? "that of version " + std::to_string(*owner->baseline_version())
                     : "void until the next commit") +
                ", and version " + std::to_string(version) + " is asked for"};
  }
  return {};
}

Result<std::vector<PipelineResult>> OwnerGroup::restore(const RestoreHeader& header,
                                                        std::span<PayloadSink* const> sinks) {
  DCR_TRY(check_sinks(sinks.size()));
  return send(header, bucket_options(), sinks,
              [](const Owner& owner) { return owner.baseline_pieces(); });
}

Result<std::vector<Bytes>> OwnerGroup::sample(const RestoreHeader& header, std::uint64_t seed) {
  BucketOptions options = bucket_options();
  options.bytes = kSampleBytesMax;
  std::vector<KeepSink> kept(owners_.size());
  std::vector<PayloadSink*> sinks;
  sinks.reserve(kept.size());
  for (KeepSink& sink : kept) sinks.push_back(&sink);
  DCR_TRY(send(header, options, sinks, [seed](const Owner& owner) {
            return sample_pieces(owner.baseline_pieces(), seed);
          }).status());
  std::vector<Bytes> samples;
  samples.reserve(kept.size());
  for (KeepSink& sink : kept) samples.push_back(std::move(sink.payload));
  return samples;
}

// Pieces of the baselines, as payloads of whole items.
Result<std::vector<PipelineResult>> OwnerGroup::send(const RestoreHeader& header,
                                                     const BucketOptions& options,
                                                     std::span<PayloadSink* const> sinks,
                                                     const PiecesOf& pieces_of) {
  DCR_TRY(check_baseline(header.version));
  std::deque<BaselineReader> readers;
  std::deque<Buckets> buckets;
  std::vector<Lane> lanes;
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    const Owner& owner = *owners_[i];
    readers.emplace_back(owner.arena(), pieces_of(owner));
    const PayloadHeader payload = restore_payload_header(header, owner.geometry(), owner.rank());
    buckets.emplace_back(executor_, options, payload, *sinks[i]);
    lanes.push_back(readers.back().sending(&buckets.back(), owner.rank()));
  }
  DCR_TRY(scan(lanes, kStageRestore));
  std::vector<PipelineResult> results;
  for (Buckets& of_owner : buckets) {
    DCR_TRY(of_owner.finish());
    results.push_back(of_owner.result());
  }
  return results;
}

Result<std::vector<std::vector<Digest>>> OwnerGroup::baseline_digests(std::uint64_t version) {
  DCR_TRY(check_baseline(version));
  std::deque<BaselineReader> readers;
  std::vector<Lane> lanes;
  for (const Owner* owner : owners_) {
    readers.emplace_back(owner->arena(), owner->baseline_pieces());
    lanes.push_back(readers.back().digesting(owner->rank()));
  }
  DCR_TRY(scan(lanes, kStageDigest));
  std::vector<std::vector<Digest>> digests;
  digests.reserve(readers.size());
  for (BaselineReader& reader : readers) digests.push_back(reader.take_digests());
  return digests;
}

void OwnerGroup::drop_attempt() {
  for (Owner* owner : owners_) owner->drop_attempt();
}

}  // namespace dcr
