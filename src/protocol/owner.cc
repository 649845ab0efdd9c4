#include "protocol/owner.h"

#include <algorithm>
#include <utility>

#include "protocol/owner_machine.h"

namespace dcr {
namespace {

// The session numbers its calls from 1.
constexpr std::uint64_t kFinalCall = ~std::uint64_t{0};

MemberOptions member_options(const OwnerEndpointOptions& options) {
  return {options.name, Role::kOwner, "", options.waits};
}

}  // namespace

OwnerEndpoint::OwnerEndpoint(OwnerEndpointOptions options, std::optional<VersionId> baseline)
    : machine_(std::make_unique<Machine>(std::move(options), baseline)) {}
OwnerEndpoint::~OwnerEndpoint() = default;
OwnerEndpoint::OwnerEndpoint(OwnerEndpoint&&) noexcept = default;
OwnerEndpoint& OwnerEndpoint::operator=(OwnerEndpoint&&) noexcept = default;

void OwnerEndpoint::step(const OwnerEvent& event, Milliseconds now,
                         std::vector<OwnerEffect>* effects) {
  machine_->step(event, now, effects);
}
Milliseconds OwnerEndpoint::wake_at() const { return machine_->wake_at(); }
std::uint64_t OwnerEndpoint::incarnation() const { return machine_->incarnation(); }
StatusReply OwnerEndpoint::status() const { return machine_->status(); }

OwnerEndpoint::Machine::Machine(OwnerEndpointOptions options, std::optional<VersionId> baseline)
    : options_(std::move(options)), session_(member_options(options_)), baseline_(baseline) {}

void OwnerEndpoint::Machine::step(const OwnerEvent& event, Milliseconds now,
                                  std::vector<OwnerEffect>* effects) {
  if (ended_) return;
  now_ = now;
  effects_ = effects;
  std::visit([this](const auto& it) { on(it); }, event);
  advance();
  effects_ = nullptr;
}

void OwnerEndpoint::Machine::on(const Started& /*event*/) { session_.start(now_); }

void OwnerEndpoint::Machine::on(const TimePassed& /*event*/) {}

void OwnerEndpoint::Machine::on(const MessageArrived& event) {
  if (!session_.enrolled()) return;
  if (std::holds_alternative<StatusRequest>(event.message)) return send(event.from, status());
  if (session_.barred()) return;
  std::visit([&](const auto& message) { on_message(event.from, message); }, event.message);
}

void OwnerEndpoint::Machine::on(const ControlAnswered& event) {
  if (event.call == kFinalCall) {
    final_called_ = false;
    if (event.reply.status.ok()) {
      final_ = control_value<ControlRecords>(event.reply);
    } else {
      final_at_ = now_ + options_.waits.repeat_ms;
    }
    return;
  }
  session_.answered(event, now_);
  const auto& value = event.reply.value;
  const bool brought = std::holds_alternative<ControlRecords>(value) ||
                       std::holds_alternative<Enrolment>(value) ||
                       std::holds_alternative<Joined>(value);
  if (event.reply.status.ok() && brought) read_call_ = event.call;
  if (!session_.enrolled() || join_asked_) return;
  join_asked_ = true;
  fence_ = records().transition.attempt;
  session_.join(std::nullopt, encode_owner_details(options_.details));
}

void OwnerEndpoint::Machine::on(const OwnerProgress& event) {
  if (!current_) return;
  current_->progressed = true;
  const bool ours = constructing() && running_->number == current_->prepare.attempt;
  if (!ours || event.payloads_sent <= current_->payloads) return;
  current_->payloads = event.payloads_sent;
  send_hints(false);
}

void OwnerEndpoint::Machine::on(const OwnerWorkDone& event) {
  if (event.kind == Kind::kStopSending) return stop_done(event);
  if (!running_ || running_->kind != event.kind) return;
  running_.reset();
  switch (event.kind) {
    case Kind::kConstructAndSend:
      return construction_done(event);
    case Kind::kUpdateBaseline:
      return update_done(event);
    case Kind::kSendBaseline:
      return restore_done(event);
    case Kind::kDigestBase:
      return digests_done(event);
    case Kind::kSampleBaseline:
      return sample_done(event);
    case Kind::kRemovePayloads:
      return removal_done(event);
    case Kind::kRemoveRestores:
      return restores_removed(event);
    case Kind::kStopSending:
      return;
  }
}

void OwnerEndpoint::Machine::on(const RefitCalled& event) {
  refit_ = Refit();
  refit_->call = event;
  refit_->number = ++refits_;
}

void OwnerEndpoint::Machine::advance() {
  if (!session_.failure().ok()) return end(session_.failure());
  if (join_asked_) {
    form_candidate();
    look_at_commit();
    begin_stop();
    if (session_.barred()) {
      end_barred();
    } else {
      advance_refit();
      begin_work();
      answer_stops();
    }
  }
  if (ended_) return;
  repeat();
  call_control();
}

// What is said again until it is answered: about the refit to whoever leads, about the attempt to
// its coordinator.
bool OwnerEndpoint::Machine::standing() const {
  if (!join_asked_ || session_.barred()) return false;
  return refit_ || (current_ && committed().baseline != current_->prepare.attempt);
}

void OwnerEndpoint::Machine::repeat() {
  if (!standing()) {
    repeat_at_ = kNever;
    return;
  }
  if (repeat_at_ == kNever) repeat_at_ = now_ + options_.waits.repeat_ms;
  if (now_ < repeat_at_) return;
  repeat_at_ = now_ + options_.waits.repeat_ms;
  if (refit_ && !refit_->committed && !refit_->failing) send_leader(refit_request());
  if (refit_ && refit_->committed && updated_ && updated_->committed == refit_->committed->id) {
    send_leader(*updated_);
  }
  if (current_ && committed().baseline != current_->prepare.attempt) repeat_attempt();
}

void OwnerEndpoint::Machine::repeat_attempt() {
  if (current_->failed) {
    send(current_->coordinator, *current_->failed);
  } else if (current_->sent) {
    send(current_->coordinator, *current_->sent);
    send_hints(true);
  } else if (std::exchange(current_->progressed, false)) {
    send(current_->coordinator, Prepared{current_->prepare.attempt});  // it goes on
  }
}

void OwnerEndpoint::Machine::call_control() {
  std::optional<CallControl> call = session_.next_call(now_);
  if (!call) return;
  called_ = call->call;
  emit(*std::move(call));
}

// Nothing that it sent counts any more, except what is committed already: this incarnation is bound
// by no later attempt, so the outcome of its refit is final.
void OwnerEndpoint::Machine::end_barred() {
  if (!final_) {
    if (final_called_ || now_ < final_at_) return;
    final_called_ = true;
    return emit(CallControl{kFinalCall, ReadRequest{}});
  }
  if (update_due()) {
    begin_work();
    return;
  }
  if (current_) drop_current(false);
  if (running_ || stopping_ != 0 || stop_next_ != 0) return begin_work();
  end({Code::kConflict, options_.name + " (incarnation " + std::to_string(incarnation()) +
                            ") is barred: another one has taken its place, or it was silent for "
                            "too long; it starts anew with the baseline that it has"});
}

void OwnerEndpoint::Machine::end(Status status) {
  if (refit_) {
    if (refit_->committed) {
      finish_refit({});
    } else if (!refit_->candidate) {
      // Nobody has heard of it.
      finish_refit(status, status.code() == Code::kConflict);
    } else if (final_ && !outcome_unknown()) {
      finish_refit({Code::kConflict, options_.name +
                                         " was barred during the refit, and nothing of it can be "
                                         "committed any more: call refit again"},
                   true);
    } else {
      finish_refit({Code::kUnknownOutcome,
                    options_.name + " ended before it knew whether the refit was committed: " +
                        status.message()});
    }
  }
  ended_ = true;
  emit(Ended{std::move(status)});
}

// Whether some attempt may have committed the refit that later ones have hidden.
bool OwnerEndpoint::Machine::outcome_unknown() const {
  return refit_->sent_base && committed().version > refit_->sent_base->version + 1;
}

void OwnerEndpoint::Machine::send(const Endpoint& to, Message message) {
  emit(SendMessage{to.name, to.incarnation, std::move(message)});
}

void OwnerEndpoint::Machine::send_leader(Message message) {
  const Endpoint& leader = records().leader.holder;
  if (!leader.name.empty()) send(leader, std::move(message));
}

Milliseconds OwnerEndpoint::Machine::wake_at() const {
  if (ended_) return kNever;
  Milliseconds at = std::min(session_.wake_at(), repeat_at_);
  if (refit_ && refit_->committed) {
    at = std::min(at, refit_->committed_at + options_.waits.baseline_ms);
  }
  if (stop_next_ != 0 && stopping_ == 0) at = std::min(at, stop_at_);
  if (removal_at_ > now_) at = std::min(at, removal_at_);
  if (session_.barred() && !final_ && !final_called_) at = std::min(at, final_at_);
  return at;
}

std::string OwnerEndpoint::Machine::state() const {
  if (ended_) return "ended";
  if (!join_asked_) return "enrolling";
  if (session_.barred()) return "barred";
  if (stopping_ != 0 || stop_next_ != 0) return "stopping";
  if (running_ && running_->kind == Kind::kUpdateBaseline) return "updating_baseline";
  if (running_ && running_->kind == Kind::kSendBaseline) return "restoring_receivers";
  if (constructing()) return "constructing";
  if (refit_ && refit_->committed) return "committed";
  if (current_ && current_->failed) return "failed";
  if (current_ && current_->sent && committed().baseline != current_->sent->attempt) return "sent";
  if (current_ && !current_->begun) return "prepared";
  return refit_ ? "waits_for_coordinator" : "idle";
}

StatusReply OwnerEndpoint::Machine::status() const {
  StatusReply reply;
  reply.state = state();
  reply.held = baseline_;
  if (current_) reply.attempt = current_->prepare.attempt;
  if (reply.state == "failed") reply.detail = current_->failed->failure.message;
  if (reply.state == "constructing" && current_) {
    reply.detail = std::to_string(current_->payloads) + " payloads are sent";
  }
  if (reply.state == "waits_for_coordinator") {
    const std::string leader = session_.leader();
    reply.detail = leader.empty() ? "nobody leads" : leader + " leads and has to begin";
  }
  if (reply.state == "committed") {
    reply.detail = "the refit is committed; the other owners update their baselines";
  }
  return reply;
}

}  // namespace dcr
