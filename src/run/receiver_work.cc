#include "run/receiver_work.h"

#include <utility>

#include "receiver/base_check.h"
#include "runtime/long_turns.h"

namespace dcr {
namespace {

using Kind = ReceiverWorkDone::Kind;

ReceiverWorkDone done_of(Kind kind, const StreamId& stream, Status status) {
  ReceiverWorkDone done;
  done.kind = kind;
  done.stream = stream;
  done.status = std::move(status);
  return done;
}

}  // namespace

ReceiverWork::ReceiverWork(ProcessContext& context, const RunModel& model, ServingModel& serving,
                           std::uint32_t number)
    : context_(context),
      model_(model),
      serving_(serving),
      number_(number),
      executor_(make_executor(context.config().threads)) {}

// The thread ends before what it works on.
ReceiverWork::~ReceiverWork() { worker_.reset(); }

Result<std::unique_ptr<ReceiverWork>> ReceiverWork::create(ProcessContext& context,
                                                           const RunModel& model,
                                                           ServingModel& serving,
                                                           std::uint32_t number) {
  auto work = std::make_unique<ReceiverWork>(context, model, serving, number);
  DCR_TRY(work->initialize());
  return work;
}

Status ReceiverWork::initialize() {
  ReceiverOptions options;
  options.owners = model_.boxes;
  options.never_loaded = model_.never_loaded;
  options.decoded_bytes_max = context_.config().memory_bytes_max;
  DCR_ASSIGN(receiver_, Receiver::create(model_.catalogue, *serving_.loader, *serving_.memory,
                                         *executor_, std::move(options)));
  worker_ = make_executor(2);
  worker_->submit(take_long_turns);
  return {};
}

Status ReceiverWork::check_base(const CheckBase& work) {
  CheckpointReader base(model_.base);
  return dcr::check_base(model_.catalogue, model_.boxes, work.digests,
                         [&](std::uint32_t tensor, std::uint64_t first, MutableByteSpan out) {
                           return base.read(tensor, first, out);
                         });
}

ReceiverWork::Known ReceiverWork::known(const PayloadReady& payload) {
  const Key key(payload.stream, payload.owner, payload.number);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = payloads_.find(key);
  if (found != payloads_.end()) return {false, found->second->bytes};
  return {taken_.contains(key), std::nullopt};
}

bool ReceiverWork::keep(const StreamId& stream, std::shared_ptr<const DecodedPayload> payload) {
  const Key key(stream, payload->header.owner, payload->header.number);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (taken_.contains(key)) return false;
  if (payloads_.contains(key)) return true;
  // Beside what credit allows, the payload whose turn it is.
  if (payload_bytes_ > context_.config().memory_bytes_max) return false;
  payload_bytes_ += payload->bytes;
  payloads_.emplace(key, std::move(payload));
  return true;
}

std::shared_ptr<const DecodedPayload> ReceiverWork::find(const Key& key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = payloads_.find(key);
  return found == payloads_.end() ? nullptr : found->second;
}

void ReceiverWork::forget_taken(const Key& key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  taken_.insert(key);
  const auto found = payloads_.find(key);
  if (found == payloads_.end()) return;
  payload_bytes_ -= found->second->bytes;
  payloads_.erase(found);
}

void ReceiverWork::forget_streams_but(const StreamId& stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  taken_.clear();  // a stream that begins again takes all of it again
  for (auto at = payloads_.begin(); at != payloads_.end();) {
    if (std::get<0>(at->first) == stream) {
      ++at;
      continue;
    }
    payload_bytes_ -= at->second->bytes;
    at = payloads_.erase(at);
  }
}

Status ReceiverWork::ingest(const IngestPayload& work, ReceiverWorkDone* done) {
  const Key key(work.stream, work.owner, work.number);
  const std::shared_ptr<const DecodedPayload> payload = find(key);
  if (payload == nullptr) {
    // It was dropped, or belongs to a stream that is over: the node hands it over again.
    done->ingested = Ingested::kFull;
    return {};
  }
  DCR_ASSIGN(done->ingested, receiver_->ingest(payload));
  if (done->ingested != Ingested::kFull) forget_taken(key);
  return {};
}

ReceiverWorkDone ReceiverWork::carry_out(const ReceiverEffect& effect) {
  if (const auto* const check = std::get_if<CheckBase>(&effect)) {
    return done_of(Kind::kCheckBase, {}, check_base(*check));
  }
  if (const auto* const begin = std::get_if<BeginStream>(&effect)) {
    forget_streams_but(begin->stream);
    AttemptHeader header = begin->header;
    header.run = begin->stream.restore ? restore_run(context_.run()) : context_.run();
    return done_of(Kind::kBeginStream, begin->stream, receiver_->begin_attempt(header));
  }
  if (const auto* const ingested = std::get_if<IngestPayload>(&effect)) {
    ReceiverWorkDone done = done_of(Kind::kIngestPayload, ingested->stream, Status());
    done.owner = ingested->owner;
    done.number = ingested->number;
    const SpanTimer timer(&context_.spans(), "stage", number_);
    done.status = ingest(*ingested, &done);
    return done;
  }
  if (const auto* const end = std::get_if<EndOfOwner>(&effect)) {
    ReceiverWorkDone done =
        done_of(Kind::kEndOfOwner, end->stream, receiver_->end_of_owner(end->owner, end->payloads));
    done.owner = end->owner;
    return done;
  }
  if (const auto* const apply = std::get_if<ApplyQueued>(&effect)) {
    ReceiverWorkDone done = done_of(Kind::kApplyQueued, apply->stream, Status());
    const SpanTimer timer(&context_.spans(), "apply", number_);
    const Result<std::uint64_t> applied = receiver_->apply();
    done.status = applied.status();
    if (applied.ok()) done.applied = *applied;
    return done;
  }
  if (const auto* const finish = std::get_if<FinishStream>(&effect)) {
    ReceiverWorkDone done = done_of(Kind::kFinishStream, finish->stream, Status());
    const SpanTimer timer(&context_.spans(), "synchronise", number_);
    const Result<ReceiverCounts> counts = receiver_->finish();
    done.status = counts.status();
    if (counts.ok()) done.counts = *counts;
    return done;
  }
  // Applying is this thread's: nothing of it runs any more.
  const auto& stop = std::get<StopApplying>(effect);
  return done_of(Kind::kStopApplying, stop.stream, serving_.memory->synchronize());
}

void ReceiverWork::begin(const ReceiverEffect& effect, const Post& post) {
  worker_->submit([this, effect, post] { post(carry_out(effect)); });
}

}  // namespace dcr
