// How attempts end: committed, or stopped wherever they were bound; what is left of them goes, and
// owners hear of it.
#include <algorithm>
#include <set>
#include <utility>

#include "base/probe.h"
#include "protocol/coordinator_machine.h"

namespace dcr {

// ---- committed

void Coordinator::Machine::obsolete_answered(const ControlReply& reply) {
  if (!reply.status.ok()) return end(reply.status.with_context("mark_obsolete"));
  const auto& records = control_value<ControlRecords>(reply);
  saw(records);
  if (!leading()) return;
  // It was not committed: nobody else calls for that, and a commit that conflicts neither was done
  // nor can be done later.
  if (records.transition.attempt == record_.attempt) record_ = records.transition;
  enter(Phase::kStop);
}

void Coordinator::Machine::committed(const ControlRecords& records) {
  saw(records);
  if (!leading()) return;
  record_.state = AttemptState::kCommitted;
  failure_ = {};
  blame_.clear();
  note(attempt_text() + " is committed");
  enter(Phase::kBaseline);
  // First those whose gates wait for it. Owners are asked for their baselines next.
  for (const Role role : {Role::kReceiver, Role::kNode}) {
    for (const Peer& peer : peers_) {
      if (peer.role == role && !peer.gone) send(peer.endpoint, Look{});
    }
  }
}

void Coordinator::Machine::on_message(const Endpoint& from, const BaselineUpdated& message) {
  Peer* const peer = find_peer(from);
  // K may have been seen by owners before its commit was answered here.
  const VersionId made{record_.base.version + 1, record_.attempt};
  if (peer == nullptr || peer->role != Role::kOwner || message.committed != made) return;
  // Said again by who has not heard how its refit ended.
  const auto answered = answered_.find(from.name);
  if (answered != answered_.end() && answered->second.committed.id == made &&
      answered->second.candidate == peer->candidate) {
    send(from, answered->second);
  }
  peer->updated = true;
  peer->without_baseline = message.failure.has_value();
  if (message.failure) {
    note(name_of(*peer) + " has no baseline and is dense next time: " + message.failure->message);
  }
}

void Coordinator::Machine::drive_baseline() {
  if (!all(kOwners, &Peer::updated) && !due(phase_since_ + options_.waits.baseline_ms)) {
    if (!due(repeat_at_)) return;
    ask(kOwners, &Peer::updated, Look{});
    repeat_at_ = now_ + options_.waits.repeat_ms;
    due(repeat_at_);
    return;
  }
  for (Peer& peer : peers_) {
    if (peer.role != Role::kOwner || (peer.updated && !peer.without_baseline)) continue;
    DCR_PROBE("a commit leaves an owner without baseline");
    peer.without_baseline = true;
    note("committed, " + peer.endpoint.name + " without baseline");
  }
  end_committed();
  enter(Phase::kCleanup);
}

// Also those of which this leader has no request: they saw the commit before they found it.
void Coordinator::Machine::end_committed() {
  for (const Peer& peer : peers_) {
    if (peer.role != Role::kOwner || peer.gone || asked_.contains(peer.endpoint.name)) continue;
    asked_[peer.endpoint.name] = {peer.endpoint, {peer.candidate, "", std::nullopt, false, 0}};
  }
  end_refits(std::nullopt, [this](const AskedRefit& asked) { return bound_candidate(asked); });
}

// ---- stopped

void Coordinator::Machine::on_message(const Endpoint& from, const Stopped& message) {
  Peer* const peer = find_peer(from);
  if (phase_ == Phase::kStop && peer != nullptr && message.attempt == record_.attempt) {
    peer->stopped = true;
  }
}

void Coordinator::Machine::drive_stop() {
  const bool overdue = due(phase_since_ + options_.waits.stop_ms);
  if (!all(kAll, &Peer::stopped) && !overdue) {
    if (!due(repeat_at_)) return;
    ask(kAll, &Peer::stopped, StopAndWait{record_.attempt});
    repeat_at_ = now_ + options_.waits.repeat_ms;
    due(repeat_at_);
    return;
  }
  std::vector<Endpoint> retired = overdue ? silent_endpoints() : std::vector<Endpoint>();
  const std::vector<Endpoint> blamed = blamed_endpoints();
  retired.insert(retired.end(), blamed.begin(), blamed.end());
  if (retired.empty()) return enter(Phase::kCleanup);
  bar(std::move(retired), Phase::kCleanup);
}

std::vector<Endpoint> Coordinator::Machine::silent_endpoints() const {
  std::vector<Endpoint> silent;
  for (const Peer& peer : peers_) {
    if (peer.gone || peer.stopped) continue;
    DCR_PROBE("an endpoint that does not stop is barred");
    silent.push_back(peer.endpoint);
  }
  return with_engines(members_, std::move(silent));
}

// Receivers whose second failure this is, with their engines. Where all of several engines failed,
// it is not theirs.
std::vector<Endpoint> Coordinator::Machine::blamed_endpoints() {
  std::set<std::string> engines, failed;
  for (const Peer& peer : peers_) {
    if (peer.role != Role::kReceiver) continue;
    engines.insert(peer.engine);
    if (peer.failed && !peer.gone) failed.insert(peer.engine);
  }
  std::vector<Endpoint> blamed;
  if (failed.empty() || (failed.size() == engines.size() && engines.size() > 1)) return blamed;
  const bool last = attempts_ >= options_.waits.attempts_max;
  for (const Peer& peer : peers_) {
    if (peer.role != Role::kReceiver || !peer.failed || peer.gone) continue;
    if (++blame_[peer.endpoint.name] < 2 && !last) continue;
    DCR_PROBE("an engine whose receiver failed twice is retired");
    note(name_of(peer) + " is to blame for failures; engine " + peer.engine + " is retired");
    blame_.erase(peer.endpoint.name);
    blamed.push_back(peer.endpoint);
  }
  if (!blamed.empty()) {
    retired_ = true;
    rejected_ = false;  // the others may do without
  }
  return with_engines(members_, std::move(blamed));
}

void Coordinator::Machine::bar(std::vector<Endpoint> endpoints, Phase then) {
  for (const Endpoint& endpoint : endpoints) {
    note("bars " + endpoint.name + " (incarnation " + std::to_string(endpoint.incarnation) + ")");
    if (Peer* const peer = find_peer(endpoint)) peer->gone = true;
  }
  after_bar_ = then;
  want(BarRequest{token_, std::move(endpoints)});
  enter(Phase::kBar);
}

void Coordinator::Machine::bar_answered(const ControlReply& reply) {
  if (!reply.status.ok()) return end(reply.status.with_context("bar"));
  enter(after_bar_);
}

// ---- cleaned up, and ended

void Coordinator::Machine::on_message(const Endpoint& from, const CleanedUp& message) {
  Peer* const peer = find_peer(from);
  if (phase_ == Phase::kCleanup && peer != nullptr && message.attempt == record_.attempt) {
    peer->cleaned = true;
  }
}

void Coordinator::Machine::drive_cleanup() {
  const Peer* const waited = missing(kOwners, &Peer::cleaned);
  if (waited != nullptr && !due(phase_since_ + options_.waits.cleanup_ms)) {
    if (!due(repeat_at_)) return;
    ask(kOwners, &Peer::cleaned, Cleanup{record_.attempt});
    repeat_at_ = now_ + options_.waits.repeat_ms;
    due(repeat_at_);
    return;
  }
  if (waited != nullptr) {
    note(name_of(*waited) + " has not cleaned up after " + attempt_text() +
         "; it goes on by itself");
  }
  if (record_.state != AttemptState::kCommitted) return after_failure();
  enter(Phase::kGather);
}

void Coordinator::Machine::after_failure() {
  if (options_.abort_transition) {
    release_receivers();
    return enter(Phase::kRefuse);
  }
  // An engine that was retired leaves the others as many attempts again.
  const std::uint64_t attempts_max = options_.waits.attempts_max * (retired_ ? 2 : 1);
  const bool given_up = attempts_ >= attempts_max;
  if (given_up) {
    DCR_PROBE("a transition is given up");
    emit(OperatorNeeded{std::to_string(attempts_) +
                        " attempts failed, the last one: " + failure_.message() + "; version " +
                        std::to_string(record_.base.version) + " stays committed"});
  }
  if (given_up || (rejected_ && !record_.dirty())) {
    end_refits(failure_of(failure_),
               [this](const AskedRefit& asked) { return bound_candidate(asked); });
    release_receivers();
  }
  enter(Phase::kGather);
}

// No retry follows: gates of receivers to which nothing was written may open again.
void Coordinator::Machine::release_receivers() {
  for (const Peer& peer : peers_) {
    if (peer.role == Role::kReceiver && !peer.gone) send(peer.endpoint, Look{});
  }
}

// An operator ended the transition: whoever asks hears so, for as long as owners may take to find
// who leads.
void Coordinator::Machine::refuse() {
  const Failure aborted = failure_of({Code::kCancelled, "an operator aborted the transition"});
  end_refits(aborted, [this](const AskedRefit& asked) {
    return record_.state != AttemptState::kCommitted || !bound_candidate(asked);
  });
  if (due(phase_since_ + options_.waits.leader_ms)) end({});
}

bool Coordinator::Machine::bound_candidate(const AskedRefit& asked) const {
  return std::any_of(peers_.begin(), peers_.end(), [&asked](const Peer& peer) {
    return peer.endpoint == asked.owner && peer.candidate == asked.request.candidate;
  });
}

void Coordinator::Machine::end_refits(const std::optional<Failure>& failure,
                                      const std::function<bool(const AskedRefit&)>& ends) {
  std::vector<std::string> without;
  for (const Peer& peer : peers_) {
    if (!failure && peer.without_baseline) without.push_back(peer.endpoint.name);
  }
  if (answered_.size() + asked_.size() > kEndpointsMax) answered_.clear();
  for (auto asked = asked_.begin(); asked != asked_.end();) {
    if (!ends(asked->second)) {
      ++asked;
      continue;
    }
    const RefitRequest& request = asked->second.request;
    const RefitEnded ended{request.candidate, committed_,   failure,      attempts_,
                           without,           request.call, closed_early_};
    answered_[asked->first] = ended;
    send(asked->second.owner, ended);
    asked = asked_.erase(asked);
  }
  gathered_.reset();
  attempts_ = 0;
  retired_ = rejected_ = false;
  closed_early_.reset();
}

}  // namespace dcr
