// After each commit a receiver asks one owner for a sample of the committed baseline. It compares
// it with what it holds before the next attempt writes: then its gate is closed, and parameters are
// where the attempt's beginning found them.
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

void ReceiverEndpoint::Machine::on_sample(const Endpoint& from, const Sample& message) {
  if (rank_of(from) < 0 || sample_at_ == kNever || resident_.whole() != message.version) return;
  sample_at_ = kNever;
  sample_ = CompareSample{message.version, message.payload};
}

// Whether there is one to compare first.
bool ReceiverEndpoint::Machine::compare_sample() {
  if (!attempt_ || !sample_ || resident_.whole() != sample_->version) return false;
  DCR_PROBE("a receiver compares a sample of what it holds");
  works_.add(*std::exchange(sample_, std::nullopt));
  return true;
}

void ReceiverEndpoint::Machine::sample_compared(const ReceiverWorkDone& done) {
  if (!attempt_) return;
  if (done.counts.different == 0) {
    if (!done.status.ok()) note(options_.name + ": a sample is no good: " + done.status.message());
    return;
  }
  const std::string version = version_text(attempt_->base);
  fail_attempt(done.status, false);
  send(attempt_->coordinator, attempt_->failed);
  resident_.set_unknown();
  audit_ = true;  // what brings it next
  begin_life("it does not hold " + version + ": " + done.status.message(), 0);
}

}  // namespace dcr
