#include "channel/channel_collective.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace dcr {
namespace {

constexpr std::uint64_t kReceiveMs = 100;
constexpr std::uint64_t kLookAtCancelMs = 50;
// A part is sent again after so many times what a short message is.
constexpr std::uint64_t kPartPatience = 10;
constexpr std::size_t kKeptMax = 4;

}  // namespace

ChannelCollective::ChannelCollective(ChannelCollectiveOptions options,
                                     std::unique_ptr<Channel> channel, std::uint64_t life)
    : options_(std::move(options)),
      channel_(std::move(channel)),
      life_(life),
      peers_(options_.peers.size()),
      thread_(make_executor(2)) {
  DCR_ASSERT(options_.rank < options_.peers.size() && options_.clock != nullptr);
  DCR_ASSERT(life > 0 && life <= kCounterMax);
  for (std::uint32_t i = 0; i < size(); ++i) ranks_[name_of(i)] = i;
  thread_->submit([this] { receive(); });
}

ChannelCollective::~ChannelCollective() {
  stopping_ = true;
  thread_.reset();
}

// ---- meetings

Status ChannelCollective::begin(const Meeting& meeting, std::uint64_t wait_ms,
                                const CancelToken& cancel) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (active_ || (meeting_ && ordinal(meeting) <= ordinal(*meeting_))) {
    return {Code::kConflict, "this owner is at " + meeting_text() + " already, or past it"};
  }
  const bool goes_on = meeting_ && ordinal(*meeting_) + 1 == ordinal(meeting) && meeting.commit;
  meeting_ = meeting;
  active_ = true;
  failure_ = Status();
  contributed_ = reduced_ = 0;
  kept_.clear();
  wait_ms_ = wait_ms;
  cancel_ = &cancel;
  for (std::uint32_t from = 0; from < size(); ++from) {
    Peer& peer = peers_[from];
    if (!goes_on) peer.life = 0;
    peer.flags.clear();
    peer.coming = {};
    std::optional<CollectiveMessage> early = std::exchange(peer.early, std::nullopt);
    if (early && early->meeting == ordinal(meeting)) {
      take_current({from, peer.early_life, 0, std::move(*early)});
    } else if (early && early->meeting > ordinal(meeting)) {
      peer.early = std::move(early);
    }
  }
  return {};
}

void ChannelCollective::end(const Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!active_) return;
  active_ = false;
  outgoing_.reset();
  left_ = {status.ok(), status.message()};
  for (std::uint32_t to = 0; to < size(); ++to) {
    peers_[to].ready.reset();
    if (!status.ok() && to != rank()) send(to, ordinal(*meeting_), left_);
  }
}

void ChannelCollective::restart(std::uint64_t life) {
  const std::lock_guard<std::mutex> lock(mutex_);
  DCR_ASSERT(!active_ && life > 0 && life <= kCounterMax);
  meeting_.reset();
  kept_.clear();
  life_ = life;
  for (Peer& peer : peers_) peer = {};
}

std::string ChannelCollective::meeting_text() const {
  if (meeting_->attempt == 0) return "the meeting of first baselines";
  const std::string attempt = "attempt " + std::to_string(meeting_->attempt);
  return meeting_->commit ? "the baseline update of " + attempt : "the meeting of " + attempt;
}

// ---- calls

Status ChannelCollective::check_under_way() const {
  if (!active_) return {Code::kInternal, "owners have begun no meeting"};
  return failure_;
}

