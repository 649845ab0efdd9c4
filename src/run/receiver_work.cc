#include "run/receiver_work.h"

#include <utility>

#include "runtime/long_turns.h"
#include "tensor/text.h"

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

ReceiverWork::ReceiverWork(ProcessContext& context, ReceiverWorkParts parts)
    : context_(context), parts_(std::move(parts)), worker_(make_executor(2)) {
  worker_->submit(take_long_turns);
}

// The thread ends before what it works on.
ReceiverWork::~ReceiverWork() { worker_.reset(); }

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
    // It was handed over before the stream began anew, which let go of it.
    done->here = false;
    return {};
  }
  DCR_ASSIGN(done->ingested, parts_.receiver.ingest(payload));
  if (done->ingested != Ingested::kFull) forget_taken(key);
  return {};
}

Status ReceiverWork::compare(const CompareSample& work, ReceiverCounts* counts) {
  AttemptHeader sample;
  sample.run = sample_run(context_.run());
  sample.attempt = work.version.version + 1;
  sample.base_version = sample.target_version = work.version.version;
  DCR_ASSIGN(*counts, parts_.receiver.compare(work.payload, work.owner, sample));
  if (!counts->different_tensor) return {};
  const std::string& name = parts_.receiver.catalogue()[*counts->different_tensor].name;
  return {Code::kMismatch,
          "tensor " + quoted_name(name) + ": " + std::to_string(counts->different) + " of " +
              std::to_string(counts->destinations) +
              " resident words that were compared with the trainer's are others",
          name};
}

Status ReceiverWork::finish_stream(ReceiverWorkDone* done) {
  DCR_ASSIGN(done->counts, parts_.receiver.finish());
  if (!audits_) return parts_.applied ? parts_.applied() : Status();
  const std::optional<std::uint32_t> differs = done->counts.different_tensor;
  if (!differs) return {};
  const std::string& name = parts_.receiver.catalogue()[*differs].name;
  return {Code::kMismatch,
          "tensor " + quoted_name(name) + ": an audit of what came found " +
              std::to_string(done->counts.different) + " of " +
              std::to_string(done->counts.destinations) +
              " resident words that are not what was sent; this engine must not serve",
          name};
}

ReceiverWorkDone ReceiverWork::carry_out(const ReceiverEffect& effect) {
  if (const auto* const check = std::get_if<CheckBase>(&effect)) {
    return done_of(Kind::kCheckBase, {}, parts_.check_base(*check));
  }
  if (const auto* const begin = std::get_if<BeginStream>(&effect)) {
    forget_streams_but(begin->stream);
    AttemptHeader header = begin->header;
    header.run = begin->stream.restore ? restore_run(context_.run()) : context_.run();
    audits_ = header.mode == ApplyMode::kVerify;
    return done_of(Kind::kBeginStream, begin->stream, parts_.receiver.begin_attempt(header));
  }
  if (const auto* const ingested = std::get_if<IngestPayload>(&effect)) {
    ReceiverWorkDone done = done_of(Kind::kIngestPayload, ingested->stream, Status());
    done.owner = ingested->owner;
    done.number = ingested->number;
    const SpanTimer timer(&context_.spans(), "stage", parts_.number);
    done.status = ingest(*ingested, &done);
    return done;
  }
  if (const auto* const end = std::get_if<EndOfOwner>(&effect)) {
    ReceiverWorkDone done = done_of(Kind::kEndOfOwner, end->stream,
                                    parts_.receiver.end_of_owner(end->owner, end->payloads));
    done.owner = end->owner;
    return done;
  }
  if (const auto* const sample = std::get_if<CompareSample>(&effect)) {
    ReceiverWorkDone done = done_of(Kind::kCompareSample, {}, Status());
    done.status = compare(*sample, &done.counts);
    return done;
  }
  if (const auto* const apply = std::get_if<ApplyQueued>(&effect)) {
    ReceiverWorkDone done = done_of(Kind::kApplyQueued, apply->stream, Status());
    const SpanTimer timer(&context_.spans(), "apply", parts_.number);
    const Result<std::uint64_t> applied = parts_.receiver.apply();
    done.status = applied.status();
    if (applied.ok()) done.applied = *applied;
    return done;
  }
  if (const auto* const finish = std::get_if<FinishStream>(&effect)) {
    ReceiverWorkDone done = done_of(Kind::kFinishStream, finish->stream, Status());
    const SpanTimer timer(&context_.spans(), "synchronise", parts_.number);
    done.status = finish_stream(&done);
    return done;
  }
  // Applying is this thread's: nothing of it runs any more.
  const auto& stop = std::get<StopApplying>(effect);
  return done_of(Kind::kStopApplying, stop.stream, parts_.memory.synchronize());
}

void ReceiverWork::begin(const ReceiverEffect& effect, const Post& post) {
  worker_->submit([this, effect, post] { post(carry_out(effect)); });
}

}  // namespace dcr
