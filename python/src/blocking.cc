#include "blocking.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "bindings.h"
#include "records.h"

namespace dcr::python {
namespace {

namespace nb = nanobind;

// How often signals are looked for: well below what a user notices, and nearly free.
constexpr std::chrono::milliseconds kSignalInterval{50};

// `Progress` with a stage that lives as long as Python wants it.
struct ProgressReport {
  std::string stage;
  std::uint64_t bytes_done = 0;
  std::uint64_t bytes_total = 0;
};

// What the two threads of a call share.
class Call {
 public:
  // On the work's thread.
  void report(const Progress& progress) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (reports_.empty() || reports_.back().stage != progress.stage) {
      reports_.push_back({progress.stage, 0, 0});
    }
    reports_.back().bytes_done = progress.bytes_done;
    reports_.back().bytes_total = progress.bytes_total;
    changed_.notify_one();
  }

  void end() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    changed_.notify_one();
  }

  // On the calling thread, without the GIL: waits until there is something to do, at most
  // kSignalInterval. Moves what was reported to `reports`; true when the work has ended.
  bool wait(std::deque<ProgressReport>* reports) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kSignalInterval, [this] { return ended_ || !reports_.empty(); });
    reports->swap(reports_);
    return ended_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ProgressReport> reports_;  // guarded by mutex_, as the rest
  bool ended_ = false;
};

// Joins however the scope is left.
class JoinedThread {
 public:
  explicit JoinedThread(std::function<void()> run) : thread_(std::move(run)) {}
  JoinedThread(const JoinedThread&) = delete;
  JoinedThread& operator=(const JoinedThread&) = delete;
  ~JoinedThread() { thread_.join(); }

 private:
  std::thread thread_;
};

// Hands on what is due, with the GIL. Throws what Python raised.
void serve_python(const std::deque<ProgressReport>& reports, nb::handle progress) {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  for (const ProgressReport& report : reports) progress(report);
}

}  // namespace

Status run_and_wait(const std::function<Status(const Blocking&)>& work, nb::handle progress) {
  CancelToken cancel;
  Call call;
  Blocking blocking;
  blocking.cancel = &cancel;
  if (!progress.is_none()) blocking.progress = [&call](const Progress& p) { call.report(p); };
  Status status;
  std::exception_ptr thrown;       // by the work
  std::exception_ptr interrupted;  // by Python; the work is cancelled then
  {
    const nb::gil_scoped_release no_gil;
    const JoinedThread thread([&] {
      try {
        status = work(blocking);
      } catch (...) {
        thrown = std::current_exception();
      }
      call.end();
    });
    for (bool ended = false; !ended;) {
      std::deque<ProgressReport> reports;
      ended = call.wait(&reports);
      if (interrupted) continue;
      try {
        serve_python(reports, progress);
      } catch (...) {
        interrupted = std::current_exception();
        cancel.cancel();
      }
    }
  }
  if (interrupted) std::rethrow_exception(interrupted);
  if (thrown) std::rethrow_exception(thrown);
  return status;
}

bool SignalsDue::operator()() {
  const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
  if (now - std::chrono::nanoseconds(looked_ns_) < kSignalInterval) return false;
  looked_ns_ = now.count();
  return true;
}

void bind_progress(nb::module_& module) {
  Record<ProgressReport>(module, "Progress", "How far a stage of a long call is.")
      .field("stage", &ProgressReport::stage, "\"diff\", \"check\", \"apply\", \"verify\", …")
      .field("bytes_done", &ProgressReport::bytes_done, "bytes of tensor data that are done")
      .field("bytes_total", &ProgressReport::bytes_total, "bytes of tensor data in all");
}

}  // namespace dcr::python
