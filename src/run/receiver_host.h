// A receiver's endpoint in its process: mailbox, machine, work, and the socket where the node's
// agent hands payloads over.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "channel/descriptors.h"
#include "protocol/receiver.h"
#include "run/endpoint_loop.h"
#include "run/mailbox.h"
#include "run/process_context.h"
#include "run/receiver_work.h"

namespace dcr {

struct ReceiverHostOptions {
  std::string name;
  std::string engine;
  std::uint64_t engine_instance = 0;
  ReceiverDetails details;
  std::vector<std::string> owners;  // by rank
  // The storage holds the base, until the receiver's first life has begun.
  bool base_loaded = false;
  bool base_exists = true;          // see ReceiverEndpointOptions
  bool audit = false;               // see ReceiverEndpointOptions
  std::function<bool()> cancelled;  // thread-safe
  // Another reason for the machine to end, asked on its thread; may be empty.
  std::function<bool()> ended = {};
};

class ReceiverHost {
 public:
  // `context` and `work` must outlive it. Errors: of the mailbox and the socket.
  static Result<std::unique_ptr<ReceiverHost>> open(ProcessContext& context,
                                                    ReceiverHostOptions options,
                                                    ReceiverWork& work);
  ReceiverHost(ProcessContext& context, ReceiverHostOptions options, ReceiverWork& work,
               std::unique_ptr<Mailbox> mailbox, DescriptorListener listener);

  // The machine, on the calling thread, until it is cancelled (kCancelled) or an operator is
  // needed.
  Status run();
  // Beside run(), on another thread: takes payloads until it is cancelled.
  void take_payloads();

  // Has how it stands told, on the machine's thread. Thread-safe.
  void ask(const std::function<void(const StatusReply&)>& answer) {
    loop_.ask([answer](const ReceiverEndpoint& machine) { answer(machine.status()); });
  }

 private:
  using Loop = EndpointLoop<ReceiverEndpoint, ReceiverEvent, ReceiverEffect>;

  static LoopParts parts_of(ProcessContext& context, const ReceiverHostOptions& options);
  Status take_payload(const DescriptorSocket& socket);

  ProcessContext& context_;
  const ReceiverHostOptions options_;
  ReceiverWork& work_;
  const std::unique_ptr<Mailbox> mailbox_;
  const DescriptorListener listener_;
  Loop loop_;
  bool started_ = false;  // a life has begun: the storage may hold other bits than the base's
};

}  // namespace dcr
