#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "protocol/owner_machine.h"

namespace dcr {
namespace {

constexpr VersionId kBase;

std::string text_of(VersionId id) {
  return "version " + std::to_string(id.version) + " of attempt " + std::to_string(id.baseline);
}

// One entry of each endpoint, the newest.
void add_waiting(std::vector<Endpoint>* waiting, const Endpoint& who) {
  std::erase_if(*waiting, [&](const Endpoint& other) { return other.name == who.name; });
  if (waiting->size() < kEndpointsMax) waiting->push_back(who);
}

}  // namespace

void OwnerEndpoint::Machine::run(Kind kind, std::uint64_t number, OwnerEffect effect) {
  DCR_ASSERT(!running_);
  running_ = Running{kind, number};
  emit(std::move(effect));
}

void OwnerEndpoint::Machine::begin_stop() {
  if (stop_next_ == 0 || stopping_ != 0 || now_ < stop_at_) return;
  stopping_ = std::exchange(stop_next_, 0);
  emit(StopSending{stopping_});
}

// What the trainer and the coordinator wait for comes before what receivers ask for.
void OwnerEndpoint::Machine::begin_work() {
  if (running_ || stopping_ != 0 || stop_next_ != 0) return;
  if (update_due()) {
    updating_ = committed();
    return run(Kind::kUpdateBaseline, updating_.version, UpdateBaseline{updating_.version});
  }
  if (session_.barred() || begin_removal()) return;
  begin_construction();
  if (!running_) begin_service();
}

void OwnerEndpoint::Machine::stop_sending(std::uint64_t attempt) {
  stop_next_ = std::max(stop_next_, attempt);
  if (stopping_ != 0) return;
  stopping_ = std::exchange(stop_next_, 0);
  emit(StopSending{stopping_});
}

void OwnerEndpoint::Machine::stop_done(const OwnerWorkDone& done) {
  if (stopping_ == 0) return;
  const std::uint64_t attempt = std::exchange(stopping_, 0);
  if (!done.status.ok()) {
    note("attempt " + std::to_string(attempt) + " is not stopped yet: " + done.status.message());
    stop_next_ = std::max(stop_next_, attempt);
    stop_at_ = now_ + options_.waits.repeat_ms;
    return;
  }
  if (prepared_ <= attempt) prepared_ = 0;
}

// The last attempt of which nothing is needed any more, and of which this life sends nothing any
// more: a prepare up to the fence comes too late.
std::uint64_t OwnerEndpoint::Machine::last_over() const {
  const TransitionRecord& last = records().transition;
  const bool active = last.state == AttemptState::kActive;
  const std::uint64_t over = std::min(fence_, active ? last.attempt - 1 : last.attempt);
  const bool stands = current_ && current_->prepare.attempt <= over &&
                      committed().baseline != current_->prepare.attempt;
  return stands ? current_->prepare.attempt - 1 : over;
}

// Removes what attempts left behind: those that the coordinator names; when no refit is open here,
// all that are over, whether or not a coordinator ever asked for it; and before an attempt's first
// payload whatever else a crash kept earlier ones from removing.
bool OwnerEndpoint::Machine::begin_removal() {
  std::uint64_t attempt = removal_wanted_;
  if (!refit_ && now_ >= removal_at_) attempt = std::max(attempt, last_over());
  const bool begins = current_ && !current_->begun && !current_->failed && !current_->swept;
  if (begins && committed() == current_->prepare.base) {
    current_->swept = true;
    attempt = std::max(attempt, current_->prepare.attempt - 1);
  }
  if (attempt <= removed_) return false;
  run(Kind::kRemovePayloads, attempt, RemovePayloads{attempt});
  return true;
}

void OwnerEndpoint::Machine::removal_done(const OwnerWorkDone& done) {
  if (!done.status.ok()) {
    note("payloads up to attempt " + std::to_string(done.number) +
         " stay for now: " + done.status.message());
    removal_wanted_ = 0;  // the coordinator asks again
    removal_at_ = now_ + options_.waits.repeat_ms;
    return;
  }
  removed_ = std::max(removed_, done.number);
  if (removal_wanted_ == 0 || removal_wanted_ > removed_) return;
  send(removal_for_, CleanedUp{removal_wanted_});
  removal_wanted_ = 0;
}

bool OwnerEndpoint::Machine::restores_left() const {
  const std::uint64_t version = committed().version;
  if (!restores_kept_from_) return version > 0;
  return restores_sent_ && *restores_kept_from_ < version;
}

void OwnerEndpoint::Machine::begin_service() {
  const std::uint64_t version = committed().version;
  if (restores_left() && now_ >= removal_at_) {
    restores_kept_from_ = version;
    restores_sent_ = false;
    return run(Kind::kRemoveRestores, version, RemoveRestores{version});
  }
  if (restore_wanted_) {
    const VersionId wanted = *std::exchange(restore_wanted_, std::nullopt);
    if (wanted == committed() && wanted == baseline_) {
      restores_sent_ = true;
      restoring_ = wanted;
      return run(Kind::kSendBaseline, wanted.version, SendBaseline{wanted});
    }
    answer_restores({wanted, 0,
                     Failure{Code::kMismatch, "",
                             options_.name + ": " + text_of(committed()) + " is committed now"}});
  }
  if (!digesters_.empty()) {
    if (baseline_ == kBase) return run(Kind::kDigestBase, 0, DigestBase{});
    answer_digests({{}, Failure{Code::kMismatch, "", options_.name + " has the base no more"}});
  }
  begin_sample();
}

void OwnerEndpoint::Machine::restores_removed(const OwnerWorkDone& done) {
  if (done.status.ok()) return;
  note("old restore streams stay for now: " + done.status.message());
  restores_kept_from_.reset();
  removal_at_ = now_ + options_.waits.repeat_ms;
}

void OwnerEndpoint::Machine::on_message(const Endpoint& from, const RestoreRequest& message) {
  const VersionId wanted = message.version;
  // It may have read the records later; it asks again.
  if (wanted.version > committed().version) return session_.look();
  const auto refuse = [&](std::string why) {
    send(from, RestoreSent{wanted, 0,
                           Failure{Code::kMismatch, "", options_.name + ": " + std::move(why)}});
  };
  if (wanted != committed()) {
    return refuse(text_of(wanted) + " is asked for, and " + text_of(committed()) + " is committed");
  }
  if (restore_sent_ && restore_sent_->version == wanted) return send(from, *restore_sent_);
  const bool updating = running_ && running_->kind == Kind::kUpdateBaseline;
  if (update_due() || updating) return;  // soon
  if (baseline_ != wanted) {
    return refuse("there is no baseline of " + text_of(wanted) +
                  "; there will be one after the next commit");
  }
  add_waiting(&restorers_, from);
  const bool sending = running_ && running_->kind == Kind::kSendBaseline && restoring_ == wanted;
  if (!sending) restore_wanted_ = wanted;
}

void OwnerEndpoint::Machine::restore_done(const OwnerWorkDone& done) {
  if (!done.status.ok()) {
    return answer_restores({restoring_, 0, failure_of(done.status)});
  }
  restore_sent_ = RestoreSent{restoring_, done.payloads, std::nullopt};
  answer_restores(*restore_sent_);
}

void OwnerEndpoint::Machine::answer_restores(const RestoreSent& answer) {
  for (const Endpoint& receiver : restorers_) send(receiver, answer);
  restorers_.clear();
}

void OwnerEndpoint::Machine::on_message(const Endpoint& from,
                                        const BaseDigestsRequest& /*message*/) {
  if (digests_) return send(from, BaseDigests{*digests_, std::nullopt});
  add_waiting(&digesters_, from);
}

// One that cannot be answered is told nothing: the receiver asks another owner after a while, and
// compares less.
void OwnerEndpoint::Machine::on_message(const Endpoint& from, const SampleRequest& message) {
  std::erase_if(samplers_, [&](const Sampler& other) { return other.who.name == from.name; });
  if (samplers_.size() < kEndpointsMax) samplers_.push_back({from, message});
}

void OwnerEndpoint::Machine::begin_sample() {
  std::erase_if(samplers_, [this](const Sampler& sampler) {
    return sampler.request.version != committed() || sampler.request.version != baseline_;
  });
  if (samplers_.empty()) return;
  sampled_for_ = samplers_.front();
  samplers_.erase(samplers_.begin());
  const SampleRequest& request = sampled_for_.request;
  run(Kind::kSampleBaseline, request.version.version,
      SampleBaseline{request.version, request.seed});
}

void OwnerEndpoint::Machine::sample_done(const OwnerWorkDone& done) {
  if (!done.status.ok()) return note("no sample of the baseline: " + done.status.message());
  send(sampled_for_.who, Sample{sampled_for_.request.version, done.sample});
}

void OwnerEndpoint::Machine::digests_done(const OwnerWorkDone& done) {
  if (!done.status.ok()) return answer_digests({{}, failure_of(done.status)});
  digests_ = done.digests;
  answer_digests({*digests_, std::nullopt});
}

void OwnerEndpoint::Machine::answer_digests(const BaseDigests& answer) {
  for (const Endpoint& receiver : digesters_) send(receiver, answer);
  digesters_.clear();
}

}  // namespace dcr
