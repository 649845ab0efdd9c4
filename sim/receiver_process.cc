#include "base/assert.h"
#include "sim/processes.h"
#include "sim/world.h"

namespace dcr {

ReceiverProcess::ReceiverProcess(World& world, std::uint32_t index, bool spare)
    : MachineProcess(world, Role::kReceiver, "receiver-" + std::to_string(index)),
      index_(index),
      engine_(index / world.model().ranks()),
      rank_(index % world.model().ranks()),
      spare_(spare) {}

SimReceiver& ReceiverProcess::model() const { return world_.model().receiver(index_, spare_); }

void ReceiverProcess::begin() {
  model().memory().set_guard(this);
  const Swarm& swarm = world_.swarm();
  ReceiverEndpointOptions options;
  options.name = name();
  options.engine = World::engine_name(engine_);
  options.engine_instance = gate_->engine_instance();
  options.details.node = world_.node_of(engine_);
  options.details.catalogue = world_.model().catalogue().schema();
  options.details.fingerprint = world_.model().fingerprint(rank_);
  options.details.needs = world_.model().needs(rank_);
  for (std::uint32_t rank = 0; rank < world_.model().owners(); ++rank) {
    options.owners.push_back("owner-" + std::to_string(rank));
  }
  options.base_loaded = base_.has_value();
  options.audit = swarm.audits && !options.base_loaded;
  base_weights_ = base_.value_or(0);
  options.credit_payloads = swarm.credit_payloads;
  options.credit_bytes = swarm.credit_bytes;
  options.waits = swarm.waits;
  // Of a next life in the same engine nobody knows what it holds.
  base_.reset();
  make_machine(std::move(options));
}

void ReceiverProcess::lose() {
  tear();
  drop_machine();
  handed_over_.clear();
  work_.clear();
  working_ = false;
  ++turn_;
}

// Of the words that are on their way, any may have landed.
void ReceiverProcess::tear() {
  if (!before_) return;
  Image torn = model().image();
  Prng& prng = world_.prng();
  const std::uint64_t kind = prng.below(4);  // none, all, or some
  for (std::size_t i = 0; i < torn.size(); ++i) {
    for (std::size_t at = 0; at < torn[i].size(); ++at) {
      if (torn[i][at] == (*before_)[i][at]) continue;
      if (kind == 0 || (kind > 1 && prng.below(2) == 0)) torn[i][at] = (*before_)[i][at];
    }
  }
  model().set_image(torn);
  before_.reset();
  world_.count_fault("writes torn");
}

void ReceiverProcess::on_write() {
  if (applying_) {
    world_.oracle().on_write(*this, *applying_);
  } else {
    world_.fail(name() + " writes while it applies nothing");
  }
}

void ReceiverProcess::hand_over(const HandOver& work,
                                std::shared_ptr<const DecodedPayload> payload) {
  const std::uint64_t bytes = payload->bytes;
  handed_over_[Key(work.stream, work.owner, work.number)] = std::move(payload);
  if (handed_over_.size() > 2 * kStagingSlots) {
    world_.fail(name() + " is handed more payloads than it has ever asked for");
  }
  step(PayloadHandedOver{work.stream, work.owner, work.number, bytes});
}

void ReceiverProcess::carry_out(ReceiverEffect& effect) {
  if (const auto* const stop = std::get_if<StopApplying>(&effect);
      stop != nullptr && before_ && world_.prng().below(2) == 0) {
    // What runs gives up early.
    ++turn_;
    tear();
    ReceiverWorkDone done;
    done.kind = ReceiverWorkDone::Kind::kApplyQueued;
    done.stream = stop->stream;
    done.status = {Code::kCancelled, "stopped"};
    step_later(world_.work_time(), std::move(done), &turn_);
  }
  work_.push_back(std::move(effect));
  if (!working_) begin_next();
}

void ReceiverProcess::begin_next() {
  working_ = !work_.empty();
  if (!working_) return;
  later(world_.work_time(), [this, turn = turn_] {
    if (turn != turn_) return;
    const ReceiverEffect work = std::move(work_.front());
    work_.pop_front();
    if (const auto* const apply = std::get_if<ApplyQueued>(&work)) return begin_applying(*apply);
    finish_with(carry_out_now(work));
  });
}

void ReceiverProcess::finish_with(ReceiverWorkDone done) {
  if (world_.hooks().receiver_work) world_.hooks().receiver_work(*this, &done);
  step_later(world_.work_time(), std::move(done), &turn_);
}

// What the writes make of the storage is known at once; it gets there slice by slice.
void ReceiverProcess::begin_applying(const ApplyQueued& work) {
  Image before = model().image();
  ReceiverWorkDone done;
  done.kind = ReceiverWorkDone::Kind::kApplyQueued;
  done.stream = work.stream;
  applying_ = work.stream;
  const Result<std::uint64_t> applied = model().receiver().apply();
  applying_.reset();
  done.status = applied.status();
  if (applied.ok()) done.applied = *applied;
  const std::uint64_t slices = 1 + world_.prng().below(world_.swarm().slices_max);
  if (slices == 1 || model().image() == before) {
    before_ = std::move(before);
    return finish_with(std::move(done));
  }
  Image whole = model().image();
  model().set_image(before);
  land(std::move(done), std::move(whole), slices);
}

// The next of so many slices, each an equal part of the bytes that still differ.
void ReceiverProcess::land(ReceiverWorkDone done, Image whole, std::uint64_t slices) {
  world_.oracle().on_write(*this, done.stream);
  before_ = model().image();
  Image next = *before_;
  std::uint64_t differ = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (std::size_t at = 0; at < whole[i].size(); ++at) differ += whole[i][at] != next[i][at];
  }
  std::uint64_t left = differ / slices;
  for (std::size_t i = 0; i < whole.size() && left > 0; ++i) {
    for (std::size_t at = 0; at < whole[i].size() && left > 0; ++at) {
      if (whole[i][at] == next[i][at]) continue;
      next[i][at] = whole[i][at];
      --left;
    }
  }
  model().set_image(next);
  if (slices == 1) return finish_with(std::move(done));
  struct Rest {
    ReceiverWorkDone done;
    Image whole;
  };
  later(world_.work_time(),
        [this, turn = turn_, slices,
         rest = std::make_unique<Rest>(Rest{std::move(done), std::move(whole)})] {
          if (turn == turn_) land(std::move(rest->done), std::move(rest->whole), slices - 1);
        });
}

