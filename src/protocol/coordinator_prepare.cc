// Owners' requests, and what the next attempt waits for before it is prepared.
#include <algorithm>
#include <tuple>
#include <utility>

#include "base/probe.h"
#include "protocol/coordinator_machine.h"

namespace dcr {

namespace {

template <typename Message>
auto order(const Message& message) {
  return std::make_tuple(message.candidate.incarnation, message.call, message.candidate.counter);
}

}  // namespace

void Coordinator::Machine::on_message(const Endpoint& from, const RefitRequest& message) {
  if (message.candidate.incarnation != from.incarnation) return;
  const auto answered = answered_.find(from.name);
  if (answered != answered_.end() && order(message) <= order(answered->second)) {
    // That answer was lost.
    if (order(message) == order(answered->second)) send(from, answered->second);
    return;
  }
  const auto asked = asked_.find(from.name);
  if (asked != asked_.end()) {
    const RefitRequest& last = asked->second.request;
    if (order(message) < order(last) || message == last) return;
  } else if (asked_.size() >= kEndpointsMax) {
    return;
  }
  asked_[from.name] = {from, message};
  gathered_.reset();
  // It may have joined since.
  if (living_member(members_, from) == nullptr) session_.look();
  // An owner that knows of the commit has its baseline, whatever became of its word.
  Peer* const peer = find_peer(from);
  if (phase_ == Phase::kBaseline && peer != nullptr && message.baseline == committed_.id) {
    peer->updated = true;
  }
}

void Coordinator::Machine::on_message(const Endpoint& from, const Refused& message) {
  const auto known = refused_.find(from.name);
  if (known == refused_.end() && refused_.size() >= kEndpointsMax) return;
  if (known != refused_.end() && known->second.receiver.incarnation > from.incarnation) return;
  heard_at_[from.name] = now_;
  if (known != refused_.end() && known->second.receiver == from) return;
  refused_[from.name] = {from, message.failure};
  note(from.name + " takes no part: " + message.failure.message);
  gathered_.reset();
  // It may have enrolled since.
  if (living_member(members_, from) == nullptr) members_wanted_ = true;
}

// A receiver that says so no more may be gone, and another in its place.
void Coordinator::Machine::forget_silent_refusals() {
  for (auto heard = heard_at_.begin(); heard != heard_at_.end();) {
    if (!due(heard->second + options_.waits.leader_ms)) {
      ++heard;
      continue;
    }
    refused_.erase(heard->first);
    heard = heard_at_.erase(heard);
    gathered_.reset();
  }
}

// Whether the same is waited for since so long.
bool Coordinator::Machine::stands(const std::string& what, Milliseconds how_long) {
  if (stands_ != what) {
    stands_ = what;
    stands_since_ = now_;
    operator_called_ = false;
  }
  return how_long != kNever && due(stands_since_ + how_long);
}

void Coordinator::Machine::gather() {
  forget_silent_refusals();
  if (members_wanted_) return;
  const Waits& waits = options_.waits;
  if (!gathered_) gathered_ = gather_refit(members_, asked_, refused_);
  if (!gathered_->ended.empty()) {
    const std::vector<std::string> owners = gathered_->ended;
    end_refits(std::nullopt, [&owners](const AskedRefit& asked) {
      return std::find(owners.begin(), owners.end(), asked.owner.name) != owners.end();
    });
    gathered_ = gather_refit(members_, asked_, refused_);
  }
  const Gathered& gathered = *gathered_;
  if (!gathered.asked) {
    stands(gathered.waits_for, kNever);
  } else if (!gathered.unfit.empty()) {
    note("no attempt can bind " + gathered.unfit_why);
    bar(with_engines(members_, gathered.unfit), Phase::kGather);
  } else if (!gathered.waits_for.empty()) {
    if (!stands(gathered.waits_for, waits.prepare_ms) || operator_called_) return;
    if (gathered.no_engine) {
      const Failure failure = *gathered.no_engine;
      return end_refits(failure, [](const AskedRefit& /*asked*/) { return true; });
    }
    operator_called_ = true;
    emit(OperatorNeeded{"a refit waits for " + gathered.waits_for});
  } else if (!gathered.unfed.empty()) {
    if (!stands("node " + gathered.unfed_node + " to join", waits.prepare_ms)) return;
    note("node " + gathered.unfed_node + " does not join; the receivers that it feeds are retired");
    bar(with_engines(members_, gathered.unfed), Phase::kGather);
  } else if (gathered.refused) {
    if (!stands("owners to agree: " + gathered.refused->message, waits.prepare_ms)) return;
    const Failure failure = *gathered.refused;
    end_refits(failure, [](const AskedRefit& /*asked*/) { return true; });
  } else if (!held()) {
    prepare_ = gathered.prepare;
    PrepareRequest request = gathered.request;
    request.token = token_;
    held_ = gathered.overtaken;
    hold_until_.reset();
    want(std::move(request));
    enter(Phase::kPrepare);
  }
}

// Whether the attempt waits for a receiver that a commit has overtaken: once for each time.
bool Coordinator::Machine::held() {
  for (const auto& [name, times] : gathered_->overtaken) {
    const auto before = held_.find(name);
    if (before != held_.end() && before->second >= times) continue;
    DCR_PROBE("a prepare is held back for a join that was overtaken");
    if (!hold_until_) hold_until_ = now_ + options_.waits.join_hold_ms;
    stands(name + " to restore, which a commit has overtaken", kNever);
    return !due(*hold_until_);
  }
  return false;
}

void Coordinator::Machine::prepare_answered(const ControlReply& reply) {
  if (!reply.status.ok()) {
    // It was not done: the same call again, after an unknown outcome, would have said so.
    note("prepares anew: " + reply.status.message());
    return enter(Phase::kGather);
  }
  begin_attempt(control_value<TransitionRecord>(reply));
}

void Coordinator::Machine::begin_attempt(const TransitionRecord& record) {
  record_ = record;
  set_peers(record);
  ++attempts_;
  closing_ = opening_ = open_ = flushing_ = staging_full_ = rejected_ = false;
  failure_ = {};
  prepare_.attempt = record.attempt;
  prepare_.base = record.base;
  prepare_.label = record.label;
  prepare_.mode = record.mode;
  prepare_.digest = record.digest;
  prepare_.nodes = record.nodes;
  std::size_t fit = 0;
  for (OwnerBinding& owner : prepare_.owners) {
    for (const OwnerBinding& binding : record.owners) {
      if (binding.endpoint != owner.endpoint) continue;
      owner = binding;
      ++fit;
    }
  }
  for (const Prepare::Receiver& receiver : prepare_.receivers) {
    Peer* const peer = find_peer(receiver.endpoint);
    if (peer == nullptr) continue;
    peer->engine = receiver.engine;
    ++fit;
  }
  enter(Phase::kAttempt);
  progress_at_ = now_;
  remind_at_ = now_ + options_.waits.look_ms;
  if (fit != record.owners.size() + record.receivers.size() ||
      fit != prepare_.owners.size() + prepare_.receivers.size()) {
    return fail_attempt({Code::kInternal, "it binds others than it was made for"}, false);
  }
  note(attempt_text() + " is prepared: " + attempt_mode_name(record.mode) +
       (prepare_.asynchronous ? ", asynchronous, " : ", ") + std::to_string(record.owners.size()) +
       " owners, " + std::to_string(record.nodes.size()) + " nodes, " +
       std::to_string(record.receivers.size()) + " receivers");
}

}  // namespace dcr
