#include "protocol/receiver.h"

#include <algorithm>
#include <utility>

#include "base/mutant.h"
#include "base/probe.h"
#include "protocol/receiver_machine.h"

namespace dcr {

using Kind = ReceiverWorkDone::Kind;

ReceiverEndpoint::ReceiverEndpoint(ReceiverEndpointOptions options)
    : machine_(std::make_unique<Machine>(std::move(options))) {}
ReceiverEndpoint::~ReceiverEndpoint() = default;
ReceiverEndpoint::ReceiverEndpoint(ReceiverEndpoint&&) noexcept = default;
ReceiverEndpoint& ReceiverEndpoint::operator=(ReceiverEndpoint&&) noexcept = default;

void ReceiverEndpoint::step(const ReceiverEvent& event, Milliseconds now,
                            std::vector<ReceiverEffect>* effects) {
  machine_->step(event, now, effects);
}
Milliseconds ReceiverEndpoint::wake_at() const { return machine_->wake_at(); }
std::uint64_t ReceiverEndpoint::incarnation() const { return machine_->incarnation(); }
StatusReply ReceiverEndpoint::status() const { return machine_->status(); }

namespace {

MemberOptions member_options(const ReceiverEndpointOptions& options) {
  return {options.name, Role::kReceiver, options.engine, options.waits};
}

}  // namespace

ReceiverEndpoint::Machine::Machine(ReceiverEndpointOptions options)
    : options_(std::move(options)),
      needs_(encode_receiver_details(options_.details)),
      session_(member_options(options_)),
      base_loaded_(options_.base_loaded),
      audit_(options_.audit),
      gate_(options_.engine, options_.engine_instance, options_.waits.repeat_ms) {
  DCR_ASSERT(!options_.owners.empty());
}

void ReceiverEndpoint::Machine::step(const ReceiverEvent& event, Milliseconds now,
                                     std::vector<ReceiverEffect>* effects) {
  if (ended_) return;
  now_ = now;
  effects_ = effects;
  std::visit([this](const auto& one) { on(one); }, event);
  if (!ended_) advance();
}

void ReceiverEndpoint::Machine::send(const Endpoint& to, Message message) {
  effects_->emplace_back(SendMessage{to.name, to.incarnation, std::move(message)});
}

void ReceiverEndpoint::Machine::note(std::string text) {
  effects_->emplace_back(Note{std::move(text)});
}

void ReceiverEndpoint::Machine::on(const MessageArrived& event) {
  if (incarnation_ == 0) return;
  const Endpoint& from = event.from;
  if (const auto* prepare = std::get_if<Prepare>(&event.message)) {
    on_prepare(from, *prepare);
  } else if (const auto* close = std::get_if<CloseGate>(&event.message)) {
    on_close_gate(from, *close);
  } else if (const auto* open = std::get_if<OpenApply>(&event.message)) {
    on_open_apply(from, open->attempt);
  } else if (const auto* flush = std::get_if<Flush>(&event.message)) {
    on_flush(from, *flush);
  } else if (const auto* stop = std::get_if<StopAndWait>(&event.message)) {
    on_stop(from, *stop);
  } else if (std::holds_alternative<Look>(event.message)) {
    session_.look();
    hold_until_ = now_;
  } else if (const auto* end = std::get_if<OwnerEnd>(&event.message)) {
    on_owner_end(from, *end);
  } else if (const auto* failed = std::get_if<StreamFailed>(&event.message)) {
    on_stream_failed(from, *failed);
  } else if (const auto* sent = std::get_if<RestoreSent>(&event.message)) {
    on_restore_sent(from, *sent);
  } else if (const auto* digests = std::get_if<BaseDigests>(&event.message)) {
    on_base_digests(from, *digests);
  } else if (const auto* sample = std::get_if<Sample>(&event.message)) {
    on_sample(from, *sample);
  } else if (const auto* closed = std::get_if<GateIsClosed>(&event.message)) {
    gate_.closed_by(from, *closed);
  } else if (const auto* state = std::get_if<GateState>(&event.message)) {
    gate_.state_of(from, *state, now_);
  } else if (std::holds_alternative<StatusRequest>(event.message)) {
    send(from, status());
  }
}

void ReceiverEndpoint::Machine::on(const ControlAnswered& event) {
  if (event.call <= calls_before_) return;
  session_.answered({event.call - calls_before_, event.reply}, now_);
}

void ReceiverEndpoint::Machine::on(const ReceiverWorkDone& event) {
  // Nobody can say any more that nothing is written.
  if (event.kind == Kind::kStopApplying && !event.status.ok()) {
    ended_ = true;
    effects_->emplace_back(Ended{event.status.with_context("stopping to apply")});
    return;
  }
  const bool counts = works_.answered(event);
  // Whatever was stopped meanwhile: it is about what lies there.
  if (event.kind == Kind::kCompareSample) return sample_compared(event);
  if (!counts) return;
  if (event.kind == Kind::kCheckBase) {
    base_checked(event.status);
  } else if (stream_) {
    stream_work_done(event);
  }
}

void ReceiverEndpoint::Machine::advance() {
  follow_session();
  if (ended_) return;
  if (life_ != Life::kEnrolling) follow_records();
  if (attempt_) drive_attempt();
  if (life_ == Life::kProving || life_ == Life::kRestoring) drive_restore();
  if (stream_) drive_stream();
  prove_to_gate();
  works_.run(effects_);
  repeat();
  if (std::optional<CallControl> call = session_.next_call(now_)) {
    call->call += calls_before_;
    calls_ = call->call;
    effects_->emplace_back(std::move(*call));
  }
}

void ReceiverEndpoint::Machine::follow_session() {
  if (!session_.failure().ok()) {
    ended_ = true;
    effects_->emplace_back(Ended{session_.failure()});
  } else if (session_.barred()) {
    DCR_PROBE("a receiver finds itself barred");
    begin_life("it was barred", 0);
  } else if (session_.joined() == JoinOutcome::kOvertaken) {
    DCR_PROBE("a receiver's restore was overtaken by a commit");
    begin_life("a commit overtook what it held", 0);
  } else if (life_ == Life::kEnrolling && session_.enrolled()) {
    start_life();
  }
}

// What the receiver's own reading of the records decides: commits, and attempts that are over.
void ReceiverEndpoint::Machine::follow_records() {
  const VersionId committed = records().commit.id;
  const TransitionRecord& last = records().transition;
  if (finished_ == committed) {
    made_whole(committed);
    entitled_ = true;
    hold_until_ = now_;
    if (attempt_ && attempt_->number == finished_->baseline) {
      attempt_.reset();
      stream_.reset();
    }
    finished_.reset();
  } else if (finished_ &&
             (last.attempt > finished_->baseline ||
              (last.attempt == finished_->baseline && last.state == AttemptState::kObsolete))) {
    finished_.reset();
  }
  if (attempt_ && (last.attempt > attempt_->number ||
                   (last.attempt == attempt_->number && last.state == AttemptState::kObsolete))) {
    DCR_PROBE("a receiver reads by itself that its attempt is over");
    end_attempt();
  }
  if (session_.joined() == JoinOutcome::kJoined && resident_.whole() == committed) {
    entitled_ = true;
  }
  if (offered_ && offered_->second.base != finished_) {
    const auto [from, prepare] = *std::exchange(offered_, std::nullopt);
    on_prepare(from, prepare);
  }
  follow_brokenness();
}

bool ReceiverEndpoint::Machine::broken() const {
  return life_ == Life::kReady && !resident_.whole() && !attempt_ && !finished_;
}

// Waits for an attempt that makes its bits whole, but not for ever.
void ReceiverEndpoint::Machine::follow_brokenness() {
  if (unbound_ && session_.joined() == JoinOutcome::kAdmitted) {
    unbound_.reset();
    broken_until_ = now_ + options_.waits.restore_ms;
  }
  if (!broken()) return;
  if (unbound_ && *unbound_ != records().commit.id) {
    begin_life("another version is committed", 0);
  } else if (now_ >= broken_until_ && (!unbound_ || session_.read_at() >= broken_until_)) {
    // By a reading that is not older: to enrol anew would fail an attempt that binds it.
    begin_life("no attempt has made its bits whole", 0);
  }
}

void ReceiverEndpoint::Machine::start_life() {
  incarnation_ = session_.incarnation();
  fence_ = records().transition.attempt;
  gate_.start(now_);
  begin_proof_or_restore();
}

// Ends this incarnation; the next enrols after a while. The gate is told to close under the name of
// the old one, in case it takes long.
void ReceiverEndpoint::Machine::begin_life(std::string why, Milliseconds after) {
  note(why + "; it enrols anew and restores");
  // Whoever asks why the gate is closed is to hear the cause, not only what came of it.
  if (!failed_.empty()) why += "; " + failed_;
  trouble_ = why;
  stop_stream();
  works_.forget();
  attempt_.reset();
  restore_.reset();
  offered_.reset();
  finished_.reset();
  base_digests_.clear();
  ask_at_ = kNever;
  refused_since_ = kNever;
  unbound_.reset();
  entitled_ = false;
  if (incarnation_ != 0) gate_.close(now_);
  gate_.explain(why);
  life_ = Life::kEnrolling;
  session_ = MemberSession(member_options(options_));
  calls_before_ = calls_;
  session_.start(now_ + after);
}

void ReceiverEndpoint::Machine::made_whole(VersionId version) {
  resident_.set_whole(version);
  expect_sample();
  trouble_.clear();
  failed_.clear();
}

void ReceiverEndpoint::Machine::prove_to_gate() {
  if (life_ != Life::kReady || !entitled_ || !gate_.closed() || works_.stopping()) return;
  if (DCR_MUTANT("receiver_proves_anything")) return gate_.prove(records().commit.id, now_);
  if (resident_.whole() != records().commit.id || now_ < hold_until_) return;
  if (attempt_ && (!attempt_->asynchronous || attempt_->close)) return;
  gate_.prove(*resident_.whole(), now_);
}

void ReceiverEndpoint::Machine::repeat() {
  if (!works_.stopping() || DCR_MUTANT("receiver_stops_without_draining")) {
    for (const auto& [to, attempt] : stops_) send(to, Stopped{attempt});
    stops_.clear();
  }
  if (std::optional<SendMessage> message = gate_.due(now_)) {
    effects_->emplace_back(std::move(*message));
  }
  if (attempt_ && now_ >= attempt_->failed_at) {
    attempt_->failed_at = now_ + options_.waits.repeat_ms;
    send(attempt_->coordinator, attempt_->failed);
  }
  if (stream_ && now_ >= stream_->credit_at) give_credit();
  if (life_ == Life::kProving || life_ == Life::kRestoring) ask_owners();
  if (now_ >= sample_due()) ask_for_sample();
}

Milliseconds ReceiverEndpoint::Machine::wake_at() const {
  if (ended_) return kNever;
  Milliseconds at = std::min({session_.wake_at(), gate_.wake_at(), ask_at_, sample_due()});
  if (attempt_) at = std::min(at, attempt_->failed_at);
  if (stream_) at = std::min(at, stream_->credit_at);
  if (restore_) {
    at = std::min({at, restore_->ask_at, restore_->progress_at + options_.waits.restore_ms});
  }
  if (life_ == Life::kReady && gate_.closed() && hold_until_ > now_) at = std::min(at, hold_until_);
  // Where that has passed, the next reading decides.
  if (broken() && (!unbound_ || broken_until_ > now_)) at = std::min(at, broken_until_);
  return at;
}

StatusReply ReceiverEndpoint::Machine::status() const {
  StatusReply reply;
  reply.held = resident_.whole();
  reply.gate_open = gate_.open();
  reply.gate_reason = gate_.reason();
  reply.detail = trouble_;
  if (life_ == Life::kEnrolling) {
    reply.state = "enrolling";
  } else if (life_ == Life::kProving) {
    reply.state = "proving_base";
  } else if (life_ == Life::kRestoring) {
    reply.state = "restoring";
    if (restore_) reply.detail = restore_->trouble;
    if (!gate_.closed()) reply.detail = "waits for gate " + gate_.gate() + " to close";
  } else if (attempt_) {
    static constexpr const char* kStates[] = {"beginning", "prepared", "finished", "failed"};
    reply.state = kStates[static_cast<int>(attempt_->state)];
    reply.attempt = attempt_->number;
    if (attempt_->state == Attempt::State::kFailed) reply.detail = attempt_->failed.failure.message;
  } else {
    reply.state = entitled_ ? "member" : "joining";
    if (!resident_.whole()) {
      reply.detail = "holds " + resident_.text() + (trouble_.empty() ? "" : "; " + trouble_);
    }
  }
  if (const std::string state = stream_state(); !state.empty()) {
    reply.detail += (reply.detail.empty() ? "" : "; ") + state;
  }
  return reply;
}

}  // namespace dcr
