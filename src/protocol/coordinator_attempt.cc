// An attempt, from its Prepare until every receiver has completed, and its commit.
#include <algorithm>
#include <utility>

#include "base/mutant.h"
#include "base/probe.h"
#include "protocol/coordinator_machine.h"

namespace dcr {

// ---- what the bound say

Coordinator::Machine::Peer* Coordinator::Machine::bound(const Endpoint& from,
                                                        std::uint64_t attempt) {
  if (phase_ != Phase::kAttempt || attempt != record_.attempt) return nullptr;
  return find_peer(from);
}

void Coordinator::Machine::set(Peer* peer, Done done) {
  if (peer->*done) return;
  peer->*done = true;
  progress_at_ = now_;
}

void Coordinator::Machine::on_message(const Endpoint& from, const Prepared& message) {
  Peer* const peer = bound(from, message.attempt);
  if (peer == nullptr) return;
  // An owner says it again while its work goes on.
  if (peer->role == Role::kOwner && peer->prepared && !peer->sent) progress_at_ = now_;
  set(peer, &Peer::prepared);
}
void Coordinator::Machine::on_message(const Endpoint& from, const Sent& message) {
  Peer* const peer = bound(from, message.attempt);
  if (peer == nullptr || peer->role != Role::kOwner) return;
  set(peer, &Peer::prepared);
  set(peer, &Peer::sent);
}
void Coordinator::Machine::on_message(const Endpoint& from, const Staged& message) {
  Peer* const peer = bound(from, message.attempt);
  if (peer == nullptr || peer->role != Role::kNode) return;
  set(peer, &Peer::prepared);
  set(peer, &Peer::staged);
}
void Coordinator::Machine::on_message(const Endpoint& from, const StagingFull& message) {
  const Peer* const peer = bound(from, message.attempt);
  if (peer == nullptr || peer->role != Role::kNode || closing_ || !prepare_.asynchronous) return;
  if (!staging_full_) {
    DCR_PROBE("staging is full before everything has come");
    closed_early_ = {name_of(*peer) + " has no room for what receivers have not applied",
                     now_ - phase_since_};
    note(attempt_text() + ": gate_closed_early: " + closed_early_->reason);
  }
  staging_full_ = true;
}
void Coordinator::Machine::on_message(const Endpoint& from, const GateClosed& message) {
  Peer* const peer = bound(from, message.attempt);
  if (peer == nullptr || peer->role != Role::kReceiver || !closing_) return;
  set(peer, &Peer::closed);
}
void Coordinator::Machine::on_message(const Endpoint& from, const Completed& message) {
  Peer* const peer = bound(from, message.attempt);
  if (peer == nullptr || peer->role != Role::kReceiver || !flushing_) return;
  set(peer, &Peer::completed);
}
void Coordinator::Machine::on_message(const Endpoint& from, const Applying& message) {
  Peer* const peer = bound(from, message.attempt);
  if (peer == nullptr || peer->role != Role::kReceiver || !flushing_) return;
  if (message.payloads < peer->applying.payloads) return;  // older
  if (message.payloads > peer->applying.payloads) {
    DCR_PROBE("a receiver goes on applying");
    peer->applied_at = now_;
  }
  peer->applying = message;
}
void Coordinator::Machine::on_message(const Endpoint& from, const AttemptFailed& message) {
  Peer* const peer = message.attempt == record_.attempt ? find_peer(from) : nullptr;
  if (peer == nullptr) return;
  // Whoever else failed tells whether one of them is to blame.
  peer->failed = true;
  // An owner that conflicts waits for no such refit any more.
  const auto asked = asked_.find(from.name);
  if (message.rejected && message.failure.code == Code::kConflict && asked != asked_.end() &&
      bound_candidate(asked->second)) {
    DCR_PROBE("an owner waits for its refit no longer");
    asked_.erase(asked);
  }
  if (phase_ != Phase::kAttempt) return;
  fail_attempt(status_of(message.failure).with_context(name_of(*peer)), message.rejected);
}

// ---- the attempt

std::string Coordinator::Machine::attempt_text() const {
  return "attempt " + std::to_string(record_.attempt) + " of version " +
         std::to_string(record_.base.version + 1);
}

void Coordinator::Machine::drive_attempt() {
  if (!check_attempt()) return;
  const bool staged = all(kAll, &Peer::prepared) &&
                      (staging_full_ || (all(kOwners, &Peer::sent) && all(kNodes, &Peer::staged)));
  if (!closing_ && (!prepare_.asynchronous || staged)) close_gates();
  const bool closed = all(kReceivers, &Peer::closed) || DCR_MUTANT("early_open");
  if (closing_ && !opening_ && !open_ && all(kAll, &Peer::prepared) && closed) {
    opening_ = true;
    want(OpenRequest{record_.attempt});
  }
  if (open_ && !flushing_ && all(kOwners, &Peer::sent)) {
    flushing_ = true;
    progress_at_ = now_;
    ask(kReceivers, &Peer::completed, Flush{record_.attempt});
  }
  if (flushing_ && (all(kReceivers, &Peer::completed) || DCR_MUTANT("early_commit"))) {
    want(CommitRequest{record_.attempt});
    return enter(Phase::kCommit);
  }
  repeat_attempt();
}

// Whether the attempt may go on: nobody is gone, and nothing is overdue.
bool Coordinator::Machine::check_attempt() {
  for (const Peer& peer : peers_) {
    if (!peer.gone) continue;
    DCR_PROBE("a bound endpoint is gone in an attempt");
    fail_attempt({Code::kUnavailable, name_of(peer) + " is gone: it restarted, or was barred"},
                 false);
    return false;
  }
  const Wait wait = attempt_wait();
  if (missing(wait.roles, wait.done) == nullptr || !due(wait.until)) return true;
  const Peer* waited = nullptr;  // the first that is overdue
  for (Peer& peer : peers_) {
    if (!has_role(peer, wait.roles) || peer.*wait.done) continue;
    // One that goes on applying is no reason to wait for one that stands still, nor to blame.
    if (flushing_ && now_ < apply_until(peer)) continue;
    peer.failed = true;
    if (waited == nullptr) waited = &peer;
  }
  const CoordinatorProgress shown = progress();
  const std::string who = name_of(*waited);
  const std::string& state = waited->applying.state;
  fail_attempt({Code::kUnavailable, "phase " + std::string(wait.phase) + " is overdue: " + who +
                                        " is waited for, " + std::to_string(shown.done) + " of " +
                                        std::to_string(shown.of) + " are done" +
                                        (state.empty() ? "" : "; it " + state)},
               false);
  return false;
}

Coordinator::Machine::Wait Coordinator::Machine::attempt_wait() const {
  const Waits& waits = options_.waits;
  if (!all(kAll, &Peer::prepared)) {
    return {"prepare", kAll, &Peer::prepared, phase_since_ + waits.prepare_ms};
  }
  if (!closing_) {
    const Milliseconds until = progress_at_ + waits.send_ms;
    if (!all(kOwners, &Peer::sent)) return {"stream", kOwners, &Peer::sent, until};
    return {"stream", kNodes, &Peer::staged, until};
  }
  if (!all(kReceivers, &Peer::closed)) {
    return {"close_gate", kReceivers, &Peer::closed, closing_since_ + waits.drain_ms};
  }
  if (!open_) return {"open"};
  if (!flushing_) return {"stream", kOwners, &Peer::sent, progress_at_ + waits.send_ms};
  Milliseconds until = kNever;
  for (const Peer& peer : peers_) {
    if (has_role(peer, kReceivers) && !peer.completed) until = std::min(until, apply_until(peer));
  }
  return {"apply", kReceivers, &Peer::completed, until};
}

Milliseconds Coordinator::Machine::apply_until(const Peer& peer) const {
  return std::max(progress_at_, peer.applied_at) + options_.waits.apply_ms;
}

void Coordinator::Machine::close_gates() {
  closing_ = true;
  closing_since_ = now_;
  // With the Prepare where nothing was sent yet.
  if (repeat_at_ > now_) ask(kReceivers, &Peer::closed, CloseGate{record_.attempt});
}

void Coordinator::Machine::open_answered(const ControlReply& reply) {
  opening_ = false;
  if (!reply.status.ok()) return fail_attempt(reply.status.with_context("open"), false);
  record_ = control_value<TransitionRecord>(reply);
  open_ = true;
  progress_at_ = now_;
  ask(kReceivers | kNodes, &Peer::completed, OpenApply{record_.attempt});
}

void Coordinator::Machine::repeat_attempt() {
  if (!due(repeat_at_)) return;
  repeat_at_ = now_ + options_.waits.repeat_ms;
  due(repeat_at_);
  ask(kAll, &Peer::prepared, prepare_);
  const bool remind = now_ >= remind_at_;
  if (remind) remind_at_ = now_ + options_.waits.look_ms;
  for (const Peer& peer : peers_) {
    // What it said may have been lost: a repeated Prepare is answered with it. (Owners and whoever
    // failed say it again by themselves.)
    const bool owes = peer.role == Role::kNode && peer.prepared && !peer.staged && !closing_;
    if (remind && owes) send(peer.endpoint, prepare_);
  }
  if (closing_ && !open_) ask(kReceivers, &Peer::closed, CloseGate{record_.attempt});
  if (!open_) return;
  ask(kNodes, &Peer::completed, OpenApply{record_.attempt});
  if (flushing_) {
    ask(kReceivers, &Peer::completed, Flush{record_.attempt});
  } else {
    ask(kReceivers, &Peer::completed, OpenApply{record_.attempt});
  }
}

void Coordinator::Machine::commit_answered(const ControlReply& reply) {
  if (reply.status.ok()) return committed(control_value<ControlRecords>(reply));
  DCR_PROBE("a commit conflicts");
  fail_attempt(reply.status.with_context("commit"), false);
}

// The same call says whether it was committed after all, and makes sure that it will not be.
void Coordinator::Machine::fail_attempt(const Status& status, bool rejected) {
  failure_ = status.with_context(attempt_text());
  rejected_ = rejected;
  note(failure_.message());
  want(ObsoleteRequest{record_.attempt});
  enter(Phase::kObsolete);
}

}  // namespace dcr
