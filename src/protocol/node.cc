#include "protocol/node.h"

#include <algorithm>
#include <utility>

#include "base/mutant.h"
#include "base/probe.h"
#include "protocol/node_machine.h"

namespace dcr {
namespace {

MemberOptions member_options(const NodeEndpointOptions& options) {
  return {options.name, Role::kNode, "", options.waits};
}

}  // namespace

NodeEndpoint::NodeEndpoint(NodeEndpointOptions options)
    : machine_(std::make_unique<Machine>(std::move(options))) {}
NodeEndpoint::~NodeEndpoint() = default;
NodeEndpoint::NodeEndpoint(NodeEndpoint&&) noexcept = default;
NodeEndpoint& NodeEndpoint::operator=(NodeEndpoint&&) noexcept = default;

void NodeEndpoint::step(const NodeEvent& event, Milliseconds now,
                        std::vector<NodeEffect>* effects) {
  machine_->step(event, now, effects);
}
Milliseconds NodeEndpoint::wake_at() const { return machine_->wake_at(); }
std::uint64_t NodeEndpoint::incarnation() const { return machine_->incarnation(); }
StatusReply NodeEndpoint::status() const { return machine_->status(); }

NodeEndpoint::Machine::Machine(NodeEndpointOptions options)
    : options_(std::move(options)), session_(member_options(options_)) {}

void NodeEndpoint::Machine::step(const NodeEvent& event, Milliseconds now,
                                 std::vector<NodeEffect>* effects) {
  if (ended_) return;
  now_ = now;
  effects_ = effects;
  std::visit([this](const auto& it) { on(it); }, event);
  advance();
  effects_ = nullptr;
}

void NodeEndpoint::Machine::on(const Started& /*event*/) { session_.start(now_); }

void NodeEndpoint::Machine::on(const TimePassed& /*event*/) {}

void NodeEndpoint::Machine::on(const MessageArrived& event) {
  if (!session_.enrolled()) return;
  if (std::holds_alternative<StatusRequest>(event.message)) return send(event.from, status());
  std::visit([&](const auto& message) { on_message(event.from, message); }, event.message);
}

void NodeEndpoint::Machine::on(const ControlAnswered& event) {
  session_.answered(event, now_);
  if (!session_.enrolled() || join_asked_) return;
  join_asked_ = true;
  fence_ = session_.records()->transition.attempt;
  session_.join(std::nullopt, {});
}

void NodeEndpoint::Machine::advance() {
  const bool failed = !session_.failure().ok();
  if (failed || session_.barred()) {
    while (!streams_.empty()) drop(streams_.begin()->first);
    ended_ = true;
    emit(Ended{failed ? session_.failure()
                      : Status(Code::kConflict,
                               options_.name + " (incarnation " + std::to_string(incarnation()) +
                                   ") is barred: another one has taken its place, or it was "
                                   "silent for too long; it starts anew")});
    return;
  }
  if (join_asked_ && current_ && attempt_stream() != nullptr &&
      session_.records()->commit.id.baseline == current_->attempt) {
    drop({false, current_->attempt});  // every receiver has all of it
  }
  forget_silent();
  for (auto& [id, stream] : streams_) {
    if (stream.failure) continue;
    let_go(&stream);
    fetch_ends(&stream);
    fetch_payloads(&stream);
    decode(&stream);
    hand_over(&stream);
  }
  report();
  if (std::optional<CallControl> call = session_.next_call(now_)) emit(*std::move(call));
}

void NodeEndpoint::Machine::on_message(const Endpoint& from, const Prepare& message) {
  const bool repeated = current_ && current_->attempt == message.attempt;
  if (!repeated) {
    if (message.attempt <= fence_ && !DCR_MUTANT("node_without_fence")) return;
    const bool bound =
        std::find(message.nodes.begin(), message.nodes.end(), self()) != message.nodes.end();
    if (!bound) return;
    if (current_) drop({false, current_->attempt});
    fence_ = message.attempt;
    begin_current(message);
  }
  current_->coordinator = from;
  if (current_->failed) return send(from, *current_->failed);
  send(from, Prepared{message.attempt});
}

void NodeEndpoint::Machine::begin_current(const Prepare& message) {
  current_ = Current();
  current_->attempt = message.attempt;
  current_->asynchronous = message.asynchronous;
  for (const OwnerBinding& owner : message.owners) current_->owners.push_back(owner.endpoint);
  if (message.owners.size() != options_.owners) {
    current_->failed = AttemptFailed{
        message.attempt,
        true,
        {Code::kMismatch, "",
         options_.name + ": the attempt binds " + std::to_string(message.owners.size()) +
             " owners, and this node was set up for " + std::to_string(options_.owners)}};
    return;
  }
  const StreamId id{false, message.attempt};
  NodeStream& stream =
      streams_.try_emplace(id, id, options_.owners, !message.asynchronous, now_).first->second;
  for (const Prepare::Receiver& receiver : message.receivers) {
    if (receiver.node != options_.name) continue;
    NodeStream::Feed& feed = stream.feeds.emplace_back();
    feed.receiver = receiver.endpoint;
  }
  for (const auto& [name, hint] : std::exchange(early_, {})) take_hint(hint.first, hint.second);
  for (const auto& [name, credit] : std::exchange(early_credit_, {})) {
    on_message(credit.first, credit.second);
  }
}

void NodeEndpoint::Machine::on_message(const Endpoint& /*from*/, const OpenApply& message) {
  if (!current_ || current_->attempt != message.attempt) return;
  current_->opened = true;
  if (NodeStream* const stream = attempt_stream()) stream->applying = true;
}

// Nothing of the attempt is handed over after this: what receivers have already, they drop by their
// own fence.
void NodeEndpoint::Machine::on_message(const Endpoint& from, const StopAndWait& message) {
  fence_ = std::max(fence_, message.attempt);
  if (current_ && current_->attempt <= message.attempt) {
    if (!DCR_MUTANT("node_goes_on_after_stop")) drop({false, current_->attempt});
    current_.reset();
  }
  send(from, Stopped{message.attempt});
}

void NodeEndpoint::Machine::on_message(const Endpoint& /*from*/, const Look& /*message*/) {
  session_.look();
}

void NodeEndpoint::Machine::on_message(const Endpoint& from, const PayloadsSent& message) {
  if (message.stream.restore) return;
  if (current_ && current_->attempt == message.stream.number) return take_hint(from, message);
  if (message.stream.number <= fence_) return;
  // Few: owners of one attempt.
  if (early_.size() < options_.owners || early_.contains(from.name)) {
    early_[from.name] = {from, message};
  }
}

void NodeEndpoint::Machine::take_hint(const Endpoint& from, const PayloadsSent& hint) {
  NodeStream* const stream = attempt_stream();
  if (stream == nullptr || hint.stream != stream->id) return;
  const auto found = std::find(current_->owners.begin(), current_->owners.end(), from);
  if (found == current_->owners.end()) return;
  NodeStream::Sender& sender =
      stream->senders[static_cast<std::size_t>(found - current_->owners.begin())];
  if (sender.end) return;
  if (hint.payloads > sender.sent) {
    sender.sent = std::min(hint.payloads, kPayloadsPerOwnerMax);
    sender.retry_at = now_;
    sender.probe_at = now_ + options_.waits.repeat_ms;
  }
  if (hint.ended) sender.end_hinted = true;
}

// What the coordinator hears until it answers.
void NodeEndpoint::Machine::report() {
  report_staging();
  const bool staging = current_ && (current_->staged || current_->full) && !current_->opened;
  if (!current_ || !(current_->failed || staging)) {
    repeat_at_ = kNever;
    return;
  }
  if (repeat_at_ == kNever) repeat_at_ = now_;
  if (now_ < repeat_at_) return;
  repeat_at_ = now_ + options_.waits.repeat_ms;
  if (current_->failed) {
    send(current_->coordinator, *current_->failed);
  } else if (current_->staged) {
    send(current_->coordinator, Staged{current_->attempt});
  } else {
    send(current_->coordinator, StagingFull{current_->attempt});
  }
}

void NodeEndpoint::Machine::report_staging() {
  NodeStream* const stream = attempt_stream();
  const bool waits = stream != nullptr && !stream->failure && current_->asynchronous &&
                     !current_->opened && !current_->staged;
  if (!waits) return;
  // Without receivers here there is nothing to stage.
  if (stream->feeds.empty() || stream->complete()) {
    current_->staged = true;
    repeat_at_ = kNever;
  } else if (!current_->full && out_of_room(*stream)) {
    DCR_PROBE("staging is full");
    current_->full = true;
  }
}

void NodeEndpoint::Machine::send(const Endpoint& to, Message message) {
  emit(SendMessage{to.name, to.incarnation, std::move(message)});
}

NodeStream* NodeEndpoint::Machine::attempt_stream() {
  return current_ ? find({false, current_->attempt}) : nullptr;
}

NodeStream* NodeEndpoint::Machine::find(const StreamId& id) {
  const auto found = streams_.find(id);
  return found == streams_.end() ? nullptr : &found->second;
}

void NodeEndpoint::Machine::drop(StreamId id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  if (found->second.outstanding > 0) dropped_[id] += found->second.outstanding;
  streams_.erase(found);
  emit(DropPayloads{id, kOrderAll});
}

void NodeEndpoint::Machine::fail(NodeStream* stream, const Status& status) {
  if (stream->failure) return;
  const StreamId id = stream->id;
  stream->failure = failure_of(status.with_context(options_.name));
  for (const NodeStream::Feed& feed : stream->feeds) {
    if (feed.begun) send(feed.receiver, StreamFailed{id, *stream->failure});
  }
  if (id.restore) return drop(id);  // its receivers begin another one
  stream->payloads.clear();
  emit(DropPayloads{id, kOrderAll});
  current_->failed = AttemptFailed{id.number, false, *stream->failure};
  repeat_at_ = kNever;
}

Milliseconds NodeEndpoint::Machine::wake_at() const {
  if (ended_) return kNever;
  Milliseconds at = std::min(session_.wake_at(), repeat_at_);
  const auto later = [&](Milliseconds time) {
    if (time > now_) at = std::min(at, time);  // what is due already waits for room
  };
  for (const auto& [id, stream] : streams_) {
    if (stream.failure) continue;
    for (const NodeStream::Feed& feed : stream.feeds) {
      if (id.restore) later(feed.heard_at + silent_ms());
    }
    if (stream.feeds.empty()) continue;
    for (const NodeStream::Sender& sender : stream.senders) {
      if (!sender.end && !sender.fetching_end) later(sender.end_at);
      if (!sender.end) later(sender.probe_at);
      if (!sender.end || sender.missing < sender.end->size()) later(sender.retry_at);
    }
  }
  return at;
}

StatusReply NodeEndpoint::Machine::status() const {
  StatusReply reply;
  reply.state = ended_ ? "ended" : !join_asked_ ? "enrolling" : "idle";
  if (!current_ || ended_) return reply;
  reply.attempt = current_->attempt;
  const auto found = streams_.find({false, current_->attempt});
  if (found == streams_.end()) return reply;
  const NodeStream& stream = found->second;
  reply.state = "fetching";
  if (current_->failed) {
    reply.state = "failed";
    reply.detail = current_->failed->failure.message;
    return reply;
  }
  if (current_->full) reply.state = "staging_full";
  if (current_->staged) reply.state = "staged";
  const std::uint64_t turn = stream.first_from(stream.low);
  if (turn == kOrderAll) {
    if (current_->opened || !current_->asynchronous) reply.state = "done";
    return reply;
  }
  reply.detail = "next is payload " + std::to_string(stream.number_of(turn)) + " of owner " +
                 std::to_string(stream.owner_of(turn)) + "; " +
                 std::to_string(stream.payloads.size()) + " payloads are here or on their way";
  return reply;
}

}  // namespace dcr
