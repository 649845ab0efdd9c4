#include "protocol/node_stream.h"

#include <algorithm>

namespace dcr {

NodeStream::NodeStream(StreamId stream, std::uint32_t owners, bool apply, Milliseconds now)
    : id(stream), applying(apply), senders(owners) {
  for (Sender& sender : senders) {
    sender.end_at = now;
    sender.probe_at = now;
  }
}

std::uint64_t NodeStream::first_from(std::uint64_t order) const {
  bool unknown = false;
  std::uint64_t numbers = 0;
  for (const Sender& sender : senders) {
    unknown = unknown || !sender.end;
    if (sender.end) numbers = std::max<std::uint64_t>(numbers, sender.end->size());
  }
  for (;; ++order) {
    if (!unknown && number_of(order) >= numbers) return kOrderAll;
    const Sender& sender = senders[owner_of(order)];
    if (!sender.end || number_of(order) < sender.end->size()) return order;
  }
}

bool NodeStream::complete() const {
  return fetching() == 0 && std::all_of(senders.begin(), senders.end(), [](const Sender& sender) {
           return sender.end && sender.missing >= sender.end->size();
         });
}

void NodeStream::advance_missing(std::uint32_t owner) {
  std::uint64_t& missing = senders[owner].missing;
  const std::uint64_t wanted = low <= owner ? 0 : (low - owner + owners() - 1) / owners();
  missing = std::max(missing, wanted);
  const auto here = [this](std::uint64_t at) { return payloads.contains(at) || late.contains(at); };
  while (here(order(owner, missing))) ++missing;
}

void NodeStream::set_low(std::uint64_t order) {
  if (order < low) {
    for (Sender& sender : senders) sender.missing = 0;
  }
  low = order;
  const auto wanted = payloads.lower_bound(low);
  for (auto it = payloads.begin(); it != wanted; ++it) {
    if (it->second.works()) late.insert(it->first);
  }
  payloads.erase(payloads.begin(), wanted);
  for (std::uint32_t owner = 0; owner < owners(); ++owner) advance_missing(owner);
}

NodeStream::Feed* NodeStream::feed_of(const std::string& receiver) {
  const auto found = std::find_if(feeds.begin(), feeds.end(),
                                  [&](const Feed& feed) { return feed.receiver.name == receiver; });
  return found == feeds.end() ? nullptr : &*found;
}

std::uint64_t NodeStream::stored_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [order, payload] : payloads) {
    if (payload.waits()) bytes += payload.stored_bytes;
  }
  return bytes;
}

std::uint64_t NodeStream::decoded_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [order, payload] : payloads) {
    if (!payload.waits()) bytes += payload.decoded_bytes;
  }
  return bytes;
}

std::uint64_t NodeStream::fetching() const {
  return static_cast<std::uint64_t>(std::count_if(
      payloads.begin(), payloads.end(),
      [](const auto& entry) { return entry.second.state == Payload::State::kFetching; }));
}

}  // namespace dcr
