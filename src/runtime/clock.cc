#include "runtime/clock.h"

#include <time.h>

#include <chrono>
#include <utility>

#include "base/assert.h"

namespace dcr {
namespace {

std::uint64_t processor_nanoseconds(clockid_t clock) {
  timespec now{};
  DCR_ASSERT(clock_gettime(clock, &now) == 0);
  return 1'000'000'000 * static_cast<std::uint64_t>(now.tv_sec) +
         static_cast<std::uint64_t>(now.tv_nsec);
}

class MonotonicClock final : public Clock {
 public:
  std::uint64_t nanoseconds() override {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
  }
  std::uint64_t thread_nanoseconds() override {
    return processor_nanoseconds(CLOCK_THREAD_CPUTIME_ID);
  }
  std::uint64_t process_nanoseconds() override {
    return processor_nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
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
  if (clock_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  spans_.push_back(span);
}

SpanTimer::SpanTimer(SpanRecorder* recorder, const char* stage, std::uint32_t endpoint)
    : recorder_(recorder != nullptr && recorder->clock_ != nullptr ? recorder : nullptr) {
  if (recorder_ == nullptr) return;
  span_ = {stage, endpoint, recorder_->clock_->nanoseconds(), 0, 0};
  span_.busy_ns = recorder_->clock_->thread_nanoseconds();
}

SpanTimer::~SpanTimer() {
  if (recorder_ == nullptr) return;
  span_.busy_ns = recorder_->clock_->thread_nanoseconds() - span_.busy_ns;
  span_.end_ns = recorder_->clock_->nanoseconds();
  recorder_->add(span_);
}

}  // namespace dcr