Status ChannelCollective::all_reduce_flags(std::span<std::uint8_t> flags) {
  if (flags.size() > kCollectiveFlagsMax) {
    return {Code::kTooLarge, std::to_string(flags.size()) + " flags are above the limit of " +
                                 std::to_string(kCollectiveFlagsMax)};
  }
  Patience patience{now_ms(), now_ms(), options_.repeat_ms};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    DCR_TRY(check_under_way());
    kept_.push_back({contributed_++, Bytes(flags.begin(), flags.end())});
    if (kept_.size() > kKeptMax) kept_.pop_front();
    send_flags(kept_.back(), true);
  }
  while (true) {
    hand_to_sink();
    std::optional<std::uint32_t> waited_for;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      DCR_TRY(check_under_way());
      waited_for = missing();
      if (!waited_for) return merge(flags);
    }
    DCR_ASSIGN(const bool again, wait(&patience, *waited_for));
    if (!again) continue;
    const std::lock_guard<std::mutex> lock(mutex_);
    send_flags(kept_.back(), false);
  }
}

// Whose flags have not come.
std::optional<std::uint32_t> ChannelCollective::missing() const {
  for (std::uint32_t from = 0; from < size(); ++from) {
    if (from != rank() && !peers_[from].flags.contains(reduced_)) return from;
  }
  return std::nullopt;
}

Status ChannelCollective::merge(std::span<std::uint8_t> flags) {
  for (std::uint32_t from = 0; from < size(); ++from) {
    if (from == rank()) continue;
    auto found = peers_[from].flags.extract(reduced_);
    const Bytes& theirs = found.mapped();
    if (theirs.size() != flags.size()) {
      failure_ = {Code::kMismatch, name_of(from) + " counts " + std::to_string(theirs.size()) +
                                       " flags and this owner " + std::to_string(flags.size()) +
                                       ": their layouts differ"};
      return failure_;
    }
    for (std::size_t i = 0; i < flags.size(); ++i) flags[i] = std::max(flags[i], theirs[i]);
  }
  ++reduced_;
  return {};
}

Status ChannelCollective::send_part(std::uint32_t to, const PartHeader& header,
                                    std::span<const std::uint8_t> bytes) {
  if (to >= size() || bytes.size() > kCollectivePartBytesMax) {
    return {Code::kInternal, "a part of " + std::to_string(bytes.size()) + " bytes for rank " +
                                 std::to_string(to) + " of " + std::to_string(size())};
  }
  if (to == rank()) return sink_->receive(header, bytes);
  Outgoing part;
  std::uint64_t meeting = 0;
  Patience patience{now_ms(), now_ms(), kPartPatience * options_.repeat_ms};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    DCR_TRY(check_under_way());
    part = {to, ++parts_, std::nullopt};
    outgoing_ = part;
    meeting = ordinal(*meeting_);
  }
  send_fragments(part, meeting, header, bytes);
  while (true) {
    hand_to_sink();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      DCR_TRY(check_under_way());
      if (outgoing_->answer) return *std::exchange(outgoing_, std::nullopt)->answer;
    }
    DCR_ASSIGN(const bool again, wait(&patience, to));
    if (!again) continue;
    patience.repeat_ms *= 2;
    send_fragments(part, meeting, header, bytes);
  }
}

void ChannelCollective::send_fragments(const Outgoing& part, std::uint64_t meeting,
                                       const PartHeader& header,
                                       std::span<const std::uint8_t> bytes) {
  std::size_t offset = 0;
  do {
    const std::span<const std::uint8_t> some = bytes.subspan(
        offset, std::min<std::size_t>(kCollectiveFragmentBytesMax, bytes.size() - offset));
    const std::lock_guard<std::mutex> lock(mutex_);
    send(part.to, meeting,
         CollectivePart{part.number, header, bytes.size(), offset, {some.begin(), some.end()}});
    offset += some.size();
  } while (offset < bytes.size());
}

Result<bool> ChannelCollective::wait(Patience* patience, std::uint32_t for_whom) {
  changed_.pop(std::min(kLookAtCancelMs, options_.repeat_ms));
  const std::uint64_t now = now_ms();
  if (cancel_->cancelled()) return fail({Code::kCancelled, "the owner was asked to stop"});
  if (now - patience->since_ms >= wait_ms_) {
    const std::lock_guard<std::mutex> lock(mutex_);
    failure_ = {Code::kUnavailable, name_of(for_whom) + " did not come to " + meeting_text() +
                                        " within " + std::to_string(wait_ms_) + " ms"};
    return failure_;
  }
  const bool again = now - patience->sent_ms >= patience->repeat_ms;
  if (again) patience->sent_ms = now;
  return again;
}

