#include "run/control_caller.h"

#include <utility>
#include <variant>

namespace dcr {

void ControlCaller::call(ControlRequest request, std::function<void(ControlReply)> done) {
  thread_->submit(
      [this, request = std::move(request), done = std::move(done)] { done(carry_out(request)); });
}

ControlReply ControlCaller::carry_out(const ControlRequest& request) {
  ControlReply reply = call_control(control_, request);
  if (!std::holds_alternative<ClaimRequest>(request)) return reply;
  if (reply.status.code() != Code::kUnavailable || !control_.stuck()) return reply;
  const Result<bool> ended = control_.kill_stuck();
  if (!ended.ok() || !*ended) return reply;
  return call_control(control_, request);
}

}  // namespace dcr
