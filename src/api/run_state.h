// What a process has open of a run, and what all that takes part in it does alike.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/cancelled.h"
#include "base/secure_random.h"
#include "dcr/run.h"
#include "run/endpoint_loop.h"
#include "run/process_context.h"
#include "run/run_directory.h"
#include "runtime/event_queue.h"
#include "runtime/threads.h"

namespace dcr {

// The answer to a question, of this process to an endpoint's loop or of an endpoint to another; or
// nothing, if none comes soon, or if `cancel` (may be null) is cancelled.
template <typename T>
std::optional<T> wait_for_answer(EventQueue<T>& answers, const CancelToken* cancel) {
  constexpr unsigned kLooks = 10;
  constexpr std::uint64_t kLookMs = 50;
  std::optional<T> answer;
  for (unsigned i = 0; i < kLooks && !answer && check_cancelled(cancel).ok(); ++i) {
    answer = answers.pop(kLookMs);
  }
  return answer;
}

// Members share it: it is there for as long as one of them is.
struct RunSession::State {
  std::string path;                         // of the directory, or of the file
  std::shared_ptr<RunDirectory> directory;  // or null: `listed` says who takes part
  RunConfig listed;
  std::function<void(const std::string& endpoint, const std::string& text)> problem;
  CancelToken cancel;
  std::unique_ptr<ProcessContext> context;  // uses the above
  std::uint64_t own_engine_instance = random_number(kCounterMax);

  // The name of an owner of this rank.
  Result<std::string> owner_name(std::uint32_t rank, std::uint32_t ranks) const;
  // `chosen`, or that of this process where it is 0.
  Result<std::uint64_t> engine_instance(std::uint64_t chosen) const;
  // The node that feeds an engine's receivers.
  Result<std::string> node_of(const std::string& engine) const;
};

// One endpoint of this process in a run. Leaves the run when it is destroyed: what it was is
// barred.
class RunMember {
 public:
  // `engine`: of a receiver. Errors: RunDirectory::enter's; where a file lists who takes part,
  // kInvalidArgument if it has no such endpoint, and check_store's.
  static Result<std::unique_ptr<RunMember>> enter(std::shared_ptr<RunSession::State> run,
                                                  const std::string& name, Role role,
                                                  const std::string& engine,
                                                  const CancelToken* cancel);
  RunMember(std::shared_ptr<RunSession::State> run, std::string name, Role role, std::string engine,
            std::unique_ptr<RunDirectory::Presence> presence);
  ~RunMember();
  RunMember(const RunMember&) = delete;
  RunMember& operator=(const RunMember&) = delete;

  ProcessContext& context() { return *run_->context; }
  const std::string& name() const { return name_; }
  // Bars whatever incarnation the endpoint has: it begins anew, if it goes on.
  Status bar();
  // Says what went wrong, to whoever looks after the run.
  void report(const std::string& text) { run_->problem(name_, text); }

  // Has the endpoint's loop end. Thread-safe.
  void stop() { stopping_ = true; }
  bool stopping() const { return stopping_ || run_->cancel.cancelled(); }
  LoopParts parts(std::function<bool()> cancelled);

 private:
  const std::shared_ptr<RunSession::State> run_;
  const std::string name_;
  const Role role_;
  const std::string engine_;
  std::atomic<bool> stopping_{false};
  const std::unique_ptr<RunDirectory::Presence> presence_;  // in a run directory
};

}  // namespace dcr
