// A receiver that holds K asks one owner after the other for a sample of the committed baseline. It
// compares it with what it holds before the next attempt writes or completes: then its gate is
// closed, and parameters are where the attempt's beginning found them.
#include <utility>

#include "base/prng.h"
#include "base/probe.h"
#include "protocol/receiver_machine.h"

namespace dcr {

void ReceiverEndpoint::Machine::expect_sample() {
  sample_.reset();
  samples_asked_ = 0;
  sample_at_ = now_ + options_.waits.look_ms;
}

// kNever while there is nothing to ask for.
Milliseconds ReceiverEndpoint::Machine::sample_due() const {
  const bool rests = life_ == Life::kReady && !attempt_ && resident_.whole();
  return rests && *resident_.whole() == records().commit.id ? sample_at_ : kNever;
}

// Another owner each time: of this version the one that does not answer may have no baseline.
void ReceiverEndpoint::Machine::ask_for_sample() {
  sample_at_ = now_ + options_.waits.look_ms;
  const VersionId version = *resident_.whole();
  Prng prng(version.baseline ^ (incarnation_ << 32U));
  const std::uint64_t seed = prng.next();
  const std::size_t owners = options_.owners.size();
  const auto rank = static_cast<std::size_t>((prng.below(owners) + samples_asked_++) % owners);
  send({options_.owners[rank], 0}, SampleRequest{version, seed});
}

// One without words answers nothing: another owner is asked.
void ReceiverEndpoint::Machine::on_sample(const Endpoint& from, const Sample& message) {
  const std::int64_t rank = rank_of(from);
  if (rank < 0 || message.payload.empty()) return;
  if (sample_at_ == kNever || resident_.whole() != message.version) return;
  sample_at_ = kNever;
  sample_ = CompareSample{message.version, static_cast<std::uint32_t>(rank), message.payload};
}

// Whether there is one to compare first. What brings everything relies on nothing that lies there.
bool ReceiverEndpoint::Machine::compare_sample() {
  if (!attempt_ || !sample_ || resident_.whole() != sample_->version) return false;
  if (brings_all(attempt_->mode, attempt_->owners)) return false;
  works_.add(*sample_);
  return true;
}

// An attempt may be over, and a new life begun, since it was to be compared.
void ReceiverEndpoint::Machine::sample_compared(const ReceiverWorkDone& done) {
  if (!sample_) return;
  const VersionId version = std::exchange(sample_, std::nullopt)->version;
  if (done.counts.different == 0) {
    if (!done.status.ok()) note("a sample is no good: " + done.status.message());
    if (done.counts.destinations > 0) DCR_PROBE("a receiver compares a sample of what it holds");
    return;
  }
  if (resident_.whole() != version) return;  // a restore writes over it
  if (attempt_ && attempt_->state != Attempt::State::kFailed) {
    fail_attempt(done.status, false);
    send(attempt_->coordinator, attempt_->failed);
  }
  resident_.set_unknown();
  base_loaded_ = false;
  audit_ = true;    // what brings it next
  failed_.clear();  // this is why
  begin_life("it does not hold " + version_text(version) + ": " + done.status.message(), 0);
}

}  // namespace dcr
