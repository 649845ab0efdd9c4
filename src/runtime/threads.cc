#include "runtime/threads.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/assert.h"

namespace dcr {
namespace {

class PoolExecutor final : public Executor {
 public:
  explicit PoolExecutor(unsigned threads) : threads_(threads) {
    workers_.reserve(threads - 1);
    for (unsigned i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
  }

  ~PoolExecutor() override {
    while (run_one()) {
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    // A task that a worker ran last may have queued another.
    while (run_one()) {
    }
  }

  PoolExecutor(const PoolExecutor&) = delete;
  PoolExecutor& operator=(const PoolExecutor&) = delete;

  void submit(std::function<void()> task) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      queue_.push_back(std::move(task));
    }
    // All, not one: the one woken could be a waiter whose condition has just come true, and the
    // task would lie there.
    wake_.notify_all();
  }

  bool run_one() override {
    std::unique_lock<std::mutex> lock(mutex_);
    return run_front(lock);
  }

  void wait(const std::function<bool()>& done) override {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      // The count is taken before the condition is looked at: what comes true after the look has
      // raised it, so the sleep below cannot miss it.
      const std::uint64_t events = events_;
      lock.unlock();
      if (done()) return;
      lock.lock();
      if (run_front(lock)) continue;
      wake_.wait(lock, [&] { return events_ != events || !queue_.empty(); });
    }
  }

  void notify() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++events_;
    }
    wake_.notify_all();
  }

  unsigned threads() const override { return threads_; }

 private:
  // Runs the first queued task with the lock released; false if there is none. An exception from a
  // task ends the process here (noexcept): errors are values, and no caller could take it.
  bool run_front(std::unique_lock<std::mutex>& lock) noexcept {
    if (queue_.empty()) return false;
    {
      const std::function<void()> task = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      task();
    }  // what the task holds is freed before its end is told
    lock.lock();
    ++events_;
    wake_.notify_all();
    return true;
  }

  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      if (run_front(lock)) continue;
      if (stopping_) return;
      wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    }
  }

  const unsigned threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_
  std::uint64_t events_ = 0;                 // guarded by mutex_: task ends and notify() calls
  bool stopping_ = false;                    // guarded by mutex_
  std::vector<std::thread> workers_;
};

}  // namespace

std::unique_ptr<Executor> make_executor(unsigned threads) {
  DCR_ASSERT(threads >= 1);
  return std::make_unique<PoolExecutor>(threads);
}

unsigned processor_count() { return std::max(1U, std::thread::hardware_concurrency()); }

}  // namespace dcr
