#include "sim/collective.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/assert.h"

namespace dcr {
namespace {

Status broken() { return {Code::kUnavailable, "the meeting of owners is broken"}; }

}  // namespace

void SimRanks::begin(const CollectiveFault& fault) {
  fault_ = fault;
  ++meetings_;
  // A rank is at most one reduction ahead of any other.
  for (auto& queue : queues_) queue = std::make_unique<Queue>(2);
}

void SimCollective::look() {
  if (meeting_ == ranks_.meetings_) return;
  meeting_ = ranks_.meetings_;
  reductions_ = 0;
}

Status SimCollective::all_reduce_flags(std::span<std::uint8_t> flags) {
  look();
  const std::uint64_t reduction = reductions_++;
  if (reduction > ranks_.fault_.reduction) return broken();
  for (std::uint32_t to = 0; to < size(); ++to) {
    if (to != rank()) DCR_ASSERT(ranks_.queue(rank(), to).push({flags.begin(), flags.end()}));
  }
  // All are waited for, even if one has left: the others may still send parts to this rank, which
  // takes none once it has gone on.
  std::optional<std::uint32_t> left;
  for (std::uint32_t from = 0; from < size(); ++from) {
    if (from == rank()) continue;
    const std::optional<Bytes> theirs = ranks_.queue(from, rank()).pop();
    if (!theirs) {
      left = from;
      continue;
    }
    DCR_ASSERT(theirs->size() == flags.size());
    for (std::size_t i = 0; i < flags.size(); ++i) flags[i] = std::max(flags[i], (*theirs)[i]);
  }
  if (left) return {Code::kUnavailable, "rank " + std::to_string(*left) + " has left the meeting"};
  const bool heard =
      reduction < ranks_.fault_.reduction || (ranks_.fault_.heard >> rank() & 1) != 0;
  return heard ? Status() : broken();
}

Status SimCollective::send_part(std::uint32_t to, const PartHeader& header,
                                std::span<const std::uint8_t> bytes) {
  look();
  if (reductions_ > ranks_.fault_.reduction) return broken();
  return local_.send_part(to, header, bytes);
}

void SimCollective::leave() {
  for (std::uint32_t to = 0; to < size(); ++to) {
    if (to != rank()) ranks_.queue(rank(), to).close();
  }
}

}  // namespace dcr
