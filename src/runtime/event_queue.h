// What one thread waits for: events from other threads, or a moment.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace dcr {

// Any number of producers, one consumer. Values leave in the order in which they came. Pushing
// never waits: who pushes bounds what may be under way. Thread-safe; the destructor must not run
// while a call is in progress.
template <typename T>
class EventQueue {
 public:
  EventQueue() = default;
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  void push(T value) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      values_.push_back(std::move(value));
    }
    not_empty_.notify_one();
  }

  // The same, unless `values_max` wait already: then the value is dropped and the result false.
  bool try_push(T value, std::size_t values_max) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (values_.size() >= values_max) return false;
      values_.push_back(std::move(value));
    }
    not_empty_.notify_one();
    return true;
  }

  // Waits for at most `milliseconds`; absent if nothing came.
  std::optional<T> pop(std::uint64_t milliseconds) {
    std::unique_lock<std::mutex> lock(mutex_);
    not_empty_.wait_for(lock, std::chrono::milliseconds(milliseconds),
                        [&] { return !values_.empty(); });
    if (values_.empty()) return std::nullopt;
    std::optional<T> value(std::move(values_.front()));
    values_.pop_front();
    return value;
  }

 private:
  std::mutex mutex_;
  std::condition_variable not_empty_;
  std::deque<T> values_;  // guarded by mutex_
};

}  // namespace dcr