Status ChannelCollective::fail(Status status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.ok()) failure_ = std::move(status);
  return failure_;
}

// Parts that came are compared or kept on this thread, so never while a phase begins or ends.
void ChannelCollective::hand_to_sink() {
  for (std::uint32_t from = 0; from < size(); ++from) {
    std::optional<Coming> part;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      Peer& peer = peers_[from];
      part = std::exchange(peer.ready, std::nullopt);
      if (!part) continue;
      peer.taken_life = peer.life;
      peer.handed = part->number;
    }
    const Status status = sink_->receive(part->header, part->bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    Peer& peer = peers_[from];
    peer.taken = {part->number, status};
    send(from, ordinal(*meeting_), peer.taken);
  }
}

// ---- messages

void ChannelCollective::send(std::uint32_t to, std::uint64_t meeting, What what) {
  answer(to, peers_[to].life, meeting, std::move(what));
}

void ChannelCollective::answer(std::uint32_t to, std::uint64_t life, std::uint64_t meeting,
                               What what) {
  const CollectivePeer& peer = options_.peers[to];
  const Envelope envelope{options_.run, {name_of(rank()), life_}, {peer.name, life}};
  // Lost, as messages may be; the channel says why.
  static_cast<void>(
      channel_->send(peer.address, envelope, encode_collective({meeting, std::move(what)})));
}

void ChannelCollective::send_flags(const Kept& kept, bool to_all) {
  for (std::uint32_t to = 0; to < size(); ++to) {
    if (to == rank() || (!to_all && peers_[to].flags.contains(kept.sequence))) continue;
    send(to, ordinal(*meeting_), CollectiveFlags{kept.sequence, kept.flags});
  }
}

bool ChannelCollective::send_kept(std::uint32_t to, std::uint32_t sequence) {
  const auto kept = std::find_if(kept_.begin(), kept_.end(), [sequence](const Kept& each) {
    return each.sequence == sequence;
  });
  if (kept == kept_.end()) return false;
  send(to, ordinal(*meeting_), CollectiveFlags{sequence, kept->flags});
  return true;
}

void ChannelCollective::receive() {
  while (!stopping_) {
    const std::optional<ReceivedMessage> received = channel_->receive(kReceiveMs);
    if (!received || received->envelope.run != options_.run) continue;
    const Envelope& envelope = received->envelope;
    const auto from = ranks_.find(envelope.sender.name);
    if (from == ranks_.end() || from->second == rank()) continue;
    Result<CollectiveMessage> message = decode_collective(received->body, from->second);
    // Only a peer with a changed or another version's program sends such.
    if (!message.ok()) continue;
    take({from->second, envelope.sender.incarnation, envelope.addressee.incarnation,
          std::move(message).value()});
  }
}

void ChannelCollective::take(Heard heard) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::uint64_t meeting = heard.message.meeting;
  const bool asks = std::holds_alternative<CollectiveFlags>(heard.message.what) ||
                    std::holds_alternative<CollectivePart>(heard.message.what);
  if (heard.own_life != 0 && heard.own_life != life_) {
    if (!asks) return;
    answer(heard.from, heard.life, meeting, CollectiveLeft{false, "it has restarted"});
  } else if (active_ && meeting == ordinal(*meeting_)) {
    take_current(std::move(heard));
  } else if (!meeting_ || meeting > ordinal(*meeting_)) {
    Peer& peer = peers_[heard.from];
    if (!std::holds_alternative<CollectiveFlags>(heard.message.what)) return;
    if (peer.early && peer.early->meeting > meeting) return;
    peer.early_life = heard.life;
    peer.early = std::move(heard.message);
  } else if (asks) {
    answer_late(heard);
  }
}

