#include "protocol/receiver_works.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace dcr {

using Kind = ReceiverWorkDone::Kind;

ReceiverWorks::Key ReceiverWorks::key_of(const ReceiverWork& work) {
  if (const auto* begin = std::get_if<BeginStream>(&work)) {
    return {Kind::kBeginStream, begin->stream, 0, 0};
  }
  if (const auto* ingest = std::get_if<IngestPayload>(&work)) {
    return {Kind::kIngestPayload, ingest->stream, ingest->owner, ingest->number};
  }
  if (const auto* end = std::get_if<EndOfOwner>(&work)) {
    return {Kind::kEndOfOwner, end->stream, end->owner, 0};
  }
  if (std::holds_alternative<CompareSample>(work)) return {Kind::kCompareSample, {}, 0, 0};
  if (const auto* apply = std::get_if<ApplyQueued>(&work)) {
    return {Kind::kApplyQueued, apply->stream, 0, 0};
  }
  if (const auto* finish = std::get_if<FinishStream>(&work)) {
    return {Kind::kFinishStream, finish->stream, 0, 0};
  }
  return {};
}

void ReceiverWorks::stop(StreamId stream, std::vector<ReceiverEffect>* effects) {
  waiting_.clear();
  stale_ = running_.has_value();
  if (begun_ != stream) return;
  begun_.reset();
  DCR_ASSERT(!stopping_);
  stopping_ = stream;
  effects->emplace_back(StopApplying{stream});
}

void ReceiverWorks::forget() {
  waiting_.clear();
  stale_ = running_.has_value();
}

bool ReceiverWorks::answered(const ReceiverWorkDone& done) {
  if (done.kind == Kind::kStopApplying) {
    if (stopping_ == done.stream) stopping_.reset();
    return false;
  }
  const bool keyed = done.kind == Kind::kIngestPayload || done.kind == Kind::kEndOfOwner;
  const bool streams = done.kind != Kind::kCheckBase && done.kind != Kind::kCompareSample;
  const Key key{done.kind, streams ? done.stream : StreamId{}, keyed ? done.owner : 0,
                done.kind == Kind::kIngestPayload ? done.number : 0};
  if (running_ != key) return false;
  running_.reset();
  return !std::exchange(stale_, false);
}

void ReceiverWorks::run(std::vector<ReceiverEffect>* effects) {
  if (waiting_.empty() || running_ || stopping()) return;
  running_ = key_of(waiting_.front());
  if (running_->kind == Kind::kBeginStream) begun_ = running_->stream;
  std::visit([effects](auto& work) { effects->emplace_back(std::move(work)); }, waiting_.front());
  waiting_.pop_front();
}

bool ReceiverWorks::has(Kind kind) const {
  if (running_ && running_->kind == kind && !stale_) return true;
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [kind](const ReceiverWork& work) { return key_of(work).kind == kind; });
}

}  // namespace dcr
