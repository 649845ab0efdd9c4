#include <algorithm>
#include <string>
#include <utility>

#include "protocol/node_machine.h"

namespace dcr {
namespace {

// What may be different the next time.
bool passes(const Status& status) {
  return status.code() == Code::kIo || status.code() == Code::kUnavailable ||
         status.code() == Code::kCancelled;
}

std::string payload_text(std::uint32_t owner, std::uint64_t number) {
  return "payload " + std::to_string(number) + " of owner " + std::to_string(owner);
}

}  // namespace

void NodeEndpoint::Machine::fetch_ends(NodeStream* stream) {
  if (stream->feeds.empty()) return;
  for (std::uint32_t owner = 0; owner < stream->owners(); ++owner) {
    NodeStream::Sender& sender = stream->senders[owner];
    if (sender.end || sender.fetching_end) continue;
    if (now_ < sender.end_at && !sender.end_hinted) continue;
    sender.fetching_end = true;
    sender.end_hinted = false;
    ++stream->outstanding;
    emit(FetchEnd{stream->id, owner});
  }
}

// The lowest order number that is missing and may be asked for now.
std::optional<std::uint64_t> NodeEndpoint::Machine::next_to_fetch(const NodeStream& stream) const {
  std::optional<std::uint64_t> lowest;
  for (std::uint32_t owner = 0; owner < stream.owners(); ++owner) {
    const NodeStream::Sender& sender = stream.senders[owner];
    if (sender.end && sender.missing >= sender.end->size()) continue;
    if (sender.missing >= kPayloadsPerOwnerMax) continue;
    // Beyond what is known to be there, it is looked for from time to time.
    const bool known = sender.end || sender.missing < sender.sent;
    if (now_ < sender.retry_at || (!known && now_ < sender.probe_at)) continue;
    const std::uint64_t order = stream.order(owner, sender.missing);
    if (!lowest || order < *lowest) lowest = order;
  }
  return lowest;
}

bool NodeEndpoint::Machine::has_room(const NodeStream& stream, std::uint64_t order) const {
  if (fetches_ >= kNodeFetchesMax) return false;
  const NodeStream::Sender& sender = stream.senders[stream.owner_of(order)];
  const std::uint64_t number = stream.number_of(order);
  if (stream.applying) {
    if (stream.is_turn(order)) return true;
    const auto waiting = std::count_if(stream.payloads.begin(), stream.payloads.end(),
                                       [](const auto& entry) { return entry.second.waits(); });
    return stream.payloads.size() < options_.window_payloads &&
           static_cast<std::uint64_t>(waiting) < kNodeFetchesMax;
  }
  const std::uint64_t held = stream.stored_bytes();
  const std::uint64_t limit = options_.staging_bytes_max;
  if (sender.end) {
    const std::uint64_t bytes = (*sender.end)[static_cast<std::size_t>(number)].bytes;
    return held <= limit && bytes <= limit - held;
  }
  // Of a size that nobody knows yet: as large as the largest so far, and one at a time where such
  // would not fit.
  const bool likely = held <= limit && stream.largest <= limit - held && stream.largest > 0;
  return likely || (held < limit && stream.fetching() == 0);
}

void NodeEndpoint::Machine::fetch_payloads(NodeStream* stream) {
  if (stream->feeds.empty()) return;
  while (const std::optional<std::uint64_t> order = next_to_fetch(*stream)) {
    if (!has_room(*stream, *order)) return;
    const std::uint32_t owner = stream->owner_of(*order);
    const std::uint64_t number = stream->number_of(*order);
    NodeStream::Sender& sender = stream->senders[owner];
    FetchPayload fetch{stream->id, owner, number, std::nullopt};
    if (sender.end) fetch.entry = (*sender.end)[static_cast<std::size_t>(number)];
    NodeStream::Payload& payload = stream->payloads[*order];
    payload.stored_bytes = fetch.entry ? fetch.entry->bytes : stream->largest;
    stream->advance_missing(owner);
    // One beyond what is known at a time.
    if (!sender.end && number >= sender.sent) sender.probe_at = now_ + options_.waits.repeat_ms;
    ++stream->outstanding;
    ++fetches_;
    emit(fetch);
  }
}

// Whether something that is there finds no room before receivers apply.
bool NodeEndpoint::Machine::out_of_room(const NodeStream& stream) const {
  if (stream.fetching() > 0 || fetches_ >= kNodeFetchesMax) return false;
  for (std::uint32_t owner = 0; owner < stream.owners(); ++owner) {
    const NodeStream::Sender& sender = stream.senders[owner];
    const std::uint64_t known = sender.end ? sender.end->size() : sender.sent;
    if (sender.missing >= known || now_ < sender.retry_at) continue;
    if (!has_room(stream, stream.order(owner, sender.missing))) return true;
  }
  return false;
}

std::uint64_t NodeEndpoint::Machine::decoded_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [id, stream] : streams_) bytes += stream.decoded_bytes();
  return bytes;
}

void NodeEndpoint::Machine::decode(NodeStream* stream) {
  if (!stream->applying) return;
  std::uint64_t bytes = decoded_bytes();
  for (auto& [order, payload] : stream->payloads) {
    if (payload.state != State::kFetched) continue;
    const bool fits = payload.decoded_bytes <= options_.decoded_bytes_max &&
                      bytes <= options_.decoded_bytes_max - payload.decoded_bytes;
    if (!fits && !stream->is_turn(order)) return;
    payload.state = State::kDecoding;
    bytes += payload.decoded_bytes;
    ++stream->outstanding;
    emit(DecodePayload{stream->id, stream->owner_of(order), stream->number_of(order)});
  }
}

