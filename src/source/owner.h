// An owner (paper §4, §7.2; docs/ARCHITECTURE.md "One refit at its owners"): what one trainer rank
// compares, projects, converts and keeps as its baseline. Its phases are driven by an OwnerGroup,
// which runs them for all owners of a process and meets the other processes between them.
//
// Thread safety: none, but for what lane() and storing() hand to the scan's threads and residual()
// to parts that come in.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "runtime/arena.h"
#include "runtime/clock.h"
#include "runtime/threads.h"
#include "source/attempt.h"
#include "source/baseline.h"
#include "source/geometry.h"
#include "source/pipeline.h"
#include "source/residual_share.h"
#include "source/source_plan.h"

namespace dcr {

class Owner final : private PieceSource {
 public:
  // `geometry` is of the declarations of all ranks, of which `input` is one. Its memory, converters
  // and collective must outlive the owner. The baseline lies in memory, or in a file at
  // `arena_path`, which must not exist. Errors: plan_sources' and Arena's.
  static Result<std::unique_ptr<Owner>> create(std::shared_ptr<const Geometry> geometry,
                                               OwnerInput input, const std::string& arena_path);

  // Of create().
  Owner(std::shared_ptr<const Geometry> geometry, OwnerInput input);

  std::uint32_t rank() const { return input_.rank; }
  const Geometry& geometry() const { return *geometry_; }
  Collective* collective() const { return input_.collective; }
  const OwnerSizes& sizes() const { return sizes_; }
  // The canonical boxes of its items: those it projects and those of residual tensors that it owns.
  std::vector<std::pair<std::uint32_t, ItemBox>> item_boxes() const;
  // Of the same pieces, in the same order, where the arena keeps the baseline's words.
  std::vector<BaselinePiece> baseline_pieces() const;
  const Arena& arena() const { return arena_; }

  // Whether the baseline is that of a version, and which. A baseline becomes void when the
  // candidate changed while it had to stay fixed; the next commit after a dense attempt mends it.
  bool baseline_valid() const { return baseline_.has_value(); }
  std::optional<std::uint64_t> baseline_version() const { return baseline_; }
  bool prepared() const { return prepared_; }
  std::uint64_t target_version() const { return attempt_.target_version; }

  // The sink of converted parts, for the Collective.
  ResidualShare& residual() { return *residual_; }

  // Phases, each described at OwnerGroup.
  void begin_initialize(SpanRecorder* spans);
  void begin_prepare(const Attempt& attempt, Executor& executor, const BucketOptions& options,
                     PayloadSink& sink);
  void begin_commit(SpanRecorder* spans);
  Lane lane();  // of begin_prepare: the affine part
  // Of begin_initialize and begin_commit: copies what changed, or everything, into the baseline.
  // Valid until the next call.
  Lane storing();
  Status close_affine();  // what follows are residual items
  void raise_flags(std::span<std::uint8_t> flags) const;
  void raise_changed(std::span<const std::uint32_t> pieces, std::span<std::uint8_t> flags) const {
    residual_->raise_changed(pieces, flags);
  }
  // Converts this rank's part of a round and sends it.
  Status convert_round(std::span<const std::uint32_t> pieces);
  Status take_round(std::span<const std::uint32_t> pieces);
  Result<PrepareResult> finish_prepare();
  void finish_initialize(std::uint64_t version);
  void finish_commit();
  // Ends a phase that failed: drops its buckets, and voids the baseline where the candidate broke.
  void fail();
  // The attempt will not be committed.
  void drop_attempt() { prepared_ = false; }

 private:
  // What an attempt found out about a piece. Written by the thread that scans it.
  struct Finding {
    Digest digest{};       // of the candidate's words
    bool known = false;    // whether there is such a digest
    bool changed = false;  // since the baseline
    std::uint64_t changes = 0;
  };

  // Copies pieces into the arena.
  struct Storing final : PieceSource {
    explicit Storing(Owner& of) : owner(of) {}
    Status load(std::uint64_t index, const Piece& piece, PieceBuffers* buffers,
                const std::function<void(const ScanBox&)>& scan) override;

    Owner& owner;
    std::vector<std::uint32_t> indices;  // in the plan, of the pieces to copy
  };

  Status plan(const std::string& arena_path);
  Piece attempt_piece(std::size_t index) const;
  void forget_candidate();

  Status load(std::uint64_t index, const Piece& piece, PieceBuffers* buffers,
              const std::function<void(const ScanBox&)>& scan) override;
  bool keeps_parts() const override { return false; }
  void scanned(std::uint64_t index, std::uint64_t changes) override;
  Status store(std::size_t index, const Piece& piece, PieceBuffers* buffers);
  // Reads the candidate's words of a block, cast if need be, where they may have been begun.
  Status read_block(const SourcePiece& source, const Piece& piece, const Box& block,
                    std::unique_ptr<PendingRead> begun, PieceBuffers* buffers, MutableByteSpan out);
  // Begins to read the block after blocks[at], if there is one.
  std::unique_ptr<PendingRead> begin_next(const SourcePiece& source, std::span<const Box> blocks,
                                          std::size_t at);
  // Keeps the digest of the candidate's words, or compares it with the one that was kept.
  Status check_frozen(std::size_t index, const Digest& digest);
  const TensorView& view_of(const SourcePiece& source) const;
  const std::string& name_of(const SourcePiece& source) const;

  const std::shared_ptr<const Geometry> geometry_;
  const OwnerInput input_;
  SourcePlan plan_;
  OwnerSizes sizes_;
  std::unique_ptr<ResidualShare> residual_;
  Arena arena_;

  std::optional<std::uint64_t> baseline_;
  Attempt attempt_;
  bool dense_ = false;              // this attempt sends everything
  bool has_baseline_ = false;       // and has something to compare with
  bool prepared_ = false;           // it is complete and may be committed
  std::vector<Finding> findings_;   // of the plan's pieces
  std::vector<Piece> lane_pieces_;  // the plan's, as this phase wants them
  std::atomic<bool> frozen_broken_{false};
  std::optional<Buckets> buckets_;
  BucketOptions bucket_options_;
  SpanRecorder* spans_ = nullptr;
  Storing storing_{*this};
};

}  // namespace dcr
