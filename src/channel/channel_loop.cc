#include "channel/channel_loop.h"

#include <zmq.h>

#include <optional>

#include "base/assert.h"
#include "channel/allow_handler.h"

namespace dcr {
namespace {

constexpr std::uint64_t kTickMs = 1'000;
constexpr std::uint64_t kProofMs = 10'000, kProofTickMs = 100;
constexpr std::uint64_t kNanosecondsPerMs = 1'000'000;
// In one turn, so that no direction and no peer starves another.
constexpr int kReceivedPerTurn = 256;
constexpr int kSentPerPeerAndTurn = 16;
constexpr std::uint64_t kOwnSockets = 16;  // handler, listener, monitor and its other end, proof

std::uint64_t now_ns(const ChannelShared& shared) { return shared.options.clock->nanoseconds(); }

// The address by which this machine reaches its own listener.
std::string own_address(std::string address) {
  const auto replace = [&address](std::string_view host, std::string_view loopback) {
    const std::size_t at = address.find(host);
    if (at != std::string::npos) address.replace(at, host.size(), loopback);
  };
  replace("//0.0.0.0:", "//127.0.0.1:");
  replace("//[::]:", "//[::1]:");
  return address;
}

}  // namespace

Result<std::unique_ptr<ChannelLoop>> ChannelLoop::open(ChannelShared& shared) {
  const ChannelOptions& options = shared.options;
  DCR_ASSIGN(ZmqContext context, ZmqContext::open(options.peers->size() + kOwnSockets));
  // The handler first: nobody may come in while there is none.
  DCR_ASSIGN(ZmqSocket handler, ZmqSocket::handler(context));
  DCR_ASSIGN(ZmqSocket listener, ZmqSocket::listen(context, options.listen, options.keys.secret));
  DCR_ASSIGN(ZmqSocket monitor, ZmqSocket::monitor(context, listener));
  DCR_ASSIGN(std::string address, listener.address());
  auto loop = std::make_unique<ChannelLoop>(
      shared,
      Sockets{std::move(context), std::move(handler), std::move(listener), std::move(monitor)},
      std::move(address));
  DCR_TRY(loop->prove_denial());
  return loop;
}

ChannelLoop::ChannelLoop(ChannelShared& shared, Sockets sockets, std::string address)
    : shared_(shared), sockets_(std::move(sockets)), address_(std::move(address)) {}

ChannelLoop::~ChannelLoop() { sockets_.listener.stop_monitor(); }

// A library that lets unknown keys in must be found before anything is said.
Status ChannelLoop::prove_denial() {
  const KeyPair probe = make_key_pair();
  own_probe_ = probe.public_key;
  DCR_ASSIGN(const ZmqSocket stranger, ZmqSocket::connect(sockets_.context, own_address(address_),
                                                          probe, shared_.options.keys.public_key));
  const std::uint64_t begin = now_ns(shared_);
  while (!denied_) {
    wait(kProofTickMs);
    read_monitor();
    answer_questions();
    const std::uint8_t byte = 0;
    if (stranger.send_message({&byte, 1}).code() != Code::kUnavailable) {
      return {Code::kUnsupported, "the ZeroMQ library let a key in that is not on the allow-list"};
    }
    if (now_ns(shared_) - begin < kProofMs * kNanosecondsPerMs) continue;
    return {Code::kIo, "it cannot be shown that unknown keys are refused: no connection to " +
                           address_ + " came about"};
  }
  return {};
}

void ChannelLoop::run() {
  while (!stopping()) {
    wait(kTickMs);
    shared_.wake.clear();
    read_monitor();
    answer_questions();
    receive_messages();
    send_messages();
    close_unused();
  }
}

bool ChannelLoop::stopping() {
  const std::lock_guard<std::mutex> lock(shared_.mutex);
  return shared_.stopping;
}

void ChannelLoop::wait(std::uint64_t timeout_ms) {
  std::vector<zmq_pollitem_t> items = {{nullptr, shared_.wake.descriptor(), ZMQ_POLLIN, 0},
                                       {sockets_.handler.get(), 0, ZMQ_POLLIN, 0},
                                       {sockets_.monitor.get(), 0, ZMQ_POLLIN, 0},
                                       {sockets_.listener.get(), 0, ZMQ_POLLIN, 0}};
  {
    const std::lock_guard<std::mutex> lock(shared_.mutex);
    shared_.outgoing.for_each_peer([&](const std::string& peer) {
      const auto found = connections_.find(peer);
      if (found == connections_.end()) return;
      items.push_back({found->second.socket.get(), 0, ZMQ_POLLOUT, 0});
    });
  }
  // An interruption is a turn with nothing to do.
  static_cast<void>(
      zmq_poll(items.data(), static_cast<int>(items.size()), static_cast<long>(timeout_ms)));
}

void ChannelLoop::answer_questions() {
  while (true) {
    auto question = sockets_.handler.receive_frames();
    if (!question.ok()) return shared_.reporter.once("handler", question.status());
    if (!*question) return;
    // What libzmq told of this connection before it asked.
    read_monitor();
    ++questions_;
    const KeyAnswer answer = answer_key_question(**question, *shared_.options.peers);
    const Status answered = sockets_.handler.send_frames(answer.frames);
    if (!answered.ok()) return shared_.reporter.once("handler", answered);
    if (answer.allowed || answer.key == key_text(own_probe_)) continue;
    refuse_connection("key " + answer.key,
                      {Code::kMismatch, "refused the key " + answer.key + " from " +
                                            answer.address + ": it is not on the allow-list"});
  }
}

void ChannelLoop::read_monitor() {
  while (true) {
    const auto frames = sockets_.monitor.receive_frames();
    if (!frames.ok()) return shared_.reporter.once("monitor", frames.status());
    if (!*frames) return;
    ByteReader in((**frames).front());
    const std::uint16_t event = in.u16();
    const std::uint32_t value = in.u32();
    if (in.ok()) note_event(event, value);
  }
}

void ChannelLoop::refuse_connection(const std::string& kind, const Status& problem) {
  {
    const std::lock_guard<std::mutex> lock(shared_.mutex);
    ++shared_.counts.refused_connections;
  }
  shared_.reporter.once("connection " + kind, problem);
}

void ChannelLoop::refuse_unfinished() {
  refuse_connection("unfinished",
                    {Code::kMismatch, "a connection ended before its handshake at " + address_});
}

void ChannelLoop::note_event(std::uint16_t event, std::uint32_t value) {
  switch (event) {
    case ZMQ_EVENT_ACCEPTED:  // value: its descriptor
      accepted_[value] = questions_;
      break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:  // told of when its key was refused
      denied_ = true;
      break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
      refuse_connection(
          std::to_string(value),
          value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
              ? Status(Code::kMismatch, "refused a connection without a CURVE key at " + address_)
              : Status(Code::kCorrupt, "refused a connection whose handshake broke the protocol (" +
                                           std::to_string(value) + ") at " + address_));
      break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
      refuse_unfinished();
      break;
    case ZMQ_EVENT_DISCONNECTED: {
      // libzmq says nothing of those that speak no ZeroMQ. No question was answered since this one
      // came, so it did not get as far as to show a key.
      const auto found = accepted_.find(value);
      const bool silent = found != accepted_.end() && found->second == questions_ && !failure_told_;
      if (found != accepted_.end()) accepted_.erase(found);
      if (silent) refuse_unfinished();
      break;
    }
    default:
      break;
  }
  // The end of a connection directly follows its failure.
  failure_told_ =
      event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL || event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL;
}

void ChannelLoop::receive_messages() {
  for (int i = 0; i < kReceivedPerTurn; ++i) {
    auto incoming = sockets_.listener.receive_message(kControlMessageBytesMax);
    if (!incoming.ok()) return shared_.reporter.once("listener", incoming.status());
    if (!*incoming) return;
    take(**incoming);
  }
}

Status ChannelLoop::check(const IncomingMessage& incoming, ReceivedMessage* received) {
  if (incoming.too_large) {
    return {Code::kTooLarge, "a control message is above the limit of " +
                                 std::to_string(kControlMessageBytesMax) + " bytes"};
  }
  DCR_ASSIGN(Enveloped message, decode_envelope(incoming.bytes));
  const std::string& sender = message.envelope.sender.name;
  if (sender != incoming.user) {
    return {Code::kMismatch, "a control message says that it is from " + sender};
  }
  const std::string& addressee = message.envelope.addressee.name;
  if (addressee != shared_.options.name) {
    return {Code::kMismatch,
            "a control message is for " + addressee + ", not for " + shared_.options.name};
  }
  received->envelope = std::move(message.envelope);
  received->body.assign(message.body.begin(), message.body.end());
  return {};
}

void ChannelLoop::take(const IncomingMessage& incoming) {
  ReceivedMessage received;
  const Status checked = check(incoming, &received);
  if (!checked.ok()) {
    {
      const std::lock_guard<std::mutex> lock(shared_.mutex);
      ++shared_.counts.refused_messages;
    }
    // By the code, as a message's words can be made to differ without end.
    return shared_.reporter.once(
        "message " + incoming.user + " " + std::string(code_name(checked.code())),
        checked.with_context("dropped what " + incoming.user + " sent"));
  }
  const std::uint64_t bytes = received.body.size();
  std::uint64_t dropped = 0;
  {
    const std::lock_guard<std::mutex> lock(shared_.mutex);
    dropped = shared_.incoming.push(incoming.user, std::move(received), bytes);
    ++shared_.counts.received;
    shared_.counts.dropped_incoming += dropped;
    shared_.ready.set();
  }
  if (dropped == 0) return;
  shared_.reporter.once(
      "incoming", {Code::kTooLarge,
                   "messages are dropped: they come faster than they are taken, the last from " +
                       incoming.user});
}

void ChannelLoop::send_messages() {
  std::vector<std::pair<std::string, ChannelTarget>> waiting;
  {
    const std::lock_guard<std::mutex> lock(shared_.mutex);
    shared_.outgoing.for_each_peer([&](const std::string& peer) {
      ChannelTarget& target = shared_.targets.at(peer);
      waiting.emplace_back(peer, target);
      target.used = false;
    });
  }
  for (const auto& [peer, target] : waiting) send_to(peer, target);
}

ChannelLoop::Connection* ChannelLoop::connection_to(const std::string& peer,
                                                    const std::string& address) {
  const auto found = connections_.find(peer);
  if (found != connections_.end() && found->second.address == address) return &found->second;
  if (found != connections_.end()) connections_.erase(found);
  const std::optional<PublicKey> key = shared_.options.peers->key_of(peer);
  if (!key) return nullptr;  // it has left since send() looked
  Result<ZmqSocket> socket =
      ZmqSocket::connect(sockets_.context, address, shared_.options.keys, *key);
  if (!socket.ok()) {
    shared_.reporter.once("connect " + peer, socket.status());
    return nullptr;
  }
  const auto made = connections_.emplace(
      peer, Connection{std::move(socket).value(), address, now_ns(shared_), 0});
  return &made.first->second;
}

void ChannelLoop::send_to(const std::string& peer, const ChannelTarget& target) {
  Connection* connection = connection_to(peer, target.address);
  if (connection == nullptr) return;
  if (target.used) connection->used_ns = now_ns(shared_);
  for (int i = 0; i < kSentPerPeerAndTurn; ++i) {
    std::optional<Bytes> message;
    {
      const std::lock_guard<std::mutex> lock(shared_.mutex);
      message = shared_.outgoing.pop_of(peer);
    }
    if (!message) return;
    const Status sent = connection->socket.send_message(*message);
    const std::lock_guard<std::mutex> lock(shared_.mutex);
    if (sent.ok()) {
      ++shared_.counts.sent;
      connection->stalled_ns = 0;
      continue;
    }
    const std::uint64_t bytes = message->size();
    shared_.counts.dropped_outgoing += shared_.outgoing.restore(peer, std::move(*message), bytes);
    if (sent.code() == Code::kUnavailable) {
      if (connection->stalled_ns == 0) connection->stalled_ns = now_ns(shared_);
      return;
    }
    if (sent.code() == Code::kIo) shared_.reporter.once("send " + peer, sent);
    connections_.erase(peer);
    return;
  }
}

void ChannelLoop::close_unused() {
  const std::uint64_t now = now_ns(shared_);
  for (auto at = connections_.begin(); at != connections_.end();) {
    const auto& [peer, connection] = *at;
    const bool unused = now - connection.used_ns > shared_.options.idle_ms * kNanosecondsPerMs;
    const bool stalled =
        connection.stalled_ns != 0 &&
        now - connection.stalled_ns > shared_.options.stalled_ms * kNanosecondsPerMs;
    if (stalled) {
      shared_.reporter.once(
          "away " + peer,
          {Code::kUnavailable, "there is no way to " + peer + " at " + connection.address +
                                   ": it is away or takes nothing, or its key or ours is not the "
                                   "one on the other's allow-list"});
    }
    if (unused) {
      const std::lock_guard<std::mutex> lock(shared_.mutex);
      // Unless a message came in just now: it would be lost with the old ones.
      const auto target = shared_.targets.find(peer);
      if (target != shared_.targets.end() && !target->second.used) {
        shared_.counts.dropped_outgoing += shared_.outgoing.clear(peer);
        shared_.targets.erase(target);
      }
    }
    at = unused || stalled ? connections_.erase(at) : std::next(at);
  }
}

}  // namespace dcr
