// Leadership, calls of the control plane, peers and what is shown.
#include "protocol/coordinator.h"

#include <algorithm>
#include <utility>

#include "base/probe.h"
#include "protocol/coordinator_machine.h"

namespace dcr {

Coordinator::Coordinator(CoordinatorOptions options)
    : machine_(std::make_unique<Machine>(std::move(options))) {}
Coordinator::~Coordinator() = default;
Coordinator::Coordinator(Coordinator&&) noexcept = default;
Coordinator& Coordinator::operator=(Coordinator&&) noexcept = default;

void Coordinator::step(const CoordinatorEvent& event, Milliseconds now,
                       std::vector<CoordinatorEffect>* effects) {
  machine_->step(event, now, effects);
}
Milliseconds Coordinator::wake_at() const { return machine_->wake_at(); }
std::uint64_t Coordinator::incarnation() const { return machine_->incarnation(); }
bool Coordinator::leading() const { return machine_->leading(); }
StatusReply Coordinator::status() const { return machine_->status(); }

Coordinator::Machine::Machine(CoordinatorOptions options)
    : options_(std::move(options)),
      session_({options_.name, Role::kCoordinator, "", options_.waits}) {}

void Coordinator::Machine::step(const CoordinatorEvent& event, Milliseconds now,
                                std::vector<CoordinatorEffect>* effects) {
  if (ended_) return;
  now_ = now;
  wake_ = kNever;
  effects_ = effects;
  std::visit([this](const auto& kind) { on(kind); }, event);
  if (!ended_) advance();
  effects_ = nullptr;
}

void Coordinator::Machine::on(const MessageArrived& event) {
  if (std::holds_alternative<StatusRequest>(event.message)) {
    send(event.from, status());
  } else if (leading()) {
    std::visit([&](const auto& message) { on_message(event.from, message); }, event.message);
  }
}

// ---- calls

void Coordinator::Machine::on(const ControlAnswered& event) {
  const auto call = std::find_if(call_.begin(), call_.end(), [&event](const Call& of_slot) {
    return of_slot.id != 0 && of_slot.id == event.call;
  });
  if (call == call_.end()) return;
  call->id = 0;
  const auto slot = static_cast<Slot>(call - call_.begin());
  if (slot == kSession) return session_answered(event);
  const Code code = event.reply.status.code();
  if (code == Code::kUnavailable || code == Code::kUnknownOutcome) {
    // Every call may be repeated as it was.
    call->retry_at = now_ + options_.waits.repeat_ms;
    if (slot == kBeat) beat_at_ = call->retry_at;
    if (slot == kWork && code == Code::kUnknownOutcome && phase_ == Phase::kCommit) {
      DCR_PROBE("the outcome of a commit is unknown at first");
    }
    return;
  }
  if (code == Code::kLostLeadership) {
    lose(event.reply.status.message());
  } else if (slot == kBeat) {
    beat_answered(event.reply);
  } else if (slot == kMembers) {
    members_answered(event.reply);
  } else {
    work_answered(event.reply);
  }
}

void Coordinator::Machine::make_calls() {
  const auto call = [this](Slot slot, ControlRequest request) {
    call_[slot].id = ++calls_;
    emit(CallControl{calls_, std::move(request)});
  };
  if (call_[kSession].id == 0) {
    if (std::optional<CallControl> next = session_.next_call(now_)) {
      session_call_ = next->call;
      call(kSession, std::move(next->request));
    } else {
      due(session_.wake_at());
    }
  }
  if (leading() && call_[kBeat].id == 0 && due(beat_at_)) {
    beat_at_ = now_ + options_.waits.beat_ms;
    call(kBeat, BeatRequest{token_});
  }
  if (leading() && members_wanted_ && call_[kMembers].id == 0 && due(call_[kMembers].retry_at)) {
    call(kMembers, ReadMembersRequest{});
  }
  if (work_ && call_[kWork].id == 0 && due(call_[kWork].retry_at)) call(kWork, *work_);
}

void Coordinator::Machine::want(ControlRequest request) {
  work_ = std::move(request);
  call_[kWork] = {};
}

void Coordinator::Machine::session_answered(const ControlAnswered& answer) {
  session_.answered({session_call_, answer.reply}, now_);
  if (session_.barred()) {
    return end({Code::kConflict, "coordinator " + options_.name + " (incarnation " +
                                     std::to_string(incarnation()) +
                                     ") is barred: another life of it has begun"});
  }
  if (!session_.failure().ok()) return end(session_.failure());
  if (session_.records()) saw(*session_.records());
}

void Coordinator::Machine::beat_answered(const ControlReply& reply) {
  if (!reply.status.ok()) end(reply.status.with_context("beat"));
}

void Coordinator::Machine::members_answered(const ControlReply& reply) {
  if (!reply.status.ok()) return end(reply.status.with_context("read_members"));
  members_ = control_value<Membership>(reply);
  members_wanted_ = false;
  gathered_.reset();
  mark_gone();
  saw(members_.records);
  if (leading()) saw(*session_.records());
}

// What any reading of the records may show. It may be older than what is known.
void Coordinator::Machine::saw(const ControlRecords& records) {
  if (!leading()) return;
  if (records.leader.token > token_) {
    return lose(records.leader.holder.name + " leads with token " +
                std::to_string(records.leader.token));
  }
  if (records.commit.id.baseline >= committed_.id.baseline) committed_ = records.commit;
  if (records.members_revision > members_.records.members_revision) members_wanted_ = true;
  const TransitionRecord& last = records.transition;
  if (phase_ == Phase::kAttempt && last.attempt == record_.attempt &&
      last.state != AttemptState::kActive) {
    DCR_PROBE("an attempt was ended by somebody else");
    fail_attempt({Code::kConflict, "it was ended by somebody else"}, false);
  }
}

void Coordinator::Machine::work_answered(const ControlReply& reply) {
  const std::string name = control_request_name(*work_);
  work_.reset();
  // Those that handle a conflict know what it means to them.
  if (!reply.status.ok() && reply.status.code() != Code::kConflict) {
    return end(reply.status.with_context(name));
  }
  switch (phase_) {
    case Phase::kClaim:
      return claim_answered(reply);
    case Phase::kPrepare:
      return prepare_answered(reply);
    case Phase::kAttempt:
      return open_answered(reply);
    case Phase::kCommit:
      return commit_answered(reply);
    case Phase::kObsolete:
      return obsolete_answered(reply);
    case Phase::kBar:
      return bar_answered(reply);
    case Phase::kAbort:
      return abort_answered(reply);
    default:
      return;
  }
}

// ---- leadership

void Coordinator::Machine::follow() {
  if (!session_.enrolled()) return;
  const LeaderRow& row = session_.records()->leader;
  const Milliseconds read_at = session_.read_at();
  // While the store did not answer, the leader could not beat either.
  if (seen_ != row || read_at > seen_at_ + options_.waits.leader_ms) seen_since_ = read_at;
  seen_ = row;
  seen_at_ = read_at;
  if (overtaken_row_ == row) return;
  const bool at_once =
      options_.abort_transition || row.token == 0 || row.holder.name == options_.name;
  if (!at_once && read_at < seen_since_ + options_.waits.leader_ms) return;
  want(ClaimRequest{{options_.name, incarnation()}, row});
  enter(Phase::kClaim);
}

void Coordinator::Machine::claim_answered(const ControlReply& reply) {
  if (!reply.status.ok()) {
    DCR_PROBE("a claim finds that the leader lives");
    overtaken_row_ = seen_;
    session_.look();
    return enter(Phase::kFollow);
  }
  const auto& records = control_value<ControlRecords>(reply);
  token_ = records.leader.token;
  beat_at_ = now_ + options_.waits.beat_ms;
  note("leads with token " + std::to_string(token_));
  saw(records);
  if (!options_.abort_transition) return take_over(records);
  want(AbortRequest{token_});
  enter(Phase::kAbort);
}

void Coordinator::Machine::abort_answered(const ControlReply& reply) {
  if (!reply.status.ok()) return end(reply.status.with_context("abort_transition"));
  const auto& records = control_value<ControlRecords>(reply);
  const TransitionRecord& last = records.transition;
  if (last.state == AttemptState::kObsolete) {
    note("ends attempt " + std::to_string(last.attempt) + " for good; version " +
         std::to_string(last.base.version) + " stays committed");
    return take_over(records);
  }
  record_ = last;
  set_peers(last);
  note("no attempt is left to abort: version " + std::to_string(records.commit.id.version) +
       " of attempt " + std::to_string(records.commit.id.baseline) + " is committed");
  enter(Phase::kRefuse);
}

// Nothing depends on what earlier leaders had done about the last attempt.
void Coordinator::Machine::take_over(const ControlRecords& records) {
  record_ = records.transition;
  set_peers(record_);
  members_wanted_ = true;
  if (record_.state == AttemptState::kNone) return enter(Phase::kGather);
  if (record_.state == AttemptState::kCommitted) {
    DCR_PROBE("a takeover finds a commit");
    return committed(records);
  }
  DCR_PROBE("a takeover stops an attempt");
  failure_ = Status(Code::kConflict, attempt_text() + ": its leader was replaced");
  enter(Phase::kStop);
}

// Everything is left to whoever leads now.
void Coordinator::Machine::lose(const std::string& why) {
  if (!leading()) return;
  if (phase_ == Phase::kAttempt) DCR_PROBE("leadership is lost in an attempt");
  note("leads no more: " + why);
  token_ = 0;
  for (const Slot slot : {kBeat, kMembers, kWork}) call_[slot] = {};
  work_.reset();
  members_wanted_ = false;
  members_ = {};
  gathered_.reset();
  asked_.clear();
  refused_.clear();
  heard_at_.clear();
  answered_.clear();
  held_.clear();
  blame_.clear();
  peers_.clear();
  record_ = {};
  attempts_ = 0;
  retired_ = rejected_ = false;
  closed_early_.reset();
  seen_.reset();
  session_.look();
  enter(Phase::kFollow);
}

void Coordinator::Machine::end(Status status) {
  ended_ = true;
  emit(Ended{std::move(status)});
}

// ---- going on

void Coordinator::Machine::enter(Phase phase) {
  phase_ = phase;
  phase_since_ = now_;
  repeat_at_ = now_;
  if (phase != Phase::kGather) return;
  // An older reading would not show how the last attempt ended.
  call_[kMembers] = {};
  members_wanted_ = true;
  gathered_.reset();
  stands_.clear();
}

void Coordinator::Machine::advance() {
  Phase before = phase_;
  do {
    before = phase_;
    advance_phase();
  } while (!ended_ && phase_ != before);
  if (ended_) return;
  make_calls();
  report();
}

void Coordinator::Machine::advance_phase() {
  switch (phase_) {
    case Phase::kFollow:
      return follow();
    case Phase::kGather:
      return gather();
    case Phase::kAttempt:
      return drive_attempt();
    case Phase::kBaseline:
      return drive_baseline();
    case Phase::kStop:
      return drive_stop();
    case Phase::kCleanup:
      return drive_cleanup();
    case Phase::kRefuse:
      return refuse();
    case Phase::kClaim:
    case Phase::kPrepare:
    case Phase::kCommit:
    case Phase::kObsolete:
    case Phase::kBar:
    case Phase::kAbort:
      return;  // until the call is answered
  }
}

bool Coordinator::Machine::due(Milliseconds at) {
  if (now_ >= at) return true;
  wake_ = std::min(wake_, at);
  return false;
}

void Coordinator::Machine::send(const Endpoint& to, Message message) {
  emit(SendMessage{to.name, to.incarnation, std::move(message)});
}

// ---- peers

bool Coordinator::Machine::has_role(const Peer& peer, unsigned roles) {
  const unsigned role = peer.role == Role::kOwner  ? kOwners
                        : peer.role == Role::kNode ? kNodes
                                                   : kReceivers;
  return (roles & role) != 0;
}

Coordinator::Machine::Peer* Coordinator::Machine::find_peer(const Endpoint& endpoint) {
  const auto peer = std::find_if(peers_.begin(), peers_.end(), [&endpoint](const Peer& of_record) {
    return of_record.endpoint == endpoint;
  });
  return peer == peers_.end() ? nullptr : &*peer;
}

void Coordinator::Machine::set_peers(const TransitionRecord& record) {
  peers_.clear();
  const auto add = [this](const Endpoint& endpoint, Role role) {
    Peer peer;
    peer.endpoint = endpoint;
    peer.role = role;
    peers_.push_back(std::move(peer));
  };
  for (const OwnerBinding& owner : record.owners) {
    add(owner.endpoint, Role::kOwner);
    peers_.back().candidate = owner.candidate;
  }
  for (const Endpoint& node : record.nodes) add(node, Role::kNode);
  for (const Endpoint& receiver : record.receivers) add(receiver, Role::kReceiver);
}

void Coordinator::Machine::mark_gone() {
  for (Peer& peer : peers_) {
    const Member* const member = living_member(members_, peer.endpoint);
    // Incarnations do not come back.
    if (member == nullptr) peer.gone = true;
    if (member != nullptr) peer.engine = member->engine;
  }
}

bool Coordinator::Machine::all(unsigned roles, Done done) const {
  return missing(roles, done) == nullptr;
}

const Coordinator::Machine::Peer* Coordinator::Machine::missing(unsigned roles, Done done) const {
  const auto peer = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& of_record) {
    return has_role(of_record, roles) && !of_record.gone && !(of_record.*done);
  });
  return peer == peers_.end() ? nullptr : &*peer;
}

