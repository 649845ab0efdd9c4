#include <algorithm>
#include <array>
#include <utility>

#include "base/assert.h"
#include "codec/container.h"
#include "sim/processes.h"
#include "sim/world.h"

namespace dcr {
namespace {

using Kind = OwnerWorkDone::Kind;

struct KeepSink final : PayloadSink {
  Status send(std::uint64_t, std::span<const std::uint8_t> bytes) override {
    payloads.emplace_back(bytes.begin(), bytes.end());
    return {};
  }
  std::vector<Bytes> payloads;
};

OwnerWorkDone done_of(Kind kind, std::uint64_t number, Status status) {
  OwnerWorkDone done;
  done.kind = kind;
  done.number = number;
  done.status = std::move(status);
  return done;
}

}  // namespace

OwnerProcess::OwnerProcess(World& world, std::uint32_t rank, bool spare)
    : MachineProcess(world, Role::kOwner, "owner-" + std::to_string(rank)),
      rank_(rank),
      spare_(spare) {}

SimOwner& OwnerProcess::model() { return world_.model().owner(rank_, spare_); }

// Nobody waits any more for what its refits come to.
void OwnerProcess::become_zombie() {
  SimProcess::become_zombie();
  world_.trainer().became_zombie(rank_);
}

void OwnerProcess::begin() {
  SimOwner& owner = model();
  const std::optional<VersionId> baseline = std::exchange(kept_, std::nullopt);
  if (baseline) {
    owner.group().drop_attempt();
  } else {
    owner.forget();
    load(weights_);
  }
  const std::uint32_t owners = world_.model().owners();
  payloads_ = std::make_unique<ObjectOwnerTransport>(
      world_.payloads(), ObjectTransportOptions{world_.run_id(), owners, {}}, rank_);
  restores_ = std::make_unique<ObjectOwnerTransport>(
      world_.restores(), ObjectTransportOptions{world_.restore_run_id(), owners, {}}, rank_);
  OwnerEndpointOptions options;
  options.name = name();
  options.details = {rank_, owners, world_.model().catalogue().schema()};
  options.waits = world_.swarm().waits;
  make_machine(std::move(options), baseline);
  world_.trainer().started(rank_);
}

void OwnerProcess::lose() {
  // What it was just sending may still get there; what a zombie sends is late already.
  if (sending_ && !zombie() && sending_->next < sending_->payloads.size() &&
      world_.fault(500, "object lands late")) {
    world_.land_later(sending_->attempt, rank_, sending_->transport == restores_.get(),
                      sending_->next, std::move(sending_->payloads[sending_->next]));
  }
  drop_machine();
  sending_.reset();
  work_.clear();
  working_ = false;
  ++turn_;
  world_.meetings().leave(*this, false);
  if (!zombie()) world_.trainer().died(rank_);
}

void OwnerProcess::load(std::uint32_t weights) {
  weights_ = weights;
  model().load(world_.model().shards(weights, rank_));
}

void OwnerProcess::refit(RefitCalled call) { step(std::move(call)); }

void OwnerProcess::carry_out(OwnerEffect& effect) {
  if (const auto* const finished = std::get_if<RefitFinished>(&effect)) {
    if (!zombie()) world_.trainer().finished(rank_, *finished);
    return;
  }
  if (std::holds_alternative<StopSending>(effect)) give_up();
  work_.push_back(std::move(effect));
  if (!working_) begin_next();
}

// Construction and sending that run, or wait to, end early.
void OwnerProcess::give_up() {
  if (!sending_ || sending_->done.kind != Kind::kConstructAndSend) return;
  if (world_.prng().below(4) == 0) return;  // it was too late to stop it
  ++turn_;
  world_.meetings().leave(*this, true);
  finish_sending(Status(Code::kCancelled, "the attempt was stopped"));
}

void OwnerProcess::begin_next() {
  working_ = !work_.empty();
  if (!working_) return;
  later(world_.work_time(), [this, turn = turn_] {
    if (turn != turn_) return;
    const OwnerEffect work = std::move(work_.front());
    work_.pop_front();
    if (const auto* const construct = std::get_if<ConstructAndSend>(&work)) {
      begin_work(*construct);
    } else if (const auto* const restore = std::get_if<SendBaseline>(&work)) {
      begin_work(*restore);
    } else if (const auto* const update = std::get_if<UpdateBaseline>(&work)) {
      begin_work(*update);
    } else {
      finish_with(carry_out_short(work), world_.work_time());
    }
  });
}

void OwnerProcess::finish_with(OwnerWorkDone done, Microseconds delay) {
  step_later(delay, std::move(done), &turn_);
}

void OwnerProcess::answered(const OwnerEvent& event) {
  begin_next();
  step(event);
}

void OwnerProcess::together(const Meeting& meeting, Milliseconds wait,
                            std::function<Status()> phase,
                            std::function<void(const Status&)> then) {
  if (!world_.model().residual()) return then(phase());
  phase_ = std::move(phase);
  then_ = std::move(then);
  world_.meetings().come(*this, meeting);
  later(wait * 1000, [this, turn = turn_, meeting] {
    if (turn != turn_ || !world_.meetings().waits(*this, meeting)) return;
    world_.meetings().leave(*this, true);
    then_({Code::kUnavailable, "another owner did not come"});
  });
}

void OwnerProcess::met(Status status, Microseconds delay) {
  later(delay, [this, turn = turn_, kept = std::make_unique<Status>(std::move(status))] {
    if (turn == turn_) then_(*kept);
  });
}

void OwnerProcess::begin_work(const ConstructAndSend& work) {
  Sending sending;
  sending.transport = payloads_.get();
  sending.attempt = work.attempt.attempt;
  sending.done = done_of(Kind::kConstructAndSend, sending.attempt, Status());
  sending_ = std::move(sending);
  const Status status = payloads_->begin(work.attempt.attempt);
  if (!status.ok()) return finish_sending(status);
  Attempt attempt = work.attempt;
  attempt.run = world_.run_id();
  auto construct = [this, attempt = std::move(attempt)]() -> Status {
    KeepSink sink;
    std::array<PayloadSink*, 1> sinks = {&sink};
    DCR_ASSIGN(const std::vector<PrepareResult> results, model().group().prepare(attempt, sinks));
    sending_->done.result = results.front();
    sending_->payloads = std::move(sink.payloads);
    return {};
  };
  const std::uint64_t number = work.attempt.attempt;
  together({number, false}, world_.swarm().waits.send_ms, std::move(construct),
           [this, number](const Status& constructed) {
             world_.oracle().on_constructed(number, sending_->done.result);
             if (!constructed.ok()) return finish_sending(constructed);
             prepared_attempt_ = number;
             send_next();
           });
}

void OwnerProcess::begin_work(const UpdateBaseline& work) {
  const std::uint64_t version = work.version;
  world_.oracle().on_baseline(*this, version);
  together(
      {prepared_attempt_, true}, world_.swarm().waits.baseline_ms,
      [this, version] { return model().group().commit(version); },
      [this, version](const Status& updated) {
        finish_with(done_of(Kind::kUpdateBaseline, version, updated), world_.work_time());
      });
}

void OwnerProcess::begin_work(const SendBaseline& work) {
  Sending sending;
  sending.transport = restores_.get();
  sending.attempt = work.version.version + 1;
  sending.done = done_of(Kind::kSendBaseline, work.version.version, Status());
  Status status = restores_->begin(sending.attempt);
  if (status.ok()) {
    KeepSink sink;
    std::array<PayloadSink*, 1> sinks = {&sink};
    status = model()
                 .group()
                 .restore({world_.restore_run_id(), sending.attempt, work.version.version}, sinks)
                 .status();
    sending.payloads = std::move(sink.payloads);
    sending.done.payloads = sending.payloads.size();
  }
  sending_ = std::move(sending);
  if (!status.ok()) return finish_sending(std::move(status));
  send_next();
}

// A payload after the other, then the end.
void OwnerProcess::send_next() {
  later(world_.store_time(), [this, turn = turn_] {
    if (turn != turn_) return;
    const bool ends = sending_->next == sending_->payloads.size();
    if (zombie()) world_.zombie_puts();
    const Status status = ends ? sending_->transport->end(sending_->attempt) : send_one();
    if (ends || !status.ok()) return finish_sending(status);
    const OwnerProgress progress{sending_->next, sending_->bytes};
    send_next();
    step(progress);
  });
}

Status OwnerProcess::send_one() {
  const Bytes& payload = sending_->payloads[sending_->next];
  Digest digest{};
  std::copy_n(payload.begin() + kPayloadDigestOffset, digest.size(), digest.begin());
  world_.oracle().on_put(*this, sending_->attempt, sending_->transport == restores_.get());
  DCR_TRY(sending_->transport->send(sending_->attempt, sending_->next, payload, digest));
  sending_->bytes += payload.size();
  ++sending_->next;
  return {};
}

void OwnerProcess::finish_sending(Status status) {
  OwnerWorkDone done = std::move(sending_->done);
  done.status = std::move(status);
  sending_.reset();
  finish_with(std::move(done), world_.store_time());
}

OwnerWorkDone OwnerProcess::carry_out_short(const OwnerEffect& work) {
  OwnerGroup& group = model().group();
  if (const auto* const stop = std::get_if<StopSending>(&work)) {
    group.drop_attempt();
    return done_of(Kind::kStopSending, stop->attempt, payloads_->stop_and_wait(stop->attempt));
  }
  if (const auto* const remove = std::get_if<RemovePayloads>(&work)) {
    return done_of(Kind::kRemovePayloads, remove->attempt, payloads_->cleanup(remove->attempt));
  }
  if (const auto* const remove = std::get_if<RemoveRestores>(&work)) {
    // Streams are numbered one above their versions.
    return done_of(Kind::kRemoveRestores, remove->version, restores_->cleanup(remove->version));
  }
  if (const auto* const sample = std::get_if<SampleBaseline>(&work)) {
    const std::uint64_t version = sample->version.version;
    OwnerWorkDone done = done_of(Kind::kSampleBaseline, version, Status());
    auto samples = group.sample({world_.sample_run_id(), version + 1, version}, sample->seed);
    done.status = samples.status();
    if (samples.ok()) done.sample = std::move(samples->front());
    return done;
  }
  OwnerWorkDone done = done_of(Kind::kDigestBase, 0, Status());
  auto digests = group.baseline_digests(0);
  done.status = digests.status();
  if (digests.ok()) done.digests = std::move(digests->front());
  return done;
}

}  // namespace dcr
