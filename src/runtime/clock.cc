#include "runtime/clock.h"

#include <chrono>
#include <utility>

namespace dcr {
namespace {

class MonotonicClock final : public Clock {
 public:
  std::uint64_t nanoseconds() override {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
  }
};

}  // namespace

Clock& monotonic_clock() {
  static MonotonicClock clock;
  return clock;
}

std::vector<Span> SpanRecorder::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(spans_, {});
}

void SpanRecorder::add(const Span& span) {
  const std::lock_guard<std::mutex> lock(mutex_);
  spans_.push_back(span);
}

SpanTimer::SpanTimer(SpanRecorder* recorder, const char* stage, std::uint32_t endpoint)
    : recorder_(recorder != nullptr && recorder->clock_ != nullptr ? recorder : nullptr) {
  if (recorder_ == nullptr) return;
  span_ = {stage, endpoint, recorder_->clock_->nanoseconds(), 0};
}

SpanTimer::~SpanTimer() {
  if (recorder_ == nullptr) return;
  span_.end_ns = recorder_->clock_->nanoseconds();
  recorder_->add(span_);
}

}  // namespace dcr
