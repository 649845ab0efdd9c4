// A queue between threads that holds at most `capacity` values: a producer that is ahead waits,
// which is what bounds the memory of a pipeline.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "base/assert.h"

namespace dcr {

// Any number of producers and consumers. Values leave in the order in which they came. Thread-safe;
// the destructor must not run while a call is in progress.
template <typename T>
class BoundedQueue {
 public:
  // REQUIRES: capacity >= 1 (values).
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity) { DCR_ASSERT(capacity >= 1); }
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // Blocks while the queue is full. False, and the value is dropped, once the queue is closed.
  [[nodiscard]] bool push(T value) {
    std::unique_lock<std::mutex> lock(mutex_);
    not_full_.wait(lock, [&] { return closed_ || values_.size() < capacity_; });
    if (closed_) return false;
    values_.push_back(std::move(value));
    lock.unlock();
    not_empty_.notify_one();
    return true;
  }

  // Blocks while the queue is empty and open. Absent once it is closed and empty: what was pushed
  // before the close still comes out.
  std::optional<T> pop() {
    std::unique_lock<std::mutex> lock(mutex_);
    not_empty_.wait(lock, [&] { return closed_ || !values_.empty(); });
    if (values_.empty()) return std::nullopt;
    std::optional<T> value(std::move(values_.front()));
    values_.pop_front();
    lock.unlock();
    not_full_.notify_one();
    return value;
  }

  // No value comes in any more; wakes everyone. May be called again.
  void close() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      closed_ = true;
    }
    not_full_.notify_all();
    not_empty_.notify_all();
  }

 private:
  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable not_full_;
  std::condition_variable not_empty_;
  std::deque<T> values_;  // guarded by mutex_
  bool closed_ = false;   // guarded by mutex_
};

}  // namespace dcr
