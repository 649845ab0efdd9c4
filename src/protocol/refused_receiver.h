// A receiver that takes no part, because its engine's weights cannot be refitted exactly or because
// something of it failed for good: says so, and why, to its engine's gate, which stays closed, and
// to whoever leads, so that no refit waits for it (docs/PROTOCOL.md "Receiver"). It never joins.
#pragma once

#include <string>
#include <vector>

#include "protocol/machine.h"
#include "protocol/member.h"
#include "protocol/receiver.h"

namespace dcr {

struct RefusedReceiverOptions {
  std::string name;
  std::string engine;                 // also the name of its gate
  std::uint64_t engine_instance = 0;  // see GateOptions
  Failure failure;                    // why
  Waits waits;
};

class RefusedReceiver {
 public:
  explicit RefusedReceiver(RefusedReceiverOptions options);

  void step(const ReceiverEvent& event, Milliseconds now, std::vector<ReceiverEffect>* effects);
  Milliseconds wake_at() const;

  std::uint64_t incarnation() const { return session_.incarnation(); }
  StatusReply status() const;

 private:
  bool end();

  RefusedReceiverOptions options_;
  MemberSession session_;
  Milliseconds say_at_ = 0;
  bool ended_ = false;
};

}  // namespace dcr
