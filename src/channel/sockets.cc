#include "channel/sockets.h"

#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <utility>

#include "base/assert.h"
#include "channel/allow_handler.h"
#include "channel/uninterrupted.h"

namespace dcr {
namespace {

// libzmq's header hides it from stable builds, which have it all the same.
constexpr int kZapEnforceDomain = 93;

constexpr const char* kHandlerAddress = "inproc://zeromq.zap.01";  // fixed by the protocol
constexpr const char* kMonitorAddress = "inproc://monitor";

constexpr int kHandshakeMs = 5'000;  // for strangers; a connection without an outcome ends
constexpr int kConnectMs = 5'000;
// Whoever asks waits a moment for answers, and they need the way back.
constexpr int kReconnectMs = 100, kReconnectMsMax = 1'000;
constexpr int kHeartbeatMs = 5'000, kHeartbeatTimeoutMs = 15'000;
// Messages in libzmq's own queues, a connection and direction. What waits, waits in PeerQueues.
constexpr int kHighWaterMark = 2;
constexpr int kBacklog = 1024;  // nodes of a cluster start together
constexpr std::size_t kFramesMax = 16;

Status zmq_failure(const std::string& what) {
  return {Code::kIo, "cannot " + what + ": " + zmq_strerror(zmq_errno())};
}

ByteSpan text_bytes(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

class ZmqMessage {
 public:
  ZmqMessage() { zmq_msg_init(&message_); }
  ~ZmqMessage() { zmq_msg_close(&message_); }
  ZmqMessage(const ZmqMessage&) = delete;
  ZmqMessage& operator=(const ZmqMessage&) = delete;

  zmq_msg_t* get() { return &message_; }
  ByteSpan bytes() {
    return {static_cast<const std::uint8_t*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }
  bool more() { return zmq_msg_more(&message_) != 0; }

 private:
  zmq_msg_t message_;
};

}  // namespace

void ZmqContext::Terminate::operator()(void* context) const {
  uninterrupted([&] { return zmq_ctx_term(context); });
}

void ZmqSocket::Close::operator()(void* socket) const { zmq_close(socket); }

Result<ZmqContext> ZmqContext::open(std::uint64_t sockets_max) {
  if (zmq_has("curve") != 1) {
    return Status(Code::kUnsupported, "the ZeroMQ library was built without CURVE");
  }
  ZmqContext context(zmq_ctx_new());
  if (context.get() == nullptr) return zmq_failure("make a ZeroMQ context");
  const auto count = static_cast<int>(
      std::min<std::uint64_t>(sockets_max, std::numeric_limits<std::uint16_t>::max()));
  if (zmq_ctx_set(context.get(), ZMQ_MAX_SOCKETS, count) != 0) {
    return zmq_failure("set the number of sockets");
  }
  return context;
}

Result<ZmqSocket> ZmqSocket::open(const ZmqContext& context, int type) {
  ZmqSocket socket(zmq_socket(context.get(), type));
  if (socket.get() == nullptr) return zmq_failure("make a ZeroMQ socket");
  DCR_TRY(socket.set(ZMQ_LINGER, 0));
  return socket;
}

Status ZmqSocket::set(int option, int value) const {
  if (zmq_setsockopt(get(), option, &value, sizeof(value)) == 0) return {};
  return zmq_failure("set option " + std::to_string(option) + " of a ZeroMQ socket");
}

Status ZmqSocket::set(int option, ByteSpan value) const {
  if (zmq_setsockopt(get(), option, value.data(), value.size()) == 0) return {};
  return zmq_failure("set option " + std::to_string(option) + " of a ZeroMQ socket");
}

// What every socket of the network has.
Status ZmqSocket::limit() const {
  DCR_TRY(set(ZMQ_SNDHWM, kHighWaterMark));
  DCR_TRY(set(ZMQ_RCVHWM, kHighWaterMark));
  DCR_TRY(set(ZMQ_HANDSHAKE_IVL, kHandshakeMs));
  DCR_TRY(set(ZMQ_HEARTBEAT_IVL, kHeartbeatMs));
  DCR_TRY(set(ZMQ_HEARTBEAT_TIMEOUT, kHeartbeatTimeoutMs));
  const auto frame_bytes_max = std::int64_t{kFrameBytesMax + kFrameOverheadBytesMax};
  std::array<std::uint8_t, sizeof(frame_bytes_max)> encoded;
  store_little(encoded.data(), static_cast<std::uint64_t>(frame_bytes_max));
  return set(ZMQ_MAXMSGSIZE, encoded);
}

Result<ZmqSocket> ZmqSocket::listen(const ZmqContext& context, const std::string& address,
                                    const SecretKey& secret) {
  DCR_ASSIGN(ZmqSocket socket, open(context, ZMQ_PULL));
  DCR_TRY(socket.limit());
  DCR_TRY(socket.set(ZMQ_BACKLOG, kBacklog));
  DCR_TRY(socket.set(ZMQ_CURVE_SERVER, 1));
  DCR_TRY(socket.set(ZMQ_CURVE_SECRETKEY, secret.bytes()));
  DCR_TRY(socket.set(ZMQ_ZAP_DOMAIN, text_bytes(kKeyDomain)));
  // Without it libzmq lets every key in where no handler answers.
  if (!socket.set(kZapEnforceDomain, 1).ok()) {
    return Status(Code::kUnsupported,
                  "the ZeroMQ library cannot be made to insist on the allow-list; it is too old");
  }
  if (address.find('[') != std::string::npos) DCR_TRY(socket.set(ZMQ_IPV6, 1));
  if (zmq_bind(socket.get(), address.c_str()) != 0) return zmq_failure("listen at " + address);
  return socket;
}

Result<ZmqSocket> ZmqSocket::connect(const ZmqContext& context, const std::string& address,
                                     const KeyPair& keys, const PublicKey& peer) {
  DCR_ASSIGN(ZmqSocket socket, open(context, ZMQ_PUSH));
  DCR_TRY(socket.limit());
  // Messages go to connections that have shown their key, and to nothing else.
  DCR_TRY(socket.set(ZMQ_IMMEDIATE, 1));
  DCR_TRY(socket.set(ZMQ_CONNECT_TIMEOUT, kConnectMs));
  DCR_TRY(socket.set(ZMQ_RECONNECT_IVL, kReconnectMs));
  DCR_TRY(socket.set(ZMQ_RECONNECT_IVL_MAX, kReconnectMsMax));
  DCR_TRY(socket.set(ZMQ_CURVE_SERVERKEY, peer));
  DCR_TRY(socket.set(ZMQ_CURVE_PUBLICKEY, keys.public_key));
  DCR_TRY(socket.set(ZMQ_CURVE_SECRETKEY, keys.secret.bytes()));
  if (address.find('[') != std::string::npos) DCR_TRY(socket.set(ZMQ_IPV6, 1));
  if (zmq_connect(socket.get(), address.c_str()) != 0) return zmq_failure("connect to " + address);
  return socket;
}

Result<ZmqSocket> ZmqSocket::handler(const ZmqContext& context) {
  DCR_ASSIGN(ZmqSocket socket, open(context, ZMQ_REP));
  if (zmq_bind(socket.get(), kHandlerAddress) != 0) return zmq_failure("bind the key handler");
  return socket;
}

Result<ZmqSocket> ZmqSocket::monitor(const ZmqContext& context, const ZmqSocket& listener) {
  constexpr int kEvents = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED |
                          ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
  if (zmq_socket_monitor(listener.get(), kMonitorAddress, kEvents) != 0) {
    return zmq_failure("monitor the listening socket");
  }
  DCR_ASSIGN(ZmqSocket socket, open(context, ZMQ_PAIR));
  // libzmq's own thread waits when there is no room for an event, under a lock that closing the
  // listener needs. Events are small and read as fast as connections come.
  DCR_TRY(socket.set(ZMQ_RCVHWM, 0));
  if (zmq_connect(socket.get(), kMonitorAddress) != 0) return zmq_failure("connect the monitor");
  return socket;
}

Result<std::string> ZmqSocket::address() const {
  std::array<char, 256> text{};
  std::size_t size = text.size();
  if (zmq_getsockopt(get(), ZMQ_LAST_ENDPOINT, text.data(), &size) != 0) {
    return zmq_failure("find the address of a socket");
  }
  return std::string(text.data());
}

void ZmqSocket::stop_monitor() const { zmq_socket_monitor(get(), nullptr, 0); }

Status ZmqSocket::send_message(ByteSpan bytes) const {
  std::size_t at = 0;
  do {
    const std::size_t size = std::min<std::size_t>(bytes.size() - at, kFrameBytesMax);
    const int more = at + size < bytes.size() ? ZMQ_SNDMORE : 0;
    const int sent = uninterrupted(
        [&] { return zmq_send(get(), bytes.data() + at, size, ZMQ_DONTWAIT | more); });
    if (sent == -1 && zmq_errno() != EAGAIN) return zmq_failure("send");
    if (sent == -1 && at == 0) return {Code::kUnavailable, "there is no room or no peer"};
    if (sent == -1) return {Code::kConflict, "the connection broke in the middle of a message"};
    at += size;
  } while (at < bytes.size());
  return {};
}

Result<std::optional<IncomingMessage>> ZmqSocket::receive_message(std::uint64_t bytes_max) const {
  IncomingMessage incoming;
  for (bool first = true, more = true; more; first = false) {
    ZmqMessage frame;
    if (uninterrupted([&] { return zmq_msg_recv(frame.get(), get(), ZMQ_DONTWAIT); }) == -1) {
      // A message that has begun to come out comes out whole.
      if (first && zmq_errno() == EAGAIN) return std::optional<IncomingMessage>();
      return zmq_failure("receive");
    }
    if (first) {
      const char* user = zmq_msg_gets(frame.get(), "User-Id");
      if (user != nullptr) incoming.user = user;
    }
    more = frame.more();
    const ByteSpan bytes = frame.bytes();
    incoming.too_large = incoming.too_large || incoming.bytes.size() + bytes.size() > bytes_max;
    if (!incoming.too_large) {
      incoming.bytes.insert(incoming.bytes.end(), bytes.begin(), bytes.end());
    }
  }
  return std::optional<IncomingMessage>(std::move(incoming));
}

Result<std::optional<std::vector<Bytes>>> ZmqSocket::receive_frames() const {
  std::vector<Bytes> frames;
  for (bool more = true; more;) {
    ZmqMessage frame;
    if (uninterrupted([&] { return zmq_msg_recv(frame.get(), get(), ZMQ_DONTWAIT); }) == -1) {
      if (frames.empty() && zmq_errno() == EAGAIN) return std::optional<std::vector<Bytes>>();
      return zmq_failure("receive");
    }
    more = frame.more();
    const ByteSpan bytes = frame.bytes();
    if (frames.size() < kFramesMax) frames.emplace_back(bytes.begin(), bytes.end());
  }
  return std::optional<std::vector<Bytes>>(std::move(frames));
}

Status ZmqSocket::send_frames(const std::vector<Bytes>& frames) const {
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const int more = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
    const int sent = uninterrupted(
        [&] { return zmq_send(get(), frames[i].data(), frames[i].size(), ZMQ_DONTWAIT | more); });
    if (sent == -1) return zmq_failure("send");
  }
  return {};
}

}  // namespace dcr
