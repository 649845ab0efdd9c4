#include "protocol/gate.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/mutant.h"
#include "base/probe.h"
#include "protocol/resident.h"

namespace dcr {

Gate::Gate(GateOptions options)
    : options_(std::move(options)), session_({options_.engine, Role::kGate, "", options_.waits}) {
  DCR_ASSERT(!options_.receivers.empty() && options_.engine_instance > 0);
  for (const std::string& name : options_.receivers) {
    receivers_.emplace_back();
    receivers_.back().name = name;
  }
}

void Gate::step(const GateEvent& event, Milliseconds now, std::vector<GateEffect>* effects) {
  if (ended_) return;
  now_ = now;
  effects_ = effects;
  std::visit([this](const auto& one) { on(one); }, event);
  advance();
}

void Gate::on(const MessageArrived& event) {
  if (!session_.enrolled()) return;
  if (const auto* closing = std::get_if<GateClose>(&event.message)) {
    on_close(event.from, *closing);
  } else if (const auto* proof = std::get_if<GateProof>(&event.message)) {
    on_proof(event.from, *proof);
  } else if (const auto* refused = std::get_if<Refused>(&event.message)) {
    on_refused(event.from, *refused);
  } else if (std::holds_alternative<Look>(event.message)) {
    session_.look();
  } else if (std::holds_alternative<StatusRequest>(event.message)) {
    effects_->emplace_back(SendMessage{event.from.name, event.from.incarnation, status()});
  }
}

// Who speaks, unless it is not of this engine, or of another instance of it, or was replaced. A new
// incarnation has said nothing.
Gate::Receiver* Gate::hear(const Endpoint& from, std::uint64_t engine_instance) {
  for (Receiver& receiver : receivers_) {
    if (receiver.name != from.name) continue;
    receiver.stranger = engine_instance != options_.engine_instance;
    if (receiver.stranger && !DCR_MUTANT("gate_hears_strangers")) {
      DCR_PROBE("a receiver of another instance of the engine is not heard");
      return nullptr;
    }
    if (receiver.incarnation > from.incarnation) return nullptr;
    if (receiver.incarnation < from.incarnation) {
      receiver.incarnation = from.incarnation;
      receiver.sequence = 0;
      receiver.closing = receiver.answer = false;
      receiver.why.clear();
      receiver.proof.reset();
      receiver.refused.clear();
    }
    return &receiver;
  }
  return nullptr;
}

void Gate::on_close(const Endpoint& from, const GateClose& message) {
  Receiver* const receiver = hear(from, message.engine_instance);
  // An older one came late: what the receiver said since stands.
  if (receiver == nullptr || message.sequence < receiver->sequence) return;
  if (message.sequence == receiver->sequence && !receiver->closing) return;
  receiver->sequence = message.sequence;
  receiver->closing = receiver->answer = true;
  receiver->why = message.why;
  receiver->proof.reset();
  close(receiver->name + " is about to write");
}

void Gate::on_proof(const Endpoint& from, const GateProof& message) {
  Receiver* const receiver = hear(from, message.engine_instance);
  if (receiver == nullptr) return;
  if (message.sequence > receiver->sequence || DCR_MUTANT("gate_takes_old_proofs")) {
    receiver->sequence = message.sequence;
    receiver->closing = receiver->answer = false;
    receiver->proof = message.resident;
    for (Receiver& other : receivers_) {
      if (!DCR_MUTANT("gate_opens_on_one_proof")) break;
      other.closing = false;
      other.proof = message.resident;
    }
    look_ = true;
    if (state_ != State::kClosed && receiver->proof != serving_) {
      close(receiver->name + " holds another version than is served");
    }
  }
  receiver->tell_at = now_;
}

void Gate::on_refused(const Endpoint& from, const Refused& message) {
  Receiver* const receiver = hear(from, message.engine_instance);
  if (receiver == nullptr || !receiver->refused.empty()) return;
  receiver->refused =
      message.failure.message.empty() ? "it does not say why" : message.failure.message;
  effects_->emplace_back(Note{"stays closed: " + refusal()});
  close(refusal());
}

std::string Gate::refusal() const {
  for (const Receiver& receiver : receivers_) {
    if (!receiver.refused.empty()) return receiver.name + " takes no part: " + receiver.refused;
  }
  return {};
}

void Gate::on(const ControlAnswered& event) {
  if (event.call == session_call_) {
    session_call_ = 0;
    session_.answered({session_number_, event.reply}, now_);
    if (!session_.records()) return;
    const ControlRecords& records = *session_.records();
    if (records.commit != committed_ || records.members_revision != members_revision_) {
      look_ = true;
    } else if (unproven().empty() && event.reply.status.ok()) {
      confirmed_at_ = std::max(confirmed_at_, session_.read_at());
    }
  } else if (event.call == members_call_) {
    members_call_ = 0;
    if (event.reply.status.ok()) {
      take_members(control_value<Membership>(event.reply));
    } else {
      look_ = true;
      read_again_at_ = now_ + options_.waits.repeat_ms;
    }
  }
}

void Gate::take_members(const Membership& all) {
  committed_ = all.records.commit;
  members_revision_ = all.records.members_revision;
  read_at_ = members_called_at_;
  for (Receiver& receiver : receivers_) {
    receiver.member = 0;
    for (const Member& member : all.members) {
      const bool here = member.endpoint.name == receiver.name && member.engine == options_.engine;
      if (here && member.state == MemberState::kMember) {
        receiver.member = member.endpoint.incarnation;
      }
    }
  }
  // What changed while it was read is read again.
  if (!look_) open_if_proven();
}

// Why the gate may not be open, or nothing.
std::string Gate::unproven() const {
  if (std::string why = refusal(); !why.empty()) return why;
  for (const Receiver& receiver : receivers_) {
    if (receiver.closing) {
      return receiver.name + (receiver.why.empty() ? " writes, or is about to"
                                                   : " has no version: " + receiver.why);
    }
    if (!receiver.proof) {
      return receiver.name + " has proven no version to this gate" +
             (receiver.stranger ? "; one of another instance of the engine spoke" : "");
    }
  }
  if (!committed_) return "the control plane was not read yet";
  for (const Receiver& receiver : receivers_) {
    if (DCR_MUTANT("gate_ignores_record")) break;
    if (*receiver.proof != committed_->id) {
      return receiver.name + " holds " + version_text(*receiver.proof) + "; committed is " +
             version_text(committed_->id);
    }
    if (receiver.member != receiver.incarnation) {
      return receiver.name + " (incarnation " + std::to_string(receiver.incarnation) +
             ") is no member" +
             (receiver.member == 0 ? std::string()
                                   : ": incarnation " + std::to_string(receiver.member) + " is");
    }
  }
  return {};
}

void Gate::open_if_proven() {
  if (!unproven().empty()) return;
  confirmed_at_ = read_at_;
  if (state_ != State::kClosed || session_.barred() || !session_.failure().ok()) return;
  state_ = State::kOpening;
  serving_ = committed_->id;
  close_wanted_ = false;
  open_failure_.clear();
  effects_->emplace_back(OpenFor{*committed_});
}

void Gate::close(const std::string& why) {
  if (state_ == State::kClosed || state_ == State::kClosing || close_wanted_) return;
  why_ = why;
  if (state_ == State::kOpening) {
    DCR_PROBE("a gate is closed while it opens");
    close_wanted_ = true;
    return;
  }
  state_ = State::kClosing;
  drained_ = aborted_ = false;
  closing_since_ = now_;
  closes_ = 1;
  effects_->emplace_back(CloseAndDrain{});
}

void Gate::on(const GateWorkDone& done) {
  if (done.opened) {
    if (state_ != State::kOpening) return;
    state_ = done.status.ok() ? State::kOpen : State::kClosed;
    if (!done.status.ok()) {
      open_failure_ = "could not be opened: " + done.status.message();
      look_ = true;
      read_again_at_ = now_ + options_.waits.look_ms;
    }
    if (std::exchange(close_wanted_, false)) close(why_);
    return;
  }
  if (state_ != State::kClosing || closes_ == 0) return;
  --closes_;
  if (done.status.ok()) {
    drained_ = true;
  } else {
    why_ = "could not be closed: " + done.status.message();
  }
  if (closes_ > 0) return;
  if (drained_) {
    state_ = State::kClosed;
    look_ = true;
  } else {
    close_again_at_ = now_ + options_.waits.repeat_ms;
  }
}

void Gate::advance() {
  follow_session();
  if (ended_) return;
  watch_membership();
  watch_drain();
  answer_and_tell();
  call_control();
  const bool is_open = state_ == State::kOpen;
  if (is_open != std::exchange(stood_open_, is_open)) stands_since_ = now_;
}

void Gate::follow_session() {
  const bool failed = !session_.failure().ok();
  if (!failed && !session_.barred()) return;
  close(failed ? session_.failure().message() : "this incarnation of the gate is barred");
  if (state_ != State::kClosed) return;
  ended_ = true;
  effects_->emplace_back(
      Ended{failed ? session_.failure()
                   : Status(Code::kConflict, "gate " + options_.engine + " (incarnation " +
                                                 std::to_string(incarnation()) + ") is barred")});
}

// An old whole version is served for a while at most (docs/PROTOCOL.md "Gate").
void Gate::watch_membership() {
  if (state_ != State::kOpen || now_ < confirmed_at_ + options_.waits.membership_ms) return;
  DCR_PROBE("a gate cannot show any more that it may be open");
  const std::string why = unproven();
  close(!why.empty() ? why
                     : "the control plane was not read for " +
                           std::to_string(options_.waits.membership_ms) + " ms");
}

// The coordinator, which counts from before, fails the attempt after the whole of it.
Milliseconds Gate::overdue_at() const { return closing_since_ + options_.waits.drain_ms / 2; }

void Gate::watch_drain() {
  if (state_ != State::kClosing) return;
  if (closes_ == 0 && now_ >= close_again_at_) {
    close_again_at_ = kNever;
    closes_ = 1;
    effects_->emplace_back(CloseAndDrain{aborted_});
  }
  if (now_ < overdue_at() || aborted_ ||
      options_.drain_overdue != GateOptions::DrainOverdue::kAbort)
    return;
  DCR_PROBE("requests that do not drain are failed");
  aborted_ = true;
  ++closes_;
  close_again_at_ = kNever;
  effects_->emplace_back(CloseAndDrain{true});
}

std::string Gate::reason() const {
  switch (state_) {
    case State::kOpen:
      return {};
    case State::kOpening:
      return "opens for " + version_text(serving_);
    case State::kClosing:
      return why_ + "; requests drain";
    case State::kClosed:
      break;
  }
  std::string why = unproven();
  if (!why.empty()) return why;
  if (!open_failure_.empty()) return open_failure_;
  return why_.empty() ? "waits for the control plane" : why_;
}

GateState Gate::state() const {
  GateState state;
  state.open = state_ == State::kOpen;
  if (state.open) state.serving = serving_;
  state.reason = reason();
  state.engine_instance = options_.engine_instance;
  return state;
}

void Gate::answer_and_tell() {
  if (!session_.enrolled()) return;
  GateState state = this->state();
  const bool changed = state != told_;
  for (Receiver& receiver : receivers_) {
    if (receiver.answer && (state_ == State::kClosed || DCR_MUTANT("gate_answers_before_drain"))) {
      receiver.answer = false;
      effects_->emplace_back(
          SendMessage{receiver.name, receiver.incarnation, GateIsClosed{receiver.sequence}});
    }
    if (!changed && now_ < receiver.tell_at) continue;
    // One that has proven nothing may not know this incarnation of the gate. What is known of it
    // can be a GateClose that came late, even of an incarnation of long ago: so whichever it has
    // now.
    const bool proven = receiver.proof.has_value();
    receiver.tell_at = proven ? kNever : now_ + options_.waits.look_ms;
    state.sequence = proven ? receiver.sequence : 0;
    effects_->emplace_back(SendMessage{receiver.name, proven ? receiver.incarnation : 0, state});
  }
  state.sequence = 0;
  told_ = std::move(state);
}

// Whether the members are to be read: when that may open the gate, or must be known while it is.
bool Gate::reading_is_due() const {
  if (!look_ || members_call_ != 0 || !session_.enrolled()) return false;
  if (state_ == State::kOpen) return true;
  return state_ == State::kClosed &&
         std::all_of(receivers_.begin(), receivers_.end(),
                     [](const Receiver& receiver) { return receiver.proof && !receiver.closing; });
}

void Gate::call_control() {
  if (reading_is_due() && now_ >= read_again_at_) {
    look_ = false;
    members_call_ = ++calls_;
    members_called_at_ = now_;
    effects_->emplace_back(CallControl{members_call_, ReadMembersRequest{}});
  }
  if (std::optional<CallControl> call = session_.next_call(now_)) {
    session_number_ = call->call;
    session_call_ = ++calls_;
    effects_->emplace_back(CallControl{session_call_, std::move(call->request)});
  }
}

Milliseconds Gate::wake_at() const {
  if (ended_) return kNever;
  Milliseconds at = session_.wake_at();
  if (reading_is_due()) at = std::min(at, read_again_at_);
  if (state_ == State::kOpen) at = std::min(at, confirmed_at_ + options_.waits.membership_ms);
  if (state_ == State::kClosing) {
    at = std::min(at, close_again_at_);
    if (!aborted_ && options_.drain_overdue == GateOptions::DrainOverdue::kAbort) {
      at = std::min(at, overdue_at());
    }
  }
  if (session_.enrolled()) {
    for (const Receiver& receiver : receivers_) at = std::min(at, receiver.tell_at);
  }
  return at;
}

StatusReply Gate::status() const {
  static constexpr const char* kStates[] = {"closed", "opening", "open", "closing"};
  StatusReply reply;
  reply.state = kStates[static_cast<int>(state_)];
  if (state_ != State::kClosed) reply.held = serving_;
  reply.gate_open = state_ == State::kOpen;
  reply.gate_reason = reason();
  reply.gate_for_ms = now_ - stands_since_;
  return reply;
}

}  // namespace dcr