void ChannelCollective::take_current(Heard heard) {
  if (auto* const flags = std::get_if<CollectiveFlags>(&heard.message.what)) {
    if (is_met(heard.from, heard.life)) take_flags(heard.from, std::move(*flags));
  } else if (auto* const part = std::get_if<CollectivePart>(&heard.message.what)) {
    if (is_met(heard.from, heard.life)) take_part(heard.from, heard.life, std::move(*part));
  } else if (const auto* const taken = std::get_if<CollectiveTaken>(&heard.message.what)) {
    if (!outgoing_ || outgoing_->to != heard.from || outgoing_->number != taken->number) return;
    outgoing_->answer = taken->status;
  } else {
    take_left(heard.from, std::get<CollectiveLeft>(heard.message.what));
  }
  changed_.try_push(true, 1);
}

bool ChannelCollective::is_met(std::uint32_t from, std::uint64_t life) {
  Peer& peer = peers_[from];
  if (peer.life == life) return true;
  if (peer.life != 0 && reduced_ > 0) {
    answer(from, life, ordinal(*meeting_), CollectiveLeft{false, "it has met an earlier life"});
    take_left(from, {false, "it has restarted"});
    return false;
  }
  peer.life = life;
  peer.flags.clear();
  peer.coming = {};
  peer.ready.reset();
  return true;
}

void ChannelCollective::take_flags(std::uint32_t from, CollectiveFlags flags) {
  if (flags.sequence < reduced_) {  // it lost what it was sent
    send_kept(from, flags.sequence);
  } else if (flags.sequence <= reduced_ + 1) {
    peers_[from].flags[flags.sequence] = std::move(flags.flags);
  }
}

void ChannelCollective::take_part(std::uint32_t from, std::uint64_t life, CollectivePart part) {
  Peer& peer = peers_[from];
  if (peer.taken_life == life && part.number <= peer.handed) {
    const bool lost = peer.taken.number == part.number;  // the answer, that is
    if (lost) send(from, ordinal(*meeting_), peer.taken);
    return;
  }
  // Before this rank's first flags its sink takes nothing; and one part at a time is enough.
  if (contributed_ == 0 || peer.ready) return;
  Coming& coming = peer.coming;
  if (part.offset == 0) coming = {part.number, part.header, part.total, {}};
  if (coming.number != part.number || coming.bytes.size() != part.offset) return;
  if (coming.total != part.total) return;
  coming.bytes.insert(coming.bytes.end(), part.bytes.begin(), part.bytes.end());
  if (coming.bytes.size() == coming.total) peer.ready = std::exchange(coming, {});
}

// First baselines are begun again by whoever failed: as long as nothing was reduced, only a rank
// that has finished them is worth giving up for.
void ChannelCollective::take_left(std::uint32_t from, const CollectiveLeft& left) {
  if (meeting_->attempt == 0 && reduced_ == 0 && !left.finished) return;
  if (!failure_.ok()) return;
  failure_ = {left.finished ? Code::kConflict : Code::kUnavailable,
              name_of(from) + " has left " + meeting_text() + ": " + left.reason};
}

// To a meeting that is over here.
void ChannelCollective::answer_late(const Heard& heard) {
  const std::uint64_t meeting = heard.message.meeting;
  const bool last = meeting == ordinal(*meeting_);
  const auto* const flags = std::get_if<CollectiveFlags>(&heard.message.what);
  const bool same_life = peers_[heard.from].life == heard.life;
  if (last && flags != nullptr && same_life && send_kept(heard.from, flags->sequence)) return;
  answer(heard.from, heard.life, meeting,
         last ? left_ : CollectiveLeft{true, "it is at a later meeting, " + meeting_text()});
}

}  // namespace dcr
