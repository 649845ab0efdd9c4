// What a process has open of a run, in Python, and what its handles have in common.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "blocking.h"
#include "dcr/run.h"
#include "errors.h"
#include "handle.h"

namespace dcr::python {

// What the run's threads log, until Python takes it: none of them ever takes the GIL. What comes
// while nobody takes is counted only.
class LogLines {
 public:
  using Line = std::tuple<bool, std::string, std::string>;  // a problem, endpoint, text

  void add(bool problem, const std::string& endpoint, const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (lines_.size() < kLinesMax) {
      lines_.emplace_back(problem, endpoint, text);
    } else {
      ++dropped_;
    }
  }
  std::vector<Line> take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (dropped_ > 0)
      lines_.emplace_back(true, "run", std::to_string(dropped_) + " lines were dropped");
    dropped_ = 0;
    return std::exchange(lines_, {});
  }

 private:
  static constexpr std::size_t kLinesMax = 4096;

  std::mutex mutex_;
  std::vector<Line> lines_;  // guarded by mutex_
  std::size_t dropped_ = 0;  // guarded by mutex_
};

// A handle of the core, which is ended without the GIL, for its threads may be waiting for that.
template <typename Core>
class Handle {
 public:
  Handle(std::string what, std::unique_ptr<Core> core)
      : what_(std::move(what)), core_(std::move(core)) {}
  ~Handle() { end(); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  // For one call: it ends when that has returned, even if it is closed meanwhile.
  std::shared_ptr<Core> core() const {
    bound_.check(what_.c_str());
    if (core_ == nullptr) {
      raise({Code::kInvalidArgument, what_ + " is closed"});
    }
    return core_;
  }

  void close() {
    bound_.check(what_.c_str());
    end();
  }

 private:
  void end() {
    std::shared_ptr<Core> core = std::move(core_);
    core_ = nullptr;
    if (bound_.here()) {
      const nanobind::gil_scoped_release release;
      core.reset();
    } else {
      // Threads of the process that made it are not there to be joined in another.
      static_cast<void>(std::make_unique<std::shared_ptr<Core>>(std::move(core)).release());
    }
  }

  std::string what_;
  ProcessBound bound_;
  std::shared_ptr<Core> core_;
};

class PythonRun : public Handle<RunSession> {
 public:
  PythonRun(const std::string& path, const std::string& program,
            const std::vector<std::string>& kill_points, bool create)
      : PythonRun(std::make_shared<LogLines>(), path, program, kill_points, create) {}

  std::vector<LogLines::Line> take_logs() { return lines_->take(); }

  std::pair<std::uint64_t, std::string> committed() {
    const std::shared_ptr<RunSession> run = core();
    const auto record = [&] {
      const nanobind::gil_scoped_release release;
      return run->committed();
    }();
    check(record.status());
    return {record->id.version, record->label};
  }

 private:
  PythonRun(std::shared_ptr<LogLines> lines, const std::string& path, const std::string& program,
            const std::vector<std::string>& kill_points, bool create)
      : Handle("the run", open(lines, path, program, kill_points, create)),
        lines_(std::move(lines)) {}

  static std::unique_ptr<RunSession> open(const std::shared_ptr<LogLines>& lines,
                                          const std::string& path, const std::string& program,
                                          const std::vector<std::string>& kill_points,
                                          bool create) {
    RunOptions options;
    options.create = create;
    options.program = program;
    options.kill_points = kill_points;
    options.log = [lines](const std::string& endpoint, const std::string& text) {
      lines->add(false, endpoint, text);
    };
    options.problem = [lines](const std::string& endpoint, const std::string& text) {
      lines->add(true, endpoint, text);
    };
    return run_blocking<std::unique_ptr<RunSession>>([&](const Blocking& call) {
      return RunSession::open(path, std::move(options), call.cancel);
    });
  }

  std::shared_ptr<LogLines> lines_;
};

// Calls without the GIL; throws what went wrong.
template <typename Call>
auto without_gil(const Call& call) {
  auto result = [&] {
    const nanobind::gil_scoped_release release;
    return call();
  }();
  return take(std::move(result));
}

// Operators, coordinators and how a run stands (run_driver.cc).
void bind_driver(nanobind::module_& module);

}  // namespace dcr::python
