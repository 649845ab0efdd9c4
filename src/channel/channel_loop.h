// The thread that owns a channel's sockets, and what it shares with the callers of the channel.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "channel/channel.h"
#include "channel/event.h"
#include "channel/peer_queues.h"
#include "channel/reporter.h"
#include "channel/sockets.h"
#include "dcr/status.h"

namespace dcr {

// Where to send to a peer.
struct ChannelTarget {
  std::string address;
  bool used = false;  // since the loop last looked
};

struct ChannelShared {
  ChannelShared(ChannelOptions given, Event wake_event, Event ready_event)
      : options(std::move(given)),
        reporter(options.report),
        wake(std::move(wake_event)),
        ready(std::move(ready_event)),
        outgoing(options.queues),
        incoming(options.queues) {}

  const ChannelOptions options;
  Reporter reporter;
  const Event wake;   // there is something to send, or the end
  const Event ready;  // set while `incoming` holds something

  std::mutex mutex;
  // Guarded by mutex:
  PeerQueues<Bytes> outgoing;
  PeerQueues<ReceivedMessage> incoming;
  std::map<std::string, ChannelTarget> targets;
  ChannelCounts counts;
  bool stopping = false;
};

class ChannelLoop {
 public:
  struct Sockets {
    ZmqContext context;
    ZmqSocket handler, listener, monitor;
  };

  // Binds all sockets and shows that an unknown key is refused.
  static Result<std::unique_ptr<ChannelLoop>> open(ChannelShared& shared);
  ChannelLoop(ChannelShared& shared, Sockets sockets, std::string address);
  ~ChannelLoop();
  ChannelLoop(const ChannelLoop&) = delete;
  ChannelLoop& operator=(const ChannelLoop&) = delete;

  const std::string& address() const { return address_; }

  // Until shared.stopping.
  void run();

 private:
  struct Connection {
    ZmqSocket socket;
    std::string address;
    std::uint64_t used_ns = 0;
    std::uint64_t stalled_ns = 0;  // when it first took nothing; 0: it takes messages
  };

  Status prove_denial();
  void wait(std::uint64_t timeout_ms);
  bool stopping();
  void answer_questions();
  void read_monitor();
  void note_event(std::uint16_t event, std::uint32_t value);
  void refuse_connection(const std::string& kind, const Status& problem);
  void refuse_unfinished();
  void receive_messages();
  void take(const IncomingMessage& incoming);
  Status check(const IncomingMessage& incoming, ReceivedMessage* received);
  void send_messages();
  void send_to(const std::string& peer, const ChannelTarget& target);
  Connection* connection_to(const std::string& peer, const std::string& address);
  void close_unused();

  ChannelShared& shared_;
  const Sockets sockets_;
  const std::string address_;
  std::map<std::string, Connection> connections_;

  std::uint64_t questions_ = 0;  // answered
  // Open connections to the listener: how many questions had been answered when each came.
  std::map<std::uint32_t, std::uint64_t> accepted_;
  bool failure_told_ = false;  // the last event told why a connection ends
  PublicKey own_probe_{};      // the unknown key of prove_denial()
  bool denied_ = false;        // libzmq has turned it away
};

}  // namespace dcr
