// An owner embedded in a trainer rank (paper §4, Appendix A.1): what the rank holds is declared,
// ranks exchange their declarations over whatever channel they have and agree on who owns what, and
// then every refit compares, encodes and hands out payloads.
//
//   dcr::RankDeclaration declaration{.rank = 0, .ranks = 1, .tensors = …, .tasks = …};
//   auto bytes = dcr::encode_declaration(declaration);      // to every rank, from every rank
//   auto owner = dcr::EmbeddedOwner::create(all, 0, memory, {});
//   owner->initialize(0);                                   // the weights are version 0
//   owner->prepare(attempt, sink);                          // payloads that make it version 1
//   owner->commit(1);                                       // once receivers have it
//
// Thread safety: EmbeddedOwner has none, but for the CancelToken of a call. It has threads of its
// own, which are idle between calls. Errors: Status with tensor and rank named. Weights
// are read through a SourceMemory only, and never written.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dcr/options.h"
#include "dcr/ports.h"
#include "dcr/refit.h"
#include "dcr/status.h"
#include "dcr/tensor.h"

namespace dcr {

class CancelToken;

// A strided rectangle of elements and where it goes: element (i0, i1, …) of it lies at
// source_offset + Σ i_d · source_stride_d of one tensor, flat and row major, and at
// destination_offset + Σ i_d · destination_stride_d of another. Counts are elements. No dimensions:
// one element.
struct DeclaredDimension {
  std::uint64_t size = 1;
  std::uint64_t source_stride = 1;
  std::uint64_t destination_stride = 1;
  bool operator==(const DeclaredDimension&) const = default;
};
struct DeclaredBox {
  std::uint64_t source_offset = 0;
  std::uint64_t destination_offset = 0;
  std::vector<DeclaredDimension> dims;
  bool operator==(const DeclaredBox&) const = default;
};

// Elements of a source tensor that stand in a canonical tensor.
struct DeclaredPart {
  std::uint32_t tensor = 0;  // index in the declaration's tensors
  DeclaredBox box;
  bool operator==(const DeclaredPart&) const = default;
};

// A conversion task (paper §4.1): a tensor, or a shard of one, that a rank holds. Ranks that
// declare a task of the same name hold replicas of it: one of them owns it, picked by a hash of the
// name (A.1).
struct DeclaredTask {
  std::string name;
  Dtype dtype = Dtype::kU8;  // where the canonical tensor's differs, elements are cast one by one
  // How task i lies in storage i of the rank's SourceMemory, from its first word on: as a
  // TensorView.
  Shape sizes;
  Shape strides;
  // Element e of the source space is the e-th in the order of the view's indices. What no part maps
  // (padding) goes nowhere.
  std::vector<DeclaredPart> parts;
  bool operator==(const DeclaredTask&) const = default;
};

struct RankDeclaration {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  std::vector<CanonicalTensor> tensors;  // that the parts speak of, each name once
  std::vector<DeclaredTask> tasks;
};

// The parts of a shard: `shard` leads from its elements to those of the whole tensor, of which
// `whole` are the parts. Both must be injective. Errors: kInvalidArgument; kTooLarge and
// kUnsupported where the result is more boxes than a task may have.
Result<std::vector<DeclaredPart>> parts_of_shard(std::span<const DeclaredBox> shard,
                                                 std::span<const DeclaredPart> whole);

// For the way to other ranks. REQUIRES of tasks: a stride for each size. decode reads what came
// from anywhere: kCorrupt, kTooLarge, kUnsupported (a dtype or format version that this build does
// not know).
std::vector<std::uint8_t> encode_declaration(const RankDeclaration& declaration);
Result<RankDeclaration> decode_declaration(std::span<const std::uint8_t> bytes);

// Weights in this process's host memory; dcr/device.h has those on devices. Storages may be set
// again between an owner's calls: what a trainer offloads, resizes or replaces is found at its new
// place.
class HostStorages final : public SourceMemory {
 public:
  explicit HostStorages(std::size_t storages) : storages_(storages) {}

  // `bytes` must stay where they are during an owner's calls. REQUIRES: storage < the number of
  // storages.
  void set(std::size_t storage, std::span<const std::uint8_t> bytes) { storages_[storage] = bytes; }
  void clear() { storages_.assign(storages_.size(), {}); }

  Status read(const TensorView& view, std::span<std::uint8_t> out) override;

