// Where an endpoint's messages go out and come in: envelopes around them, and the channel.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "channel/channel.h"
#include "dcr/control.h"
#include "protocol/messages.h"
#include "protocol/senders.h"
#include "run/run_config.h"
#include "runtime/threads.h"

namespace dcr {

class ProcessContext;

// The secret key of an endpoint of the run. Errors: of the key file; kMismatch if it is another
// than the configuration says.
Result<KeyPair> endpoint_keys(const RunConfig& config, const PeerConfig& own);

// Somebody whom a mailbox knows.
struct MailboxPeer {
  std::string address;
  SenderRole role;
};

class Mailbox {
 public:
  using Deliver = std::function<void(const Endpoint& from, Message message)>;

  // Listens as the configuration says. Errors: the channel's, and those of the endpoint's key.
  static Result<std::unique_ptr<Mailbox>> open(ProcessContext& context, const std::string& name);
  // For open(). `refused` hears once of each kind of message that a peer has no business with.
  Mailbox(const RunId& run, std::string name, std::map<std::string, MailboxPeer> peers,
          std::unique_ptr<Channel> channel, std::function<void(const std::string& text)> refused);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // From now on calls `deliver`, on a thread of the mailbox, with every message of this run that is
  // addressed to the endpoint's incarnation, or to none in particular, and that is its sender's to
  // say. Call once.
  void start(Deliver deliver);

  // The endpoint's own incarnation; 0: it has none, sends nothing and gets nothing.
  void set_incarnation(std::uint64_t incarnation) { incarnation_ = incarnation; }

  // Never waits: what cannot be sent is lost, as messages may be. Thread-safe.
  void send(const std::string& to, std::uint64_t incarnation, const Message& message);

 private:
  void receive(const Deliver& deliver);
  bool is_theirs(const std::string& sender, const Message& message);

  const RunId run_;
  const std::string name_;
  const std::map<std::string, MailboxPeer> peers_;
  const std::unique_ptr<Channel> channel_;
  const std::function<void(const std::string& text)> refused_;
  std::set<std::string> told_;  // of the receiving thread: what refused_ has heard
  std::atomic<std::uint64_t> incarnation_{0};
  std::atomic<bool> stopping_{false};
  std::unique_ptr<Executor> thread_;
};

}  // namespace dcr