// The stream of an answer, or nothing if it is gone.
NodeStream* NodeEndpoint::Machine::answered(const StreamId& id) {
  NodeStream* const stream = find(id);
  const auto gone = dropped_.find(id);
  if (gone != dropped_.end()) {
    if (--gone->second == 0) dropped_.erase(gone);
    return nullptr;
  }
  if (stream == nullptr || stream->outstanding == 0) return nullptr;
  --stream->outstanding;
  return stream->failure ? nullptr : stream;
}

void NodeEndpoint::Machine::on(const EndFetched& event) {
  NodeStream* const stream = answered(event.stream);
  if (stream == nullptr || event.owner >= stream->owners()) return;
  NodeStream::Sender& sender = stream->senders[event.owner];
  sender.fetching_end = false;
  sender.end_at = now_ + options_.waits.repeat_ms;
  if (!event.status.ok()) {
    if (!passes(event.status)) fail(stream, event.status);
    return;
  }
  if (!event.end || sender.end) return;
  const Status taken = take_end(stream, event.owner, *event.end);
  if (!taken.ok()) return fail(stream, taken);
  for (const NodeStream::Feed& feed : stream->feeds) {
    if (feed.begun) {
      send(feed.receiver, OwnerEnd{stream->id, event.owner, event.end->payloads.size()});
    }
  }
}

Status NodeEndpoint::Machine::take_end(NodeStream* stream, std::uint32_t owner,
                                       const AttemptEnd& end) {
  NodeStream::Sender& sender = stream->senders[owner];
  const std::vector<std::optional<PayloadEntry>> seen = std::exchange(sender.seen, {});
  sender.end = end.payloads;
  sender.sent = end.payloads.size();
  sender.retry_at = now_;
  for (std::size_t number = 0; number < seen.size(); ++number) {
    if (seen[number]) DCR_TRY(take_entry(stream, owner, number, *seen[number]));
  }
  return {};
}

// That what came is what the owner's end says.
Status NodeEndpoint::Machine::take_entry(NodeStream* stream, std::uint32_t owner,
                                         std::uint64_t number, const PayloadEntry& entry) {
  NodeStream::Sender& sender = stream->senders[owner];
  const auto slot = static_cast<std::size_t>(number);
  if (!sender.end) {
    if (sender.seen.size() <= slot) sender.seen.resize(slot + 1);
    if (!sender.seen[slot]) sender.seen[slot] = entry;
    if (*sender.seen[slot] == entry) return {};
    return {Code::kMismatch, payload_text(owner, number) + " came with other bytes than before"};
  }
  if (slot >= sender.end->size()) {
    return {Code::kMismatch, payload_text(owner, number) + " came, but its end counts " +
                                 std::to_string(sender.end->size())};
  }
  if ((*sender.end)[slot] == entry) return {};
  return {Code::kMismatch,
          payload_text(owner, number) + " has another size or digest than its owner's end says"};
}

// Receivers have gone on since it was asked for; some may have come back to it.
void NodeEndpoint::Machine::answered_late(NodeStream* stream, std::uint64_t order) {
  stream->late.erase(order);
  if (order >= stream->low) return miss(stream, order, now_);
  emit(DropPayloads{stream->id, stream->low});
}

// The payload is not here; it is asked for again.
void NodeEndpoint::Machine::miss(NodeStream* stream, std::uint64_t order, Milliseconds again_at) {
  const std::uint32_t owner = stream->owner_of(order);
  NodeStream::Sender& sender = stream->senders[owner];
  stream->payloads.erase(order);
  sender.missing = std::min(sender.missing, stream->number_of(order));
  sender.retry_at = std::max(sender.retry_at, again_at);
  stream->advance_missing(owner);
}

void NodeEndpoint::Machine::on(const PayloadFetched& event) {
  if (fetches_ > 0) --fetches_;
  NodeStream* const stream = answered(event.stream);
  if (stream == nullptr) {
    if (event.there) emit(DropPayloads{event.stream, kOrderAll});
    return;
  }
  if (event.owner >= stream->owners()) return;
  const std::uint64_t order = stream->order(event.owner, event.number);
  const auto found = stream->payloads.find(order);
  if (found == stream->payloads.end()) return answered_late(stream, order);
  NodeStream::Sender& sender = stream->senders[event.owner];
  if (!event.status.ok() && !passes(event.status)) return fail(stream, event.status);
  if (!event.status.ok() || !event.there) {
    if (!sender.end) sender.sent = std::min(sender.sent, event.number);
    return miss(stream, order, now_ + options_.waits.repeat_ms);
  }
  const Status taken = take_entry(stream, event.owner, event.number, event.entry);
  if (!taken.ok()) return fail(stream, taken);
  if (!sender.end && event.number >= sender.sent) {
    sender.sent = event.number + 1;
    sender.probe_at = now_;  // perhaps there is more
  }
  found->second.state = State::kFetched;
  found->second.stored_bytes = event.stored_bytes;
  found->second.decoded_bytes = event.decoded_bytes;
  stream->largest = std::max(stream->largest, event.stored_bytes);
}

void NodeEndpoint::Machine::on(const PayloadDecoded& event) {
  NodeStream* const stream = answered(event.stream);
  if (stream == nullptr || event.owner >= stream->owners()) return;
  const std::uint64_t order = stream->order(event.owner, event.number);
  const auto found = stream->payloads.find(order);
  if (found == stream->payloads.end()) return answered_late(stream, order);
  if (event.status.ok()) {
    found->second.state = State::kDecoded;
  } else if (passes(event.status)) {
    miss(stream, order, now_ + options_.waits.repeat_ms);
  } else {
    fail(stream, event.status);
  }
}

}  // namespace dcr
