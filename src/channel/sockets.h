// ZeroMQ sockets that close themselves, set up as the channel needs them. A control message is sent
// as frames of at most kFrameBytesMax: libzmq takes memory for a frame when its header has come,
// also from peers that have not shown a key yet, and this is the most that one can make it take.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "channel/keys.h"
#include "dcr/status.h"

namespace dcr {

inline constexpr std::uint64_t kFrameBytesMax = 64 * 1024;
// What CURVE puts around a frame: a command's name, a nonce, an authenticator, flags.
inline constexpr std::uint64_t kFrameOverheadBytesMax = 64;

// Of one channel. Sockets must be gone before it.
class ZmqContext {
 public:
  static Result<ZmqContext> open(std::uint64_t sockets_max);

  void* get() const { return context_.get(); }

 private:
  struct Terminate {
    void operator()(void* context) const;
  };
  explicit ZmqContext(void* context) : context_(context) {}
  std::unique_ptr<void, Terminate> context_;
};

struct IncomingMessage {
  std::string user;  // the peer's name, by its key
  Bytes bytes;
  bool too_large = false;  // then `bytes` is cut
};

// For one thread at a time.
class ZmqSocket {
 public:
  // Each sets its options before it binds or connects. Errors: kIo; kUnsupported, the library has
  // no CURVE or cannot be made to insist on its handler.

  // Takes messages from allowed peers at `address`; the handler (below) must be bound by then.
  static Result<ZmqSocket> listen(const ZmqContext& context, const std::string& address,
                                  const SecretKey& secret);
  // Sends to one peer, and to none that has another key.
  static Result<ZmqSocket> connect(const ZmqContext& context, const std::string& address,
                                   const KeyPair& keys, const PublicKey& peer);
  // Answers libzmq's questions about who may take part.
  static Result<ZmqSocket> handler(const ZmqContext& context);
  // Tells of refused connections of `listener`.
  static Result<ZmqSocket> monitor(const ZmqContext& context, const ZmqSocket& listener);

  void* get() const { return socket_.get(); }
  Result<std::string> address() const;  // that it is bound to
  void stop_monitor() const;

  // All or nothing, without waiting. Error: kUnavailable, there is no room or no peer; kConflict,
  // the connection broke in the middle and the socket must be opened again.
  Status send_message(ByteSpan bytes) const;
  // Nothing if none has come. Takes no more memory than `bytes_max`.
  Result<std::optional<IncomingMessage>> receive_message(std::uint64_t bytes_max) const;

  // Small frames, as the handler and the monitor have them; nothing if none have come.
  Result<std::optional<std::vector<Bytes>>> receive_frames() const;
  Status send_frames(const std::vector<Bytes>& frames) const;

 private:
  struct Close {
    void operator()(void* socket) const;
  };
  explicit ZmqSocket(void* socket) : socket_(socket) {}
  static Result<ZmqSocket> open(const ZmqContext& context, int type);
  Status set(int option, int value) const;
  Status set(int option, ByteSpan value) const;
  Status limit() const;

  std::unique_ptr<void, Close> socket_;
};

}  // namespace dcr
