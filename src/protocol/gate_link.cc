#include "protocol/gate_link.h"

#include <utility>

#include "base/assert.h"
#include "base/limits.h"
#include "protocol/message_text.h"

namespace dcr {

GateLink::GateLink(std::string gate, std::uint64_t engine_instance, Milliseconds repeat_ms)
    : gate_(std::move(gate)), engine_instance_(engine_instance), repeat_ms_(repeat_ms) {
  DCR_ASSERT(engine_instance_ > 0);
}

void GateLink::start(Milliseconds now) {
  state_ = State::kNone;
  sequence_ = 0;
  close(now);
}

void GateLink::close(Milliseconds now) {
  if (state_ == State::kClosing || state_ == State::kClosed) return;
  state_ = State::kClosing;
  ++sequence_;
  repeat_at_ = now;
}

void GateLink::explain(const std::string& why) { why_ = cleaned_text(why, kMessageTextBytesMax); }

void GateLink::close_again(Milliseconds now) {
  state_ = State::kNone;
  close(now);
}

void GateLink::prove(VersionId version, Milliseconds now) {
  DCR_ASSERT(closed());
  why_.clear();
  state_ = State::kProving;
  version_ = version;
  ++sequence_;
  proven_to_ = gate_incarnation_;
  repeat_at_ = now;
}

// Whether it is the gate, and not an incarnation that was replaced.
bool GateLink::known(const Endpoint& gate) {
  if (gate.name != gate_ || gate.incarnation < gate_incarnation_) return false;
  gate_incarnation_ = gate.incarnation;
  return true;
}

void GateLink::closed_by(const Endpoint& gate, const GateIsClosed& message) {
  if (!known(gate) || state_ != State::kClosing || message.sequence != sequence_) return;
  state_ = State::kClosed;
  repeat_at_ = kNever;
}

void GateLink::state_of(const Endpoint& gate, const GateState& message, Milliseconds now) {
  if (message.engine_instance != engine_instance_ || !known(gate)) return;
  open_ = message.open;
  reason_ = message.reason;
  if (state_ != State::kProving) return;
  if (proven_to_ != gate_incarnation_) {
    // It started anew and must hear what is true now.
    proven_to_ = gate_incarnation_;
    ++sequence_;
    repeat_at_ = now;
  } else if (message.sequence >= sequence_) {
    repeat_at_ = kNever;
  }
}

std::optional<SendMessage> GateLink::due(Milliseconds now) {
  if (now < repeat_at_) return std::nullopt;
  repeat_at_ = now + repeat_ms_;
  if (state_ == State::kClosing)
    return SendMessage{gate_, 0, GateClose{sequence_, why_, engine_instance_}};
  return SendMessage{gate_, proven_to_, GateProof{sequence_, version_, engine_instance_}};
}

}  // namespace dcr
