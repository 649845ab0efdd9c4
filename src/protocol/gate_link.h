// A receiver's side of its engine's gate (docs/PROTOCOL.md "Gate"): closes it before anything is
// written, proves a version after. What it says is repeated until the gate has it.
//
// Closed means: the gate, in whichever incarnation it lives, answered the newest GateClose, and
// nothing was proven since. A gate that starts anew starts closed and knows no proof. One of
// another instance of the engine is none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "protocol/machine.h"

namespace dcr {

class GateLink {
 public:
  GateLink(std::string gate, std::uint64_t engine_instance, Milliseconds repeat_ms);

  // The receiver has a new incarnation: what an earlier one said is void, and the gate is closed.
  void start(Milliseconds now);
  void close(Milliseconds now);
  // What the gate is to say while it waits for a proof, from the next close() that it hears on.
  void explain(const std::string& why);
  // Has it hear one now.
  void close_again(Milliseconds now);
  // REQUIRES: closed(). The storage is this version, and nobody writes before closed() holds again.
  void prove(VersionId version, Milliseconds now);

  void closed_by(const Endpoint& gate, const GateIsClosed& message);
  void state_of(const Endpoint& gate, const GateState& message, Milliseconds now);

  bool closed() const { return state_ == State::kClosed; }
  bool proving() const { return state_ == State::kProving; }
  const std::string& gate() const { return gate_; }
  // As the gate last said.
  bool open() const { return open_; }
  const std::string& reason() const { return reason_; }

  // What to send now, if anything.
  std::optional<SendMessage> due(Milliseconds now);
  Milliseconds wake_at() const { return repeat_at_; }

 private:
  enum class State : std::uint8_t { kNone, kClosing, kClosed, kProving };

  bool known(const Endpoint& gate);

  std::string gate_;
  std::uint64_t engine_instance_;
  Milliseconds repeat_ms_;
  State state_ = State::kNone;
  std::uint64_t sequence_ = 0;
  std::string why_;                     // nothing is proven
  VersionId version_;                   // while kProving
  std::uint64_t gate_incarnation_ = 0;  // the newest that was heard of
  std::uint64_t proven_to_ = 0;         // gate incarnation that sequence_'s proof is for
  Milliseconds repeat_at_ = kNever;
  bool open_ = false;
  std::string reason_ = "nothing was heard of the gate yet";
};

}  // namespace dcr
