// Where an endpoint's messages go out and come in: envelopes around them, and the channel.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "channel/channel.h"
#include "dcr/control.h"
#include "protocol/messages.h"
#include "run/run_peers.h"
#include "runtime/threads.h"

namespace dcr {

class ProcessContext;

// The secret key of an endpoint of the run. Errors: of the key file; kMismatch if it is another
// than peers know it by.
Result<KeyPair> endpoint_keys(const RunConfig& config, const std::string& name,
                              const PublicKey& known);

// Takes what comes for one endpoint, from the channel or from an endpoint of the same process.
// Thread-safe.
class Inbox {
 public:
  using Deliver = std::function<void(const Endpoint& from, Message message)>;

  // `refused` hears once of each kind of message that a peer has no business with.
  Inbox(const RunId& run, std::shared_ptr<const RunPeers> senders,
        std::function<void(const std::string& text)> refused);

  // Until open() and after close() whatever comes is lost. close() waits for a delivery.
  void open(Deliver deliver);
  void close();
  // The endpoint's own incarnation; 0: it has none, and gets nothing.
  void set_incarnation(std::uint64_t incarnation) { incarnation_ = incarnation; }
  std::uint64_t incarnation() const { return incarnation_; }
  // Delivers what is of this run, addressed to this incarnation or to none in particular, and its
  // sender's to say; drops the rest.
  void take(const Envelope& envelope, Message message);
  // Of this run and for this incarnation: worth decoding.
  bool is_mine(const Envelope& envelope) const;

 private:
  bool is_theirs(const std::string& sender, const Message& message);

  const RunId run_;
  const std::shared_ptr<const RunPeers> senders_;
  const std::function<void(const std::string& text)> refused_;
  std::atomic<std::uint64_t> incarnation_{0};
  std::mutex mutex_;
  Deliver deliver_;             // guarded by mutex_; empty: closed
  std::set<std::string> told_;  // guarded by mutex_: what refused_ has heard
};

// The inboxes of a process's endpoints, by their names: what a gate and its receivers say to one
// another takes no way through sockets where they share a process. Thread-safe.
class Inboxes {
 public:
  std::shared_ptr<Inbox> find(const std::string& name);
  void add(const std::string& name, std::shared_ptr<Inbox> inbox);
  void remove(const std::string& name);

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Inbox>> inboxes_;  // guarded by mutex_
};

class Mailbox {
 public:
  using Deliver = Inbox::Deliver;

  // Listens where peers look for it. Errors: the channel's, those of the endpoint's key, and
  // kInvalidArgument: the run has no such endpoint.
  static Result<std::unique_ptr<Mailbox>> open(ProcessContext& context, const std::string& name);
  // For open(). `inboxes`: of the process. `refused`: as Inbox has it.
  Mailbox(const RunId& run, std::string name, std::shared_ptr<const RunPeers> peers,
          std::unique_ptr<Channel> channel, Inboxes& inboxes,
          std::function<void(const std::string& text)> refused);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // From now on calls `deliver` with every message of this run that is addressed to the endpoint's
  // incarnation, or to none in particular, and that is its sender's to say: on a thread of the
  // mailbox, or on that of a sender in this process, one call at a time. Must not wait, nor send to
  // an endpoint of this process. Call once.
  void start(Deliver deliver);

  // Hears the name of a peer that has said how it stands in another run. On the mailbox's thread;
  // before start().
  void set_foreign(std::function<void(const std::string& name)> foreign) {
    foreign_ = std::move(foreign);
  }

  // Delivers nothing from now on, and waits for a delivery.
  void stop() { inbox_->close(); }

  // The endpoint's own incarnation; 0: it has none, sends nothing and gets nothing.
  void set_incarnation(std::uint64_t incarnation) { inbox_->set_incarnation(incarnation); }

  // As set last.
  std::uint64_t incarnation() const { return inbox_->incarnation(); }

  // Never waits: what cannot be sent is lost, as messages may be. Thread-safe.
  void send(const std::string& to, std::uint64_t incarnation, const Message& message);

 private:
  void receive();
  void take_foreign(const Envelope& envelope, ByteSpan body);

  const RunId run_;
  const std::string name_;
  const std::shared_ptr<const RunPeers> peers_;
  const std::unique_ptr<Channel> channel_;
  Inboxes& inboxes_;
  const std::shared_ptr<Inbox> inbox_;
  std::function<void(const std::string& name)> foreign_;  // or empty
  std::atomic<bool> stopping_{false};
  std::unique_ptr<Executor> thread_;
};

}  // namespace dcr
