// Time, which only shells (programs, benchmarks) have: they make a clock and hand it down. Nothing
// below them decides anything by it; it measures how long stages take (paper Figure C.5).
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace dcr {

class Clock {
 public:
  virtual ~Clock() = default;
  // Since some fixed moment; never goes back. Thread-safe.
  virtual std::uint64_t nanoseconds() = 0;
  // Processor time of the calling thread and of the whole process. A clock that knows of none gives
  // nanoseconds(). Thread-safe.
  virtual std::uint64_t thread_nanoseconds() { return nanoseconds(); }
  virtual std::uint64_t process_nanoseconds() { return nanoseconds(); }
};

// The system's monotonic clock. REQUIRES: called by shells only. Lives as long as the process.
Clock& monotonic_clock();

// One stretch of work at one endpoint (an owner or a receiver).
struct Span {
  const char* stage = "";      // of static storage
  std::uint32_t endpoint = 0;  // rank
  std::uint64_t begin_ns = 0;
  std::uint64_t end_ns = 0;
  std::uint64_t busy_ns = 0;  // processor time of the thread in between
};

// Gathers spans from any thread. Without a clock it keeps none and costs nothing.
class SpanRecorder {
 public:
  // With `parts` also of what stages consist of, which takes more looks at the clock.
  explicit SpanRecorder(Clock* clock = nullptr, bool parts = false)
      : clock_(clock), parts_(parts) {}

  // Of those who record parts; null: they are not wanted.
  Clock* parts_clock() const { return parts_ ? clock_ : nullptr; }

  // What was recorded since the last call, in the order of its ends.
  std::vector<Span> take();

  // For what begins and ends on two threads; else use a SpanTimer. Without a clock nothing is kept.
  void add(const Span& span);

 private:
  friend class SpanTimer;

  Clock* const clock_;
  const bool parts_;
  std::mutex mutex_;
  std::vector<Span> spans_;  // guarded by mutex_
};

// Records a span from its construction to its destruction. `recorder` may be null.
class SpanTimer {
 public:
  SpanTimer(SpanRecorder* recorder, const char* stage, std::uint32_t endpoint);
  ~SpanTimer();
  SpanTimer(const SpanTimer&) = delete;
  SpanTimer& operator=(const SpanTimer&) = delete;

 private:
  SpanRecorder* const recorder_;
  Span span_;
};

}  // namespace dcr
