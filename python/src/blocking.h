// Calls that take long. The work runs on a thread of its own, without the GIL, while the calling
// thread looks for signals and hands on progress: Ctrl-C stops any call soon, though no signal
// handler of ours is installed and no other thread ever takes the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "dcr/cancel.h"
#include "dcr/options.h"
#include "dcr/status.h"
#include "errors.h"

namespace dcr::python {

// What the work is given.
struct Blocking {
  const CancelToken* cancel = nullptr;
  // Thread-safe; of several reports of one stage that come faster than they are handed on, the last
  // is. Empty where nobody listens.
  std::function<void(const Progress&)> progress;
};

// Runs `work` on a new thread and returns its status when it has ended, by itself or cancelled.
// `progress`: None, or what is called on this thread with each `dcr.Progress`. Throws, after the
// work has ended, what a signal's handler raised (KeyboardInterrupt), what `progress` raised, and
// what the work threw (no memory). REQUIRES: the GIL is held; the work does not touch Python.
Status run_and_wait(const std::function<Status(const Blocking&)>& work,
                    nanobind::handle progress = nanobind::none());

// The same for work that returns a Result<T>: the value, or the error raised.
template <typename T>
T run_blocking(const std::function<Result<T>(const Blocking&)>& work,
               nanobind::handle progress = nanobind::none()) {
  std::optional<T> value;
  check(run_and_wait(
      [&](const Blocking& blocking) {
        Result<T> result = work(blocking);
        if (!result.ok()) return result.status();
        value = std::move(result).value();
        return Status();
      },
      progress));
  return std::move(*value);
}

// For work without a value.
inline void run_blocking(const std::function<Status(const Blocking&)>& work,
                         nanobind::handle progress = nanobind::none()) {
  check(run_and_wait(work, progress));
}

// When work on the calling thread itself is to look for signals: true as often as other calls look,
// however often it is asked.
class SignalsDue {
 public:
  bool operator()();

 private:
  std::int64_t looked_ns_ = 0;
};

}  // namespace dcr::python
