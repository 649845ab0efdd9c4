// The Collective of owners that live in one process and one OwnerGroup.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dcr/ports.h"

namespace dcr {

// Where the parts for each rank go.
class LocalRanks {
 public:
  explicit LocalRanks(std::uint32_t count) : sinks_(count, nullptr) {}
  // `sink` must outlive every send to `rank`.
  void connect(std::uint32_t rank, PartSink& sink) { sinks_[rank] = &sink; }

  std::uint32_t count() const { return static_cast<std::uint32_t>(sinks_.size()); }
  PartSink* sink(std::uint32_t rank) const { return sinks_[rank]; }

 private:
  std::vector<PartSink*> sinks_;
};

// One rank's view. Nothing waits, so that one thread may run all ranks one after another.
class LocalCollective final : public Collective {
 public:
  LocalCollective(const LocalRanks& ranks, std::uint32_t rank) : ranks_(ranks), rank_(rank) {}

  std::uint32_t rank() const override { return rank_; }
  std::uint32_t size() const override { return ranks_.count(); }

  // The group has merged its owners' flags, and there are no other owners.
  Status all_reduce_flags(std::span<std::uint8_t> flags) override;

  // Calls the other rank's sink, on this thread.
  Status send_part(std::uint32_t to, const PartHeader& header,
                   std::span<const std::uint8_t> bytes) override;

 private:
  const LocalRanks& ranks_;
  const std::uint32_t rank_;
};

}  // namespace dcr