void Coordinator::Machine::ask(unsigned roles, Done done, const Message& message) {
  for (const Peer& peer : peers_) {
    if (has_role(peer, roles) && !peer.gone && !(peer.*done)) send(peer.endpoint, message);
  }
}

std::string Coordinator::Machine::name_of(const Peer& peer) const {
  return peer.endpoint.name + " (incarnation " + std::to_string(peer.endpoint.incarnation) + ")";
}

// ---- what is shown

CoordinatorProgress Coordinator::Machine::progress() const {
  CoordinatorProgress shown;
  shown.attempt = record_.attempt;
  shown.base = record_.base;
  shown.mode = record_.mode;
  Wait wait;
  switch (phase_) {
    case Phase::kFollow:
      wait.phase = "follow";
      shown.waits_for = session_.leader();
      break;
    case Phase::kClaim:
      wait.phase = "claim";
      break;
    case Phase::kGather:
      wait.phase = "gather";
      shown.waits_for = stands_;
      break;
    case Phase::kPrepare:
      wait.phase = "bind";
      break;
    case Phase::kAttempt:
      wait = attempt_wait();
      break;
    case Phase::kCommit:
      wait.phase = "commit";
      break;
    case Phase::kBaseline:
      wait = {"baseline", kOwners, &Peer::updated};
      break;
    case Phase::kObsolete:
      wait.phase = "end";
      break;
    case Phase::kStop:
      wait = {"stop", kAll, &Peer::stopped};
      break;
    case Phase::kBar:
      wait.phase = "retire";
      break;
    case Phase::kCleanup:
      wait = {"cleanup", kOwners, &Peer::cleaned};
      break;
    case Phase::kAbort:
      wait.phase = "abort";
      break;
    case Phase::kRefuse:
      wait.phase = "refuse";
      break;
  }
  shown.phase = wait.phase;
  for (const Peer& peer : peers_) {
    if (!has_role(peer, wait.roles) || peer.gone) continue;
    ++shown.of;
    if (peer.*wait.done) ++shown.done;
  }
  const Peer* const waited = missing(wait.roles, wait.done);
  if (waited != nullptr) shown.waits_for = waited->endpoint.name;
  return shown;
}

void Coordinator::Machine::report() {
  if (!leading()) return;
  CoordinatorProgress now = progress();
  if (now == reported_) return;
  reported_ = now;
  emit(std::move(now));
}

StatusReply Coordinator::Machine::status() const {
  const CoordinatorProgress shown = progress();
  StatusReply reply;
  reply.state = shown.phase;
  reply.attempt = shown.attempt;
  if (!shown.waits_for.empty()) {
    reply.detail = (leading() ? "waits for " : "the leader is ") + shown.waits_for;
  }
  if (shown.of > 0) {
    reply.detail += (reply.detail.empty() ? "" : "; ") + std::to_string(shown.done) + " of " +
                    std::to_string(shown.of) + " done";
  }
  return reply;
}

}  // namespace dcr
