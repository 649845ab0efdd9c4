// One rank of a serving engine that holds OLD, prewarmed: what payloads are applied to.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "bench/checkpoint_owners.h"
#include "dcr/status.h"
#include "layout/receiver_plan.h"
#include "layout/reference_loader.h"
#include "receiver/host_memory.h"
#include "receiver/receiver.h"
#include "runtime/arena.h"

namespace dcr {

class ServingRank {
 public:
  // Words of a canonical tensor that follow each other on the rank too.
  struct Run {
    std::size_t storage = 0;
    std::uint64_t canonical = 0, word = 0;
    std::size_t words = 0;
  };

  // Memory of the rank's size.
  struct Weights {
    Arena arena;
    std::vector<MutableByteSpan> storages;
  };

  // Rank 0 of a fused layout. `owners`: what each may send. `pair` must outlive it.
  static Result<std::unique_ptr<ServingRank>> make(const OpenPair& pair, unsigned tensor_parallel,
                                                   std::vector<std::vector<OwnerBox>> owners);

  // Of make().
  explicit ServingRank(const OpenPair& pair) : pair_(pair) {}

  std::vector<std::vector<Run>> runs() const;  // of its loader's copies, by tensor
  std::span<const MutableByteSpan> storages() const { return resident_.storages; }
  Result<Weights> copy_of_old() const;

  // The product's path on a number of threads, which is prepared first: prewarmed, every tensor
  // being traced (kInternal).
  Status prepare(unsigned threads);
  Status apply(unsigned threads, std::span<const std::shared_ptr<const DecodedPayload>> payloads);

  // That the storages hold NEW (kMismatch). Then they get OLD.
  Status check_and_restore(std::span<const MutableByteSpan> storages) const;

 private:
  struct ReceiverOnThreads {
    std::unique_ptr<Executor> executor;
    std::unique_ptr<Receiver> receiver;
  };

  Result<Weights> allocate() const;
  Status load(const Checkpoint& checkpoint, const Weights& weights) const;

  const OpenPair& pair_;
  ReceiverRank plan_;
  Weights resident_, old_, new_;
  std::unique_ptr<HostMemory> memory_;
  std::unique_ptr<ReferenceLoader> loader_;
  std::vector<std::vector<OwnerBox>> owners_;
  std::map<unsigned, ReceiverOnThreads> receivers_;  // plans stay from round to round
};

}  // namespace dcr
