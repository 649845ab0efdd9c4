// How long work is asked to stop.
#pragma once

#include <atomic>

namespace dcr {

// A flag that asks long work to stop; set from a signal handler or another thread. Lock-free. Work
// that sees it returns kCancelled.
class CancelToken {
 public:
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  // For the next work. REQUIRES: what was asked to stop has ended.
  void reset() { cancelled_.store(false, std::memory_order_relaxed); }

 private:
  std::atomic<bool> cancelled_{false};
  static_assert(std::atomic<bool>::is_always_lock_free);
};

}  // namespace dcr
