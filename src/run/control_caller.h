// Carries out the control calls of a process's machines, one after another, on a thread of its own.
#pragma once

#include <functional>
#include <memory>

#include "control/sqlite_control.h"
#include "protocol/control_call.h"
#include "runtime/threads.h"

namespace dcr {

class ControlCaller {
 public:
  // `control` must outlive this.
  explicit ControlCaller(SqliteControl& control) : control_(control), thread_(make_executor(2)) {}

  // `done` is called on that thread. A claim that finds the store locked by a process that was
  // stopped ends that process and is tried again (docs/ARCHITECTURE.md "The control plane").
  // Thread-safe.
  void call(ControlRequest request, std::function<void(ControlReply)> done);

 private:
  ControlReply carry_out(const ControlRequest& request);

  SqliteControl& control_;
  const std::unique_ptr<Executor> thread_;  // one thread beside the callers'
};

}  // namespace dcr
