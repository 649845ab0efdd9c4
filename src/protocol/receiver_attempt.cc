// Attempts at a receiver: fences, what may be accepted, gate, application, stop (docs/PROTOCOL.md
// "Receiver").
#include <algorithm>
#include <utility>

#include "base/mutant.h"
#include "base/probe.h"
#include "protocol/receiver_machine.h"

namespace dcr {
namespace {

// Coordinators that wait for an answer; others ask again.
constexpr std::size_t kReceiverStopsMax = 8;

// Whether what all receivers get of a tensor is enough for one that asked for `mine`.
bool satisfies(Need all, Need mine) {
  switch (mine) {
    case Need::kAny:
      return all != Need::kSkip;
    case Need::kOverwrite:
      return all == Need::kOverwrite || all == Need::kDense;
    case Need::kDense:
      return all == Need::kDense;
    case Need::kSkip:
      return true;
  }
  return false;
}

Status check_needs(const std::vector<Need>& all, const std::vector<Need>& mine,
                   std::uint64_t attempt) {
  const std::string name = "attempt " + std::to_string(attempt);
  if (!all.empty() && !mine.empty() && all.size() != mine.size()) {
    return {Code::kMismatch, name + " counts " + std::to_string(all.size()) +
                                 " canonical tensors; this receiver knows " +
                                 std::to_string(mine.size())};
  }
  for (std::size_t i = 0; i < std::max(all.size(), mine.size()); ++i) {
    if (satisfies(all.empty() ? Need::kAny : all[i], mine.empty() ? Need::kAny : mine[i])) continue;
    return {Code::kMismatch, name + " does not bring canonical tensor " + std::to_string(i) +
                                 " as this receiver needs it"};
  }
  return {};
}

}  // namespace

Status ReceiverEndpoint::Machine::check_prepare(const Prepare& prepare, Attempt* attempt) const {
  const std::string name = "attempt " + std::to_string(prepare.attempt);
  if (prepare.owners.size() != options_.owners.size()) {
    return {Code::kMismatch, name + " has " + std::to_string(prepare.owners.size()) +
                                 " owners; this receiver knows " +
                                 std::to_string(options_.owners.size())};
  }
  for (const Endpoint& node : prepare.nodes) {
    if (node.name == options_.details.node) attempt->node = node;
  }
  if (attempt->node.incarnation == 0) {
    return {Code::kMismatch,
            name + " does not bind node " + options_.details.node + ", which feeds this receiver"};
  }
  DCR_TRY(check_needs(prepare.needs, options_.details.needs, prepare.attempt));
  return resident_.check(prepare);
}

void ReceiverEndpoint::Machine::on_prepare(const Endpoint& from, const Prepare& prepare) {
  if (life_ != Life::kReady) return;
  const bool bound = std::any_of(prepare.receivers.begin(), prepare.receivers.end(),
                                 [this](const Prepare::Receiver& each) {
                                   return each.endpoint == Endpoint{options_.name, incarnation_};
                                 });
  if (!bound) return;
  if (Attempt* const again = current(prepare.attempt, from)) {
    if (again->state == Attempt::State::kPrepared || again->state == Attempt::State::kFinished) {
      send(from, Prepared{prepare.attempt});
    }
    return;
  }
  if (prepare.attempt <= fence_ && !DCR_MUTANT("receiver_without_fence")) return;
  if (finished_ == prepare.base) {
    // The attempt that was finished here was committed, it seems; K itself says so.
    DCR_PROBE("a receiver is asked for the next attempt before it has read the commit");
    offered_.emplace(from, prepare);
    session_.look();
    return;
  }
  if (attempt_) end_attempt();
  fence_ = prepare.attempt;
  attempt_ = Attempt();
  attempt_->number = prepare.attempt;
  attempt_->base = prepare.base;
  attempt_->mode = prepare.mode;
  attempt_->asynchronous = prepare.asynchronous;
  attempt_->owners = prepare.owners;
  attempt_->coordinator = from;
  if (const Status status = check_prepare(prepare, &*attempt_); !status.ok()) {
    return fail_attempt(status, true);
  }
  const bool any = prepare.mode == AttemptMode::kMixed || DCR_MUTANT("retry_encodes_mixed");
  begin_stream({false, prepare.attempt}, prepare.base, prepare.base.version + 1,
               any ? Pass::kAny : Pass::kOverwrites);
}

// The current attempt, if it is that one. One that failed says so again.
ReceiverEndpoint::Machine::Attempt* ReceiverEndpoint::Machine::current(std::uint64_t attempt,
                                                                       const Endpoint& from) {
  if (!attempt_ || attempt_->number != attempt) return nullptr;
  attempt_->coordinator = from;
  if (attempt_->state == Attempt::State::kFailed) attempt_->failed_at = now_;
  return &*attempt_;
}

void ReceiverEndpoint::Machine::on_close_gate(const Endpoint& from, const CloseGate& message) {
  Attempt* const attempt = current(message.attempt, from);
  if (attempt == nullptr || attempt->state == Attempt::State::kFailed) return;
  attempt->close = true;
  attempt->gate_told = false;
  gate_.close(now_);
}

void ReceiverEndpoint::Machine::on_open_apply(const Endpoint& from, std::uint64_t number) {
  Attempt* const attempt = current(number, from);
  if (attempt == nullptr || attempt->open || attempt->state == Attempt::State::kFailed) return;
  // Nobody opens before every gate is closed. Writing all the same would be seen by requests.
  if (!gate_.closed()) {
    return fail_attempt(
        {Code::kInternal, "attempt " + std::to_string(number) + " was opened while gate " +
                              gate_.gate() + " is not known to be closed; nothing was written"},
        false);
  }
  attempt->open = true;
}

void ReceiverEndpoint::Machine::on_flush(const Endpoint& from, const Flush& message) {
  // Flushed after it was opened: that message may have been lost.
  on_open_apply(from, message.attempt);
  Attempt* const attempt = current(message.attempt, from);
  if (attempt == nullptr) return;
  if (attempt->state == Attempt::State::kFinished) {
    send(from, attempt->completed);
  } else if (attempt->state == Attempt::State::kPrepared && attempt->flush) {
    const std::string state = stream_state();
    send(from,
         Applying{attempt->number, attempt->applied, state.empty() ? "finishes what came" : state});
  }
  attempt->flush = true;
}

void ReceiverEndpoint::Machine::on_stop(const Endpoint& from, const StopAndWait& message) {
  fence_ = std::max(fence_, message.attempt);
  if (attempt_ && attempt_->number <= message.attempt) end_attempt();
  if (offered_ && offered_->second.attempt <= message.attempt) offered_.reset();
  const std::pair<Endpoint, std::uint64_t> stop(from, message.attempt);
  if (std::find(stops_.begin(), stops_.end(), stop) != stops_.end()) return;
  if (stops_.size() == kReceiverStopsMax) stops_.erase(stops_.begin());
  stops_.push_back(stop);
}

void ReceiverEndpoint::Machine::drive_attempt() {
  if (!attempt_->close || attempt_->gate_told || !gate_.closed()) return;
  if (attempt_->state == Attempt::State::kFailed) return;
  attempt_->gate_told = true;
  send(attempt_->coordinator, GateClosed{attempt_->number});
}

void ReceiverEndpoint::Machine::fail_attempt(const Status& status, bool rejected) {
  attempt_->state = Attempt::State::kFailed;
  attempt_->failed = {attempt_->number, rejected, failure_of(status)};
  attempt_->failed_at = now_;
  failed_ = "attempt " + std::to_string(attempt_->number) +
            (rejected ? " is rejected: " : " failed: ") + status.message();
  note(failed_);
  if (stream_ && stream_->audits) {
    gate_.explain(status.message());
    gate_.close_again(now_);
  }
  stop_stream();
}

// Without a commit. In the order of their retries, gates stay closed through all of them; where
// nothing was opened yet and requests go on during attempts, they go on now too.
void ReceiverEndpoint::Machine::end_attempt() {
  stop_stream();
  const bool unopened = attempt_->asynchronous && !attempt_->open;
  hold_until_ = unopened || gate_.proving() ? now_ : now_ + options_.waits.stop_ms;
  broken_until_ = now_ + options_.waits.restore_ms;
  attempt_.reset();
}

}  // namespace dcr
