// Where an endpoint's messages go out and come in: envelopes around them, and the channel.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "channel/channel.h"
#include "dcr/control.h"
#include "protocol/messages.h"
#include "runtime/threads.h"

namespace dcr {

class ProcessContext;

class Mailbox {
 public:
  using Deliver = std::function<void(const Endpoint& from, Message message)>;

  // Listens as the configuration says. Errors: the channel's, and those of the endpoint's key.
  static Result<std::unique_ptr<Mailbox>> open(ProcessContext& context, const std::string& name);
  Mailbox(const RunId& run, std::string name, std::map<std::string, std::string> addresses,
          std::unique_ptr<Channel> channel);  // for open()
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // From now on calls `deliver`, on a thread of the mailbox, with every message of this run that is
  // addressed to the endpoint's incarnation, or to none in particular. Call once.
  void start(Deliver deliver);

  // The endpoint's own incarnation; 0: it has none, sends nothing and gets nothing.
  void set_incarnation(std::uint64_t incarnation) { incarnation_ = incarnation; }

  // Never waits: what cannot be sent is lost, as messages may be. Thread-safe.
  void send(const std::string& to, std::uint64_t incarnation, const Message& message);

 private:
  void receive(const Deliver& deliver);

  const RunId run_;
  const std::string name_;
  const std::map<std::string, std::string> addresses_;
  const std::unique_ptr<Channel> channel_;
  std::atomic<std::uint64_t> incarnation_{0};
  std::atomic<bool> stopping_{false};
  std::unique_ptr<Executor> thread_;
};

}  // namespace dcr
