// Messages that wait, by peer, in bounded memory. When there is no room the oldest give way:
// control messages are repeated, and a newer one says more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/assert.h"

namespace dcr {

struct QueueLimits {
  std::uint64_t peer_bytes_max = 0;
  std::uint64_t peer_messages_max = 0;
  std::uint64_t bytes_max = 0;  // of all peers together
};

// What a queue needs for a message beside its bytes; counted, so that empty ones are not free.
inline constexpr std::uint64_t kQueuedMessageOverheadBytes = 256;

// Not thread-safe.
template <typename Message>
class PeerQueues {
 public:
  // REQUIRES: of the limits none is 0, and peer_bytes_max <= bytes_max.
  explicit PeerQueues(QueueLimits limits) : limits_(limits) {
    DCR_ASSERT(limits.peer_messages_max > 0 && limits.peer_bytes_max > 0);
    DCR_ASSERT(limits.peer_bytes_max <= limits.bytes_max);
  }

  // Puts a message of `bytes` bytes behind the peer's others. Returns how many others were dropped
  // for it: the peer's oldest, then the oldest of whoever takes the most room.
  // REQUIRES: with its overhead it is within peer_bytes_max.
  std::uint64_t push(const std::string& peer, Message message, std::uint64_t bytes) {
    bytes += kQueuedMessageOverheadBytes;
    DCR_ASSERT(bytes <= limits_.peer_bytes_max);
    std::uint64_t dropped = 0;
    for (; !fits_peer(peer, bytes); ++dropped) take_front(queues_.find(peer));
    for (; bytes_ + bytes > limits_.bytes_max; ++dropped) take_front(largest());
    Queue& queue = queues_[peer];
    queue.messages.push_back({std::move(message), bytes});
    queue.bytes += bytes;
    bytes_ += bytes;
    return dropped;
  }

  // Puts back, in front, what pop_of() gave and could not be used. Returns 1 if it was dropped,
  // being the oldest where there is no room any more, else 0.
  std::uint64_t restore(const std::string& peer, Message message, std::uint64_t bytes) {
    bytes += kQueuedMessageOverheadBytes;
    if (!fits_peer(peer, bytes) || bytes_ + bytes > limits_.bytes_max) return 1;
    Queue& queue = queues_[peer];
    queue.messages.push_front({std::move(message), bytes});
    queue.bytes += bytes;
    bytes_ += bytes;
    return 0;
  }

  // The oldest message of the peer whose turn it is; peers take turns.
  std::optional<Message> pop() {
    if (queues_.empty()) return std::nullopt;
    auto next = queues_.upper_bound(last_);
    if (next == queues_.end()) next = queues_.begin();
    last_ = next->first;
    return take_front(next);
  }

  // The oldest message of one peer.
  std::optional<Message> pop_of(const std::string& peer) {
    const auto found = queues_.find(peer);
    if (found == queues_.end()) return std::nullopt;
    return take_front(found);
  }

  // Drops all of a peer; returns how many.
  std::uint64_t clear(const std::string& peer) {
    std::uint64_t dropped = 0;
    while (pop_of(peer)) ++dropped;
    return dropped;
  }

  bool empty() const { return bytes_ == 0; }
  bool holds(const std::string& peer) const { return queues_.contains(peer); }
  std::uint64_t bytes() const { return bytes_; }  // overhead included

  // Those that have messages waiting, ascending.
  template <typename Visit>
  void for_each_peer(Visit visit) const {
    for (const auto& [peer, queue] : queues_) visit(peer);
  }

 private:
  struct Entry {
    Message message;
    std::uint64_t bytes = 0;
  };
  struct Queue {
    std::deque<Entry> messages;
    std::uint64_t bytes = 0;
  };
  using Queues = std::map<std::string, Queue>;

  bool fits_peer(const std::string& peer, std::uint64_t bytes) const {
    const auto found = queues_.find(peer);
    return found == queues_.end() || (found->second.bytes + bytes <= limits_.peer_bytes_max &&
                                      found->second.messages.size() < limits_.peer_messages_max);
  }

  typename Queues::iterator largest() {
    return std::max_element(queues_.begin(), queues_.end(), [](const auto& a, const auto& b) {
      return a.second.bytes < b.second.bytes;
    });
  }

  Message take_front(typename Queues::iterator at) {
    Entry entry = std::move(at->second.messages.front());
    at->second.messages.pop_front();
    at->second.bytes -= entry.bytes;
    bytes_ -= entry.bytes;
    if (at->second.messages.empty()) queues_.erase(at);
    return std::move(entry.message);
  }

  const QueueLimits limits_;
  Queues queues_;  // of peers that have messages
  std::uint64_t bytes_ = 0;
  std::string last_;  // whose turn it was
};

}  // namespace dcr
