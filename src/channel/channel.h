// Control messages between processes: coordinators, owners, nodes, receivers, gates.
//
// A process listens at one address, where it only takes messages, and makes one connection to each
// peer that it sends to. There are no replies on a connection: whoever wants to answer sends to the
// address that the membership has. So nothing is routed by an identifier that a peer chose or that
// belonged to its earlier life.
//
// Both ends of every connection have proved that they have the secret key of a name on the
// allow-list (CURVE), and what comes is under that name: a message whose envelope names another
// sender is dropped. Others than the allowed cannot send a byte of a message here, and cannot make
// this process take more than a frame's memory each.
//
// Messages may be lost, when a peer is away, slow, or floods: those who send repeat them. They are
// not repeated or changed on the way. Memory is bounded by the limits, whatever peers do; see
// docs/THREAT_MODEL.md for what an allowed peer with a changed program can do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/envelope.h"
#include "channel/keys.h"
#include "channel/peer_queues.h"
#include "dcr/status.h"
#include "runtime/clock.h"

namespace dcr {

class ChannelLoop;
class Executor;
struct ChannelShared;

struct ChannelOptions {
  std::string name;                          // of this endpoint
  KeyPair keys;                              // of this endpoint; libzmq keeps copies of the secret
  std::shared_ptr<const PeerKeys> peers;     // required; who may join may become more
  std::string listen = "tcp://127.0.0.1:0";  // channel/address.h
  // Of what waits to be sent, and of what waits to be received.
  QueueLimits queues{2 * kControlMessageBytesMax + 2 * kQueuedMessageOverheadBytes, 1024,
                     std::uint64_t{256} << 20};
  // A peer to whom nothing was sent for so long loses its connection, and what still waits for it.
  std::uint64_t idle_ms = 600'000;
  // A connection that takes nothing for so long while something waits is made anew: libzmq gives up
  // on peers that once broke its protocol.
  std::uint64_t stalled_ms = 10'000;
  Clock* clock = nullptr;  // outlives the channel
  // Told of each problem with a peer once (kMismatch: who it is; kCorrupt, kUnsupported: what it
  // says; kTooLarge: how much; kUnavailable: it cannot be reached; kIo: the system), from any
  // thread, one call at a time. It must not call the channel.
  std::function<void(const Status&)> report;
};

struct ReceivedMessage {
  Envelope envelope;  // its sender has shown the key of that name, its addressee is this endpoint
  Bytes body;         // hostile still
};

// Since the channel was opened.
struct ChannelCounts {
  std::uint64_t sent = 0;      // handed to a connection that has shown its key
  std::uint64_t received = 0;  // that went into the queue
  std::uint64_t dropped_outgoing = 0, dropped_incoming = 0;  // for want of room
  std::uint64_t refused_messages = 0;  // malformed, or not who or whom they say
  std::uint64_t refused_connections = 0;
};

// Thread-safe, but for one thread at a time in receive().
class Channel {
 public:
  // Listens, and proves to itself that a key that is not on the list gets nowhere. Errors:
  // kInvalidArgument, kIo, kUnsupported (the ZeroMQ library).
  static Result<std::unique_ptr<Channel>> open(ChannelOptions options);

  // For open(): nobody else knows a ChannelShared.
  explicit Channel(std::unique_ptr<ChannelShared> shared);
  // Ends within a bounded time; what waits is dropped.
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Where it listens, with the port that the system chose.
  const std::string& address() const;

  // Queues a message to the envelope's addressee at `address`, and returns at once. The peer's
  // older messages give way when there is no room. A new address replaces the one before: what
  // waits goes there. Errors: kNotFound, the addressee is not on the allow-list; kInvalidArgument
  // for the address, or a sender that is not this endpoint; kTooLarge.
  Status send(const std::string& address, const Envelope& envelope, ByteSpan body);

  // The next message; peers take turns. Waits for at most `timeout_ms`; nothing if none came, or
  // earlier when a signal interrupts it.
  std::optional<ReceivedMessage> receive(std::uint64_t timeout_ms);

  ChannelCounts counts() const;

 private:
  const std::unique_ptr<ChannelShared> shared_;
  std::unique_ptr<ChannelLoop> loop_;  // of the thread from when it runs until it is joined
  std::unique_ptr<Executor> thread_;
};

}  // namespace dcr
