// One owner's share of the residual baseline (paper §4.3): the canonical tensors that a hash of
// their names gives it. Converted parts come in from all ranks, are compared with the baseline and
// coded as overwrites, or become the baseline.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/digest.h"
#include "codec/item_encoder.h"
#include "dcr/ports.h"
#include "dcr/status.h"
#include "runtime/arena.h"
#include "runtime/clock.h"
#include "source/baseline.h"
#include "source/buckets.h"
#include "source/geometry.h"

namespace dcr {

// What to do with parts that come in.
enum class ResidualUse : std::uint8_t {
  kNone,        // none is expected
  kInitialize,  // the first baseline
  kCompare,     // prepare
  kCommit,      // parts that changed, again, into the baseline
};

class ResidualShare final : public PartSink {
 public:
  // Its words lie in the arena from `arena_offset` on.
  ResidualShare(std::shared_ptr<const Geometry> geometry, std::uint32_t rank,
                std::uint64_t arena_offset);

  std::uint64_t arena_bytes() const { return arena_bytes_; }
  std::uint64_t words() const { return words_; }
  std::uint64_t bytes() const { return bytes_; }
  // In the order of Geometry::residual.
  void add_baseline_pieces(std::vector<BaselinePiece>* pieces) const;

  // Starts a phase of attempt `attempt`: parts of another are refused. kCompare: `has_baseline`
  // false compares with nothing; `dense` sends everything; `needs` may be empty.
  struct Phase {
    const Arena* arena = nullptr;
    SpanRecorder* spans = nullptr;
    ResidualUse use = ResidualUse::kNone;
    std::uint64_t attempt = 0;
    bool has_baseline = true;
    bool dense = false;
    std::span<const Need> needs;
  };
  void begin(const Phase& phase);
  std::uint64_t attempt() const { return phase_.attempt; }
  // Forgets which bits the candidate has.
  void forget_candidate();

  // Compares or keeps one piece. Thread-safe. Errors, naming tensor and rank: kMismatch for what
  // nobody expects, or twice, or for bits that are not those of before (see frozen_broken).
  Status receive(const PartHeader& header, std::span<const std::uint8_t> bytes) override;

  // Takes what a round brought for this owner, in the pieces' order. kCompare: its items go to the
  // buckets, sorted within each bucket. kMismatch names a part that did not come.
  Status take_round(std::span<const std::uint32_t> pieces, std::uint64_t bucket_bytes,
                    std::uint64_t raw_bytes_max, Buckets* buckets);
  // The last bucket.
  Status finish_items(Buckets* buckets);

  // Raises flags[i] where pieces[i] is this owner's and changed.
  void raise_changed(std::span<const std::uint32_t> pieces, std::span<std::uint8_t> flags) const;

  bool frozen_broken() const { return frozen_broken_; }
  std::uint64_t changed_words() const { return changed_words_; }
  std::uint64_t compared_bytes() const { return compared_bytes_; }

 private:
  struct State {
    std::uint32_t piece = 0;  // index in Geometry::residual
    std::uint64_t arena_offset = 0;
    Digest digest{};        // of the candidate's words
    bool known = false;     // whether there is such a digest
    bool changed = false;   // since the baseline
    bool received = false;  // in this phase
    bool has_item = false;
    EncodedItem item;
    std::uint64_t changes = 0;
  };

  State* find(const PartHeader& header);
  Status accept(const State& state, std::span<const std::uint8_t> bytes);
  void compare(State* state, std::span<const std::uint8_t> bytes);
  Status flush_items(Buckets* buckets);

  const std::shared_ptr<const Geometry> geometry_;
  const std::uint32_t rank_;
  std::vector<State> states_;             // in the order of Geometry::residual
  std::vector<std::uint32_t> by_header_;  // states by (from, tensor, part, first)
  std::uint64_t arena_bytes_ = 0, words_ = 0, bytes_ = 0;
  Phase phase_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<ItemEncoder>> encoders_;  // idle ones; guarded by mutex_
  bool frozen_broken_ = false;                          // guarded by mutex_
  std::vector<State*> waiting_;                         // their items fill the next bucket
  std::uint64_t waiting_bytes_ = 0, waiting_raw_bytes_ = 0;
  std::uint64_t changed_words_ = 0, compared_bytes_ = 0;
};

}  // namespace dcr