void ReceiverProcess::answered(const ReceiverEvent& event) {
  before_.reset();
  begin_next();
  step(event);
}

ReceiverWorkDone ReceiverProcess::carry_out_now(const ReceiverEffect& work) {
  ReceiverWorkDone done;
  Receiver& receiver = model().receiver();
  if (const auto* const check = std::get_if<CheckBase>(&work)) {
    done.kind = ReceiverWorkDone::Kind::kCheckBase;
    done.status = world_.oracle().check_base(check->digests, base_weights_);
  } else if (const auto* const begin = std::get_if<BeginStream>(&work)) {
    begin_stream(*begin, &done);
  } else if (const auto* const payload = std::get_if<IngestPayload>(&work)) {
    done.kind = ReceiverWorkDone::Kind::kIngestPayload;
    done.stream = payload->stream;
    done.owner = payload->owner;
    done.number = payload->number;
    done.status = ingest(*payload, &done);
  } else if (const auto* const end = std::get_if<EndOfOwner>(&work)) {
    done.kind = ReceiverWorkDone::Kind::kEndOfOwner;
    done.stream = end->stream;
    done.owner = end->owner;
    done.status = receiver.end_of_owner(end->owner, end->payloads);
  } else if (const auto* const sample = std::get_if<CompareSample>(&work)) {
    done.kind = ReceiverWorkDone::Kind::kCompareSample;
    compare(*sample, &done);
  } else if (const auto* const finish = std::get_if<FinishStream>(&work)) {
    done.kind = ReceiverWorkDone::Kind::kFinishStream;
    done.stream = finish->stream;
    const Result<ReceiverCounts> counts = receiver.finish();
    done.status = counts.status();
    if (counts.ok()) done.counts = *counts;
    if (counts.ok() && counts->different > 0) {
      world_.fail(name() + " audits other words than were sent to it");
    }
  } else {
    done.kind = ReceiverWorkDone::Kind::kStopApplying;
    done.stream = std::get<StopApplying>(work).stream;
  }
  return done;
}

void ReceiverProcess::compare(const CompareSample& work, ReceiverWorkDone* done) {
  AttemptHeader sample;
  sample.run = world_.sample_run_id();
  sample.attempt = work.version.version + 1;
  sample.base_version = sample.target_version = work.version.version;
  const Result<ReceiverCounts> counts =
      model().receiver().compare(work.payload, work.owner, sample);
  done->status = counts.status();
  if (counts.ok()) done->counts = *counts;
  if (!counts.ok() || counts->different > 0) {
    world_.fail(name() +
                " holds other words than a sample of the trainer's: " + done->status.message());
  }
}

void ReceiverProcess::begin_stream(const BeginStream& work, ReceiverWorkDone* done) {
  done->kind = ReceiverWorkDone::Kind::kBeginStream;
  done->stream = work.stream;
  std::erase_if(handed_over_,
                [&](const auto& entry) { return std::get<0>(entry.first) != work.stream; });
  AttemptHeader header = work.header;
  header.run = work.stream.restore ? world_.restore_run_id() : world_.run_id();
  done->status = model().receiver().begin_attempt(header);
}

Status ReceiverProcess::ingest(const IngestPayload& work, ReceiverWorkDone* done) {
  const auto found = handed_over_.find(Key(work.stream, work.owner, work.number));
  if (found == handed_over_.end()) {
    done->here = false;
    return {};
  }
  DCR_ASSIGN(done->ingested, model().receiver().ingest(found->second));
  if (done->ingested != Ingested::kFull) handed_over_.erase(found);
  return {};
}

}  // namespace dcr
