// Payloads of the stream that a receiver is in: ingest, credit, application, the end.
#include <utility>

#include "base/assert.h"
#include "base/mutant.h"
#include "base/probe.h"
#include "protocol/receiver_machine.h"

namespace dcr {

using Kind = ReceiverWorkDone::Kind;

void ReceiverEndpoint::Machine::begin_stream(StreamId id, VersionId base, std::uint64_t target,
                                             Pass pass) {
  const auto owners = static_cast<std::uint32_t>(options_.owners.size());
  stream_ = Stream{id,
                   Arrivals(owners, {options_.credit_payloads, options_.credit_bytes}),
                   pass == Pass::kAudits,
                   false,
                   kNever,
                   Credit()};
  AttemptHeader header;
  header.run = records().run;
  header.attempt = id.number;
  header.base_version = base.version;
  header.target_version = target;
  header.overwrite_only = pass != Pass::kAny;
  if (pass == Pass::kAudits) header.mode = ApplyMode::kVerify;
  works_.add(BeginStream{id, header});
}

// The same stream from its beginning.
void ReceiverEndpoint::Machine::begin_audit() {
  DCR_PROBE("a receiver audits what came");
  const StreamId id = stream_->id;
  const VersionId base = attempt_ ? attempt_->base : restore_->version;
  begin_stream(id, base, attempt_ ? base.version + 1 : base.version, Pass::kAudits);
}

void ReceiverEndpoint::Machine::stop_stream() {
  if (!stream_) return;
  works_.stop(stream_->id, effects_);
  stream_.reset();
}

bool ReceiverEndpoint::Machine::from_node(const Endpoint& from) const {
  return from.name == options_.details.node && (!attempt_ || from == attempt_->node);
}

void ReceiverEndpoint::Machine::on_owner_end(const Endpoint& from, const OwnerEnd& message) {
  if (!stream_ || stream_->id != message.stream || !from_node(from)) return;
  if (!stream_->arrivals.offer_end(message.owner, message.payloads)) return;
  works_.add(EndOfOwner{message.stream, message.owner, message.payloads});
}

void ReceiverEndpoint::Machine::on_stream_failed(const Endpoint& from,
                                                 const StreamFailed& message) {
  if (!stream_ || stream_->id != message.stream || !from_node(from)) return;
  stream_failed(status_of(message.failure).with_context("node " + from.name));
}

void ReceiverEndpoint::Machine::on(const PayloadHandedOver& event) {
  if (!stream_ || stream_->id != event.stream) return;
  if (!stream_->arrivals.offer({event.owner, event.number}, event.bytes)) return;
  works_.add(IngestPayload{event.stream, event.owner, event.number});
}

void ReceiverEndpoint::Machine::stream_failed(const Status& status) {
  if (attempt_) return fail_attempt(status, false);
  begin_life("its restore failed: " + status.message(), options_.waits.restore_again_ms);
}

void ReceiverEndpoint::Machine::stream_work_done(const ReceiverWorkDone& done) {
  if (!done.status.ok()) {
    const bool rejected = done.kind == Kind::kBeginStream && attempt_ &&
                          action_for(done.status.code()) == Action::kReject;
    return rejected ? fail_attempt(done.status, true) : stream_failed(done.status);
  }
  Arrivals& arrivals = stream_->arrivals;
  const Arrivals::Payload payload{done.owner, done.number};
  if (restore_) restore_->progress_at = now_;
  switch (done.kind) {
    case Kind::kBeginStream:
      stream_->begun = true;
      if (!attempt_ || stream_->audits) break;
      attempt_->state = Attempt::State::kPrepared;
      send(attempt_->coordinator, Prepared{attempt_->number});
      break;
    case Kind::kIngestPayload:
      if (done.ingested == Ingested::kOtherAttempt) {
        return stream_failed({Code::kMismatch, "payload " + std::to_string(done.number) +
                                                   " of owner " + std::to_string(done.owner) +
                                                   " says that it is of another attempt"});
      }
      if (!done.here) {
        arrivals.withdraw(payload);
      } else if (done.ingested == Ingested::kFull) {
        DCR_PROBE("a receiver has no room for a payload yet");
        arrivals.set_aside(payload);
      } else {
        arrivals.take(payload);
      }
      break;
    case Kind::kEndOfOwner:
      arrivals.take_end(done.owner);
      break;
    case Kind::kApplyQueued:
      if (attempt_) attempt_->applied += done.applied;
      for (const Arrivals::Payload& again : arrivals.applied(done.applied)) {
        works_.add(IngestPayload{stream_->id, again.owner, again.number});
      }
      break;
    case Kind::kFinishStream:
      return stream_finished(done.counts);
    default:
      return;
  }
  // What was said already is said again after a while only: to the node that means that something
  // got lost.
  if (stream_->credit_at != kNever && credit() != stream_->told) stream_->credit_at = now_;
}

void ReceiverEndpoint::Machine::stream_finished(const ReceiverCounts& counts) {
  if (attempt_ && !stream_->audits) {
    attempt_->completed = {attempt_->number, counts.payloads, counts.destinations, counts.checked};
  }
  const bool brought_all = !attempt_ || brings_all(attempt_->mode, attempt_->owners);
  if (audit_ && brought_all && !stream_->audits) return begin_audit();
  if (stream_->audits) audit_ = false;
  if (restore_) return restored();
  finished_ = VersionId{attempt_->base.version + 1, attempt_->number};
  attempt_->state = Attempt::State::kFinished;
  send(attempt_->coordinator, attempt_->completed);
  session_.look();
}

// What it does with the stream, for people; empty: nothing is to be said of it.
std::string ReceiverEndpoint::Machine::stream_state() const {
  if (!stream_) return {};
  std::string state = stream_->audits ? "audits what came" : "";
  if (!stream_->begun || stream_->arrivals.complete()) return state;
  return state + (state.empty() ? "" : " and ") + "waits for " + stream_->arrivals.missing();
}

bool ReceiverEndpoint::Machine::may_apply() const {
  if (!gate_.closed()) return false;
  const bool open = attempt_ && (attempt_->open || DCR_MUTANT("receiver_applies_unopened"));
  return attempt_ ? open && attempt_->state == Attempt::State::kPrepared
                  : life_ == Life::kRestoring;
}

bool ReceiverEndpoint::Machine::may_finish() const {
  return may_apply() && (!attempt_ || attempt_->flush) &&
         (stream_->arrivals.complete() || DCR_MUTANT("receiver_finishes_early"));
}

void ReceiverEndpoint::Machine::drive_stream() {
  if (!stream_->begun) return;
  const bool credit = !attempt_ || !attempt_->asynchronous || attempt_->open;
  if (credit && stream_->credit_at == kNever) stream_->credit_at = now_;
  if (works_.has(Kind::kApplyQueued) || works_.has(Kind::kFinishStream)) return;
  if (works_.has(Kind::kCompareSample)) return;
  const bool applies = may_apply() && stream_->arrivals.ready() > 0;
  if ((applies || may_finish()) && compare_sample()) return;
  if (applies) {
    // The only work that writes. From here on the storage is no version.
    DCR_ASSERT(gate_.closed());
    if (attempt_) {
      if (!DCR_MUTANT("receiver_forgets_writing")) {
        resident_.begin_writing(attempt_->base, attempt_->owners);
      }
    } else {
      resident_.set_unknown();
    }
    base_loaded_ = false;
    finished_.reset();
    works_.add(ApplyQueued{stream_->id});
  } else if (may_finish()) {
    works_.add(FinishStream{stream_->id});
  }
}

Credit ReceiverEndpoint::Machine::credit() const {
  const Arrivals::Window room = stream_->arrivals.room();
  return {stream_->id, stream_->arrivals.next(), room.payloads, room.bytes, stream_->audits};
}

void ReceiverEndpoint::Machine::give_credit() {
  stream_->credit_at = now_ + options_.waits.repeat_ms;
  stream_->told = credit();
  const Endpoint node = attempt_ ? attempt_->node : Endpoint{options_.details.node, 0};
  send(node, stream_->told);
}

}  // namespace dcr
