#include <algorithm>
#include <utility>

#include "base/probe.h"
#include "protocol/owner_machine.h"

namespace dcr {

void OwnerEndpoint::Machine::form_candidate() {
  if (!refit_ || refit_->candidate) return;
  const bool same = refit_->call.same_candidate && last_candidate_;
  if (!same) last_candidate_ = Candidate{incarnation(), ++counter_};
  refit_->candidate = last_candidate_;
  send_leader(refit_request());
}

RefitRequest OwnerEndpoint::Machine::refit_request() const {
  return {*refit_->candidate, refit_->call.label, baseline_, refit_->call.asynchronous,
          refit_->number};
}

bool OwnerEndpoint::Machine::binds_candidate(const TransitionRecord& transition) const {
  return std::any_of(transition.owners.begin(), transition.owners.end(),
                     [this](const OwnerBinding& binding) {
                       return binding.endpoint == self() && binding.candidate == refit_->candidate;
                     });
}

// K is what this owner reads itself, whatever it is told and whoever leads.
void OwnerEndpoint::Machine::look_at_commit() {
  const TransitionRecord& transition = records().transition;
  const bool just_committed =
      transition.state == AttemptState::kCommitted && transition.attempt == committed().baseline;
  if (refit_ && !refit_->committed) {
    const bool sent = prepared_ != 0 && prepared_ == committed().baseline &&
                      prepared_candidate_ == refit_->candidate;
    if (sent || (just_committed && binds_candidate(transition))) {
      refit_->committed = records().commit;
      refit_->committed_at = now_;
    }
  }
  if (!just_committed) return;
  const bool bound =
      std::any_of(transition.owners.begin(), transition.owners.end(),
                  [this](const OwnerBinding& binding) { return binding.endpoint == self(); });
  const bool known = baseline_ == committed() || prepared_ == committed().baseline ||
                     (updated_ && updated_->committed == committed());
  if (bound && !known) {
    without_baseline({Code::kMismatch, "",
                      options_.name + ": what was constructed for version " +
                          std::to_string(committed().version) + " is gone"});
  }
}

void OwnerEndpoint::Machine::without_baseline(Failure failure) {
  note("no baseline of version " + std::to_string(committed().version) +
       "; the next refit is dense: " + failure.message);
  baseline_.reset();
  digests_.reset();
  updated_ = BaselineUpdated{committed(), std::move(failure)};
  send_leader(*updated_);
}

bool OwnerEndpoint::Machine::update_due() const {
  return prepared_ != 0 && prepared_ == committed().baseline && baseline_ != committed();
}

void OwnerEndpoint::Machine::update_done(const OwnerWorkDone& done) {
  prepared_ = 0;
  baseline_.reset();
  digests_.reset();
  updated_ = BaselineUpdated{updating_, std::nullopt};
  if (done.status.ok()) {
    baseline_ = updating_;
  } else {
    note("no baseline of version " + std::to_string(updating_.version) +
         "; the next refit is dense: " + done.status.message());
    updated_->failure = failure_of(done.status);
  }
  send_leader(*updated_);
}

void OwnerEndpoint::Machine::on_message(const Endpoint& from, const Look& /*message*/) {
  session_.look();
  // Who took over may not know what this owner has told another.
  if (updated_ && updated_->committed == committed()) send(from, *updated_);
}

void OwnerEndpoint::Machine::on_message(const Endpoint& /*from*/, const RefitEnded& message) {
  if (!refit_ || message.candidate != refit_->candidate || refit_->failing) return;
  // Of an earlier refit of the same candidate.
  if (message.call != refit_->number && (message.call != 0 || message.failure)) return;
  refit_->ended = message;
  refit_->ended_call = called_;
  session_.look();
}

// The refit ends when its outcome is final, by what this owner has read after a coordinator said
// so: that one may have lost its leadership, and another be about to commit.
void OwnerEndpoint::Machine::advance_refit() {
  if (!refit_) return;
  if (refit_->committed) {
    const bool updated = updated_ && updated_->committed == refit_->committed->id;
    const bool told = refit_->ended && !refit_->ended->failure;
    const bool overdue = now_ >= refit_->committed_at + options_.waits.baseline_ms;
    if (overdue) DCR_PROBE("a refit ends without all baselines");
    if ((updated && told) || overdue) finish_refit({});
    return;
  }
  if (!refit_->failing) {
    if (!refit_->ended || read_call_ <= refit_->ended_call) return;
    const TransitionRecord& transition = records().transition;
    const bool active = transition.state == AttemptState::kActive && binds_candidate(transition);
    if (!refit_->ended->failure || active) {
      DCR_PROBE("a coordinator ends a refit that goes on");
      refit_->ended.reset();
      return;
    }
    refit_->failing = true;  // from here on no attempt gets its candidate
    if (current_) drop_current(false);
  }
  if (constructing() || stopping_ != 0 || stop_next_ != 0) return;
  finish_refit(status_of(*refit_->ended->failure));
}

CommitRecord OwnerEndpoint::Machine::known_commit() const {
  return session_.records() ? records().commit : CommitRecord();
}

void OwnerEndpoint::Machine::finish_refit(Status status, bool barred) {
  RefitFinished finished;
  finished.barred = barred;
  finished.status = std::move(status);
  finished.committed = refit_->committed ? *refit_->committed : known_commit();
  finished.attempts = refit_->attempts;
  if (refit_->ended) {
    finished.attempts = refit_->ended->attempts;
    finished.without_baseline = refit_->ended->without_baseline;
    finished.gate_closed_early = refit_->ended->gate_closed_early;
  }
  // What others heard of this owner may be late.
  std::erase(finished.without_baseline, options_.name);
  if (refit_->committed && baseline_ != refit_->committed->id) {
    finished.without_baseline.push_back(options_.name);
    std::sort(finished.without_baseline.begin(), finished.without_baseline.end());
  }
  refit_.reset();
  emit(std::move(finished));
}

}  // namespace dcr