 private:
  std::vector<std::span<const std::uint8_t>> storages_;
};

struct EmbeddedOwnerOptions {
  std::uint64_t chunk_bytes = std::uint64_t{64} << 20;    // 256 MiB for a relay (paper C)
  std::uint64_t bucket_bytes = std::uint64_t{512} << 20;  // input bytes of a payload (paper C)
  // Working memory, beside baseline and weights; at least kMemoryBytesMin.
  std::uint64_t memory_bytes_max = std::uint64_t{1} << 30;
  unsigned threads = 0;           // 0: one per processor
  std::string baseline_file;      // a new file that holds the baseline; empty: memory does
  std::vector<std::uint8_t> key;  // of payloads' digests: empty, or 16 to 64 bytes
};

// How one call is watched and ended.
struct OwnerCall {
  const CancelToken* cancel = nullptr;  // not owned; ends the call with kCancelled
  // Called on the calling thread; may be empty.
  std::function<void(const Progress&)> progress;
};

using RunId = std::array<std::uint8_t, 16>;

// One attempt at a transition (paper §6.3; docs/PROTOCOL.md rule 4).
struct OwnerAttempt {
  RunId run{};
  std::uint64_t attempt = 0;
  // Names the weights: attempts of one candidate refit the same bits, which is checked.
  std::uint64_t candidate = 0;
  std::uint64_t base_version = 0;
  std::uint64_t target_version = 0;
  AttemptMode mode = AttemptMode::kMixed;
  // Of a mixed attempt, where no need says otherwise; nothing: the smaller of add and overwrite.
  std::optional<Encoding> encoding;
  std::vector<Need> needs;  // of the receivers, by canonical tensor; empty: any of each
};

// What came of a prepare, or of a restore.
struct OwnerResult {
  AttemptMode mode = AttemptMode::kMixed;  // kDense also where there was no baseline
  std::uint64_t payloads = 0, payload_bytes = 0, items = 0;
  std::array<std::uint64_t, 3> items_by_encoding{};  // index: Encoding
  std::uint64_t entries = 0;  // words that payloads carry by location, dense ones not counted
  // Of what this rank owns those whose bits changed; 0 where nothing was there to compare with.
  std::uint64_t changed_source_elements = 0;
  std::uint64_t changed_canonical_words = 0;
  std::vector<RefitStage> stages;  // seconds, in the order of their first begins
};

// What a rank owns; fixed when ranks agreed.
struct OwnedSizes {
  std::uint64_t source_elements = 0;
  std::uint64_t canonical_words = 0;
  std::uint64_t canonical_bytes = 0;
  std::uint64_t baseline_bytes = 0;
};

class EmbeddedOwner {
 public:
  // `declarations` are the encoded declarations of ranks 0, 1, 2, … in order, this rank's among
  // them; all ranks give the same ones and agree without another word. `memory` must outlive the
  // owner. Errors: those of decode_declaration, naming the rank; kMismatch naming tensor and ranks,
  // where ranks contradict each other or their tasks leave a gap in a tensor or overlap;
  // kInvalidArgument; kUnsupported (a cast that there is not); kCancelled once `cancel`, which may
  // be null, is.
  static Result<std::unique_ptr<EmbeddedOwner>> create(
      std::span<const std::span<const std::uint8_t>> declarations, std::uint32_t rank,
      SourceMemory& memory, EmbeddedOwnerOptions options, const CancelToken* cancel = nullptr);
  ~EmbeddedOwner();
  EmbeddedOwner(const EmbeddedOwner&) = delete;
  EmbeddedOwner& operator=(const EmbeddedOwner&) = delete;

  std::uint32_t rank() const;
  std::uint32_t ranks() const;
  OwnedSizes sizes() const;

  // The canonical tensors of all ranks, ascending by name: what indices mean from here on.
  const std::vector<CanonicalTensor>& tensors() const;
  // What each owner (by rank) may send, in the order of its items: what receivers need.
  const std::vector<std::vector<CanonicalBox>>& boxes() const;

  // A digest of each task's words as they are, owned or not, in the order of the declaration:
  // replicas must have the same ones (check_replicas).
  Result<std::vector<std::uint8_t>> replica_digests(const OwnerCall& call = {});
  // Compares all ranks' replica_digests, in the order of ranks. Errors: kMismatch naming the first
  // task whose replicas differ, and their ranks; kCorrupt.
  Status check_replicas(std::span<const std::span<const std::uint8_t>> digests) const;

  // Takes the weights as they are for version `version`.
  Status initialize(std::uint64_t version, const OwnerCall& call = {});
  // The version that the baseline has; nothing: it has none, and the next prepare sends everything.
  std::optional<std::uint64_t> baseline_version() const;

  // Sends what makes `target_version` of `base_version`, as payloads 0, 1, 2, …; without a baseline
  // of base_version, everything. kInvalidArgument: the attempt itself is wrong, and what was
  // prepared before it stays. On any other error nothing is prepared; kMismatch naming a tensor:
  // the weights of a candidate changed, and the baseline is void.
  Result<OwnerResult> prepare(const OwnerAttempt& attempt, PayloadSink& sink,
                              const OwnerCall& call = {});
  // After the transition was committed: what was prepared becomes the baseline. May be repeated.
  // kMismatch: `version` is not the prepared one; or, naming a tensor, the weights changed since
  // prepare, and the baseline is void until after the next commit.
  Status commit(std::uint64_t version, const OwnerCall& call = {});
  // The attempt will not be committed; the next may be about the same candidate.
  void drop_attempt();
  // Sends the baseline whole, for receivers that restore `version` (docs/ARCHITECTURE.md "One refit
  // at its owners"). kMismatch: the baseline is of another version, or void.
  Result<OwnerResult> restore(const RunId& run, std::uint64_t attempt, std::uint64_t version,
                              PayloadSink& sink, const OwnerCall& call = {});
  // At most 2,048 words of the baseline, drawn by `seed`, as one payload of at most 32 KiB that
  // restore could have sent: what RunOwner sends to receivers, which compare it with what they
  // hold. Empty: this rank owns nothing. Errors as restore.
  Result<std::vector<std::uint8_t>> sample(const RunId& run, std::uint64_t attempt,
                                           std::uint64_t version, std::uint64_t seed);

  // Of create().
  struct State;
  explicit EmbeddedOwner(std::unique_ptr<State> state);

 private:
  std::unique_ptr<State> state_;
};

}  // namespace dcr
