// Threads come from here. An `Executor` runs tasks on a fixed number of threads, or, with one, all
// of them on the caller's thread in the order in which they are waited for, so that tests can run a
// pipeline without any concurrency.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "dcr/cancel.h"
#include "dcr/status.h"

namespace dcr {

class Executor {
 public:
  virtual ~Executor() = default;

  // Queues a task, which must not throw. Tasks start in the order of submission. Thread-safe.
  virtual void submit(std::function<void()> task) = 0;

  // Runs one queued task on the calling thread; false if there is none. Thread-safe.
  virtual bool run_one() = 0;

  // Blocks until `done()` is true, running queued tasks meanwhile. `done` is called under no lock
  // of the executor and must become true through a task of this executor or another thread that
  // calls `notify()`. REQUIRES: not called from a task of this executor (two tasks that each run
  // what the other waits for on top of themselves would never end).
  virtual void wait(const std::function<bool()>& done) = 0;
  virtual void notify() = 0;

  // How many tasks can run at a time, the waiting caller's thread included.
  virtual unsigned threads() const = 0;
};

// An executor on `threads` threads, the caller's (while it waits) being one of them: it starts
// threads - 1. With threads = 1 nothing runs concurrently. REQUIRES: threads >= 1. Destruction
// joins; queued tasks are run first.
std::unique_ptr<Executor> make_executor(unsigned threads);

// Processors that this process may run on; at least 1.
unsigned processor_count();

// An ordered parallel map with back-pressure: runs `produce(i)` for i in [0, count) on `executor`,
// at most `window` of them started and not yet consumed, and calls `consume(i, value)` on the
// calling thread in the order of i. The first error in that order ends it (later produced values
// are dropped) and is returned, as is kCancelled, looked for before each consumption. Returns only
// when no task refers to the arguments any more; produce(i) is not called for tasks that had not
// begun when it ended. T: movable. REQUIRES: window >= 1; as for Executor::wait.
template <typename T>
Status ordered_map(Executor& executor, std::uint64_t count, std::uint64_t window,
                   const CancelToken* cancel,
                   const std::function<Result<T>(std::uint64_t)>& produce,
                   const std::function<Status(std::uint64_t, T&&)>& consume);

}  // namespace dcr

#include "runtime/ordered_map.h"
