// What owners say to each other in a simulated world (paper §4.3): the ranks of a meeting run on
// threads, each in its own group, and wait for each other at every reduction. A meeting may break
// at one of them, as one over a network does whose last messages reached some ranks only.
//
// Thread safety: a rank's Collective is that rank's thread's; SimRanks is called while none runs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "dcr/ports.h"
#include "runtime/bounded_queue.h"
#include "source/local_collective.h"

namespace dcr {

// From a reduction on, counted from 0, nothing gets through any more. Of that one rank r still has
// what the others said where bit r of `heard` is set.
struct CollectiveFault {
  std::uint64_t reduction = ~std::uint64_t{0};  // never
  std::uint64_t heard = 0;
};

class SimCollective;

class SimRanks {
 public:
  explicit SimRanks(std::uint32_t count) : local_(count), queues_(std::size_t{count} * count) {}

  std::uint32_t count() const { return local_.count(); }
  // A meeting of all ranks is about to begin.
  void begin(const CollectiveFault& fault);
  // `sink` must outlive the meetings that `rank` is in.
  void connect(std::uint32_t rank, PartSink& sink) { local_.connect(rank, sink); }

 private:
  friend class SimCollective;
  using Queue = BoundedQueue<Bytes>;  // of flags

  Queue& queue(std::uint32_t from, std::uint32_t to) {
    return *queues_[std::size_t{from} * count() + to];
  }

  LocalRanks local_;
  CollectiveFault fault_;
  std::uint64_t meetings_ = 0;
  std::vector<std::unique_ptr<Queue>> queues_;  // of the meeting, from each rank to each
};

class SimCollective final : public Collective {
 public:
  SimCollective(SimRanks& ranks, std::uint32_t rank) : ranks_(ranks), local_(ranks.local_, rank) {}

  std::uint32_t rank() const override { return local_.rank(); }
  std::uint32_t size() const override { return local_.size(); }
  // Errors: kUnavailable, the meeting is broken, or a rank has left it.
  Status all_reduce_flags(std::span<std::uint8_t> flags) override;
  Status send_part(std::uint32_t to, const PartHeader& header,
                   std::span<const std::uint8_t> bytes) override;

  // What this rank has done in the meeting is over; who waits for it does so no longer.
  void leave();

 private:
  void look();  // whether another meeting has begun

  SimRanks& ranks_;
  LocalCollective local_;
  std::uint64_t meeting_ = 0;
  std::uint64_t reductions_ = 0;  // of the meeting, that this rank has come to
};

}  // namespace dcr
