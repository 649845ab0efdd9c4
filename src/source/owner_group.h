// The owners of one process: one in a trainer rank, several where ranks are played in one process.
// Runs their phases together, and meets the owners of other processes through the Collective of
// its first owner.
//
// Thread safety: none; it uses the executor's threads itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/limits.h"
#include "dcr/ports.h"
#include "dcr/status.h"
#include "runtime/clock.h"
#include "runtime/threads.h"
#include "source/attempt.h"
#include "source/owner.h"

namespace dcr {

struct OwnerOptions {
  std::uint64_t chunk_bytes = 64 * kMiB;    // 256 MiB for a relay (paper C)
  std::uint64_t bucket_bytes = 512 * kMiB;  // input bytes of a payload's items (paper C)
  // Working memory of all owners of the group, beside their baselines and the weights.
  std::uint64_t memory_bytes_max = 2 * kGiB;
  Bytes key;  // of payloads' digests; see Payload::read
  // Makes what runs end with kCancelled; the group may be used again once the token is reset.
  const CancelToken* cancel = nullptr;
  // Called on the calling thread with bytes of pieces; may be empty.
  std::function<void(const char* stage, std::uint64_t bytes)> progress;
  SpanRecorder* spans = nullptr;
};

// How a group stays within its memory.
struct OwnerMemory {
  std::uint64_t chunk_bytes = 0;    // of at most OwnerOptions::chunk_bytes
  std::uint64_t window = 0;         // chunks in flight
  std::uint64_t sealing = 0;        // payloads in flight, of each owner
  std::uint64_t raw_bytes_max = 0;  // of a bucket's streams
};
// Error kInvalidArgument: not even the least fits, naming it.
Result<OwnerMemory> plan_owner_memory(const OwnerOptions& options, unsigned threads,
                                      std::size_t owners, bool residual);

class OwnerGroup {
 public:
  // Everything must outlive the group. All owners have one geometry, in which other owners' ranks
  // may stand too. Error kInvalidArgument: see plan_owner_memory.
  static Result<std::unique_ptr<OwnerGroup>> create(std::vector<Owner*> owners, Executor& executor,
                                                    OwnerOptions options);

  // Of create().
  OwnerGroup(std::vector<Owner*> owners, Executor& executor, OwnerOptions options,
             const OwnerMemory& memory);

  // The first baseline: copies every tracker and converts every residual tensor once. All groups of
  // a refit call it together, as they do prepare and commit.
  Status initialize(std::uint64_t version);

  // Constructs and sends the payloads of an attempt, sinks[i] being that of owner i: affine ones
  // first, then residual ones, each owner's numbered from 0. Owners without a baseline of the base
  // version send everything. A repeat for the same candidate compares what it reads with what was
  // read before. On an error nothing is prepared; kMismatch names a tensor that changed under the
  // refit (then that owner's baseline is void).
  Result<std::vector<PrepareResult>> prepare(const Attempt& attempt,
                                             std::span<PayloadSink* const> sinks);

  // After the commit record names the attempt's target version: copies what changed into the
  // baselines. May be repeated, also after an error, until it succeeds or a tensor changed under
  // the refit. REQUIRES of a version that no baseline has yet: prepare for it succeeded last, else
  // kMismatch.
  Status commit(std::uint64_t version);

  // Sends the baseline whole, for receivers that restore it: every owner of the group all that it
  // owns, projected and residual tensors alike, as dense overwrites that are read from the baseline
  // and never from the weights; sinks[i] is that of owner i, whose payloads are numbered from 0.
  // Equal baselines give equal payloads. Meets no other process, and changes nothing: a candidate
  // may be open and an attempt prepared. Error kMismatch: some owner has no baseline of that
  // version, or of no version.
  Result<std::vector<PipelineResult>> restore(const RestoreHeader& header,
                                              std::span<PayloadSink* const> sinks);

  // Of each owner, in the order of its item_boxes(), the tensor_digest of each box's words in its
  // baseline, in the box's order: what receivers prove a base checkpoint by. Otherwise as restore.
  Result<std::vector<std::vector<Digest>>> baseline_digests(std::uint64_t version);

  // A few words of each owner's baseline, drawn by `seed` (sample_pieces), as a payload that
  // restore could have sent; empty: the owner owns nothing. What receivers compare with what they
  // hold. Of at most kSampleBytesMax bytes. Otherwise as restore.
  Result<std::vector<Bytes>> sample(const RestoreHeader& header, std::uint64_t seed);

  // Ends an attempt that will not be committed. The next one may be about the same candidate.
  void drop_attempt();

 private:
  const Geometry& geometry() const { return owners_[0]->geometry(); }
  bool residual() const { return !geometry().groups().empty(); }
  Status scan(std::span<const Lane> lanes, const char* stage);
  BucketOptions bucket_options() const;
  Status check_baseline(std::uint64_t version) const;
  using PiecesOf = std::function<std::vector<BaselinePiece>(const Owner& owner)>;
  Result<std::vector<PipelineResult>> send(const RestoreHeader& header,
                                           const BucketOptions& options,
                                           std::span<PayloadSink* const> sinks,
                                           const PiecesOf& pieces_of);
  Status reduce(std::span<std::uint8_t> flags);
  Status meet(const Status& status);
  Status convert(std::span<const std::uint32_t> round);
  Status run_rounds(std::span<const std::uint32_t> pieces, Status status);
  Status check_sinks(std::size_t sinks) const;
  Status check_attempt(const Attempt& attempt, std::size_t sinks) const;
  Status construct(const Attempt& attempt);
  Status update_baselines();

  const std::vector<Owner*> owners_;
  Executor& executor_;
  const OwnerOptions options_;
  const OwnerMemory memory_;
  std::vector<std::uint32_t> converted_;  // residual pieces of the prepared attempt
};

}  // namespace dcr
