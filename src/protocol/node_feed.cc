#include <algorithm>
#include <utility>

#include "base/probe.h"
#include "protocol/node_machine.h"

namespace dcr {
namespace {

// Restores that a node feeds at a time, the newest versions, and receivers of one.
constexpr std::size_t kRestoresMax = 2;
constexpr std::size_t kRestoringMax = 256;
constexpr std::size_t kEarlyMax = 256;
// Receivers that restore and are silent for so many repeats need no payloads to be kept for them.
constexpr Milliseconds kSilentRepeats = 300;

}  // namespace

Milliseconds NodeEndpoint::Machine::silent_ms() const {
  return kSilentRepeats * options_.waits.repeat_ms;
}

// Of an attempt credit comes from the receivers that its prepare gave to this node; a restore
// begins with the first credit for it.
NodeStream* NodeEndpoint::Machine::stream_for(const Endpoint& from, const StreamId& id) {
  if (!id.restore) {
    NodeStream* const stream = find(id);
    if (stream == nullptr) return nullptr;
    const NodeStream::Feed* const feed = stream->feed_of(from.name);
    return feed != nullptr && feed->receiver == from ? stream : nullptr;
  }
  NodeStream* const stream = begin_restore(id);
  if (stream == nullptr) return nullptr;
  NodeStream::Feed* feed = stream->feed_of(from.name);
  if (feed == nullptr) {
    if (stream->feeds.size() == kRestoringMax) return nullptr;
    feed = &stream->feeds.emplace_back();
    feed->receiver = from;
  } else if (feed->receiver.incarnation != from.incarnation) {
    if (feed->receiver.incarnation > from.incarnation) return nullptr;
    *feed = NodeStream::Feed();
    feed->receiver = from;
  }
  return stream;
}

NodeStream* NodeEndpoint::Machine::begin_restore(const StreamId& id) {
  if (NodeStream* const stream = find(id)) return stream;
  if (dropped_.contains(id)) return nullptr;  // not before all work of the last one is answered
  std::vector<StreamId> restores;
  for (const auto& [other, stream] : streams_) {
    if (other.restore) restores.push_back(other);
  }
  if (restores.size() == kRestoresMax) {
    if (id < restores[0]) return nullptr;
    fail(find(restores[0]), {Code::kCancelled, "restores of later versions took its place"});
  }
  return &streams_.try_emplace(id, id, options_.owners, true, now_).first->second;
}

// A receiver that was prepared before this node: without what it says it would hear nothing until
// it says it again.
void NodeEndpoint::Machine::keep_early(const Endpoint& from, const Credit& credit) {
  if (early_credit_.size() == kEarlyMax && !early_credit_.contains(from.name)) return;
  early_credit_[from.name] = {from, credit};
}

void NodeEndpoint::Machine::on_message(const Endpoint& from, const Credit& message) {
  const bool early = !message.stream.restore && message.stream.number > fence_;
  if (early) return keep_early(from, message);
  NodeStream* const stream = stream_for(from, message.stream);
  if (stream == nullptr || message.next > kPayloadsPerOwnerMax * stream->owners()) return;
  NodeStream::Feed& feed = *stream->feed_of(from.name);
  feed.heard_at = now_;
  if (stream->failure) return send(from, StreamFailed{stream->id, *stream->failure});
  if (message.again && !feed.again) {
    DCR_PROBE("a receiver takes a stream for the second time");
    feed = NodeStream::Feed();
    feed.receiver = from;
    feed.again = true;
    feed.heard_at = now_;
  } else if (!message.again && feed.again) {
    return;  // older
  }
  if (feed.begun && message.next < feed.next) return;  // older than what came already
  const bool repeated = feed.begun && message.next == feed.next &&
                        message.payloads == feed.payloads && message.bytes == feed.bytes;
  if (repeated && feed.handed > feed.next) DCR_PROBE("payloads are handed over again");
  feed.handed = repeated ? message.next : std::max(feed.handed, message.next);
  if (repeated || !feed.begun) send_ends(*stream, feed);
  feed.begun = true;
  feed.next = message.next;
  feed.payloads = message.payloads;
  feed.bytes = message.bytes;
}

void NodeEndpoint::Machine::send_ends(const NodeStream& stream, const NodeStream::Feed& feed) {
  for (std::uint32_t owner = 0; owner < stream.owners(); ++owner) {
    const NodeStream::Sender& sender = stream.senders[owner];
    if (sender.end) send(feed.receiver, OwnerEnd{stream.id, owner, sender.end->size()});
  }
}

void NodeEndpoint::Machine::hand_over(NodeStream* stream) {
  if (!stream->applying) return;
  for (NodeStream::Feed& feed : stream->feeds) {
    if (feed.begun) hand_over(stream, &feed);
  }
}

// In order, as far as its room reaches; the next one always.
void NodeEndpoint::Machine::hand_over(NodeStream* stream, NodeStream::Feed* feed) {
  std::uint64_t payloads = 0;
  std::uint64_t bytes = 0;
  const auto& held = stream->payloads;
  for (auto it = held.lower_bound(feed->next); it != held.end() && it->first < feed->handed; ++it) {
    ++payloads;
    bytes += it->second.decoded_bytes;
  }
  while (true) {
    const std::uint64_t order = stream->first_from(feed->handed);
    const auto found = held.find(order);
    if (found == held.end() || found->second.state != State::kDecoded) return;
    const std::uint64_t more = found->second.decoded_bytes;
    const bool fits =
        payloads < feed->payloads && bytes <= feed->bytes && more <= feed->bytes - bytes;
    if (payloads > 0 && !fits) return;
    ++payloads;
    bytes += more;
    feed->handed = order + 1;
    emit(HandOver{feed->receiver, stream->id, stream->owner_of(order), stream->number_of(order)});
  }
}

// What every receiver has taken is dropped.
void NodeEndpoint::Machine::let_go(NodeStream* stream) {
  if (stream->feeds.empty()) return;
  std::uint64_t low = kOrderAll;
  for (const NodeStream::Feed& feed : stream->feeds) low = std::min(low, feed.next);
  if (low == stream->low) return;
  const bool drops = low > stream->low;
  stream->set_low(low);
  if (drops) emit(DropPayloads{stream->id, low});
}

void NodeEndpoint::Machine::forget_silent() {
  std::vector<StreamId> over;
  for (auto& [id, stream] : streams_) {
    if (!id.restore) continue;
    std::erase_if(stream.feeds, [this](const NodeStream::Feed& feed) {
      return now_ >= feed.heard_at + silent_ms();
    });
    if (stream.feeds.empty()) over.push_back(id);
  }
  for (const StreamId& id : over) drop(id);
}

}  // namespace dcr
