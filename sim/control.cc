#include "sim/control.h"

#include <memory>
#include <utility>

#include "base/assert.h"
#include "sim/world.h"

namespace dcr {
namespace {

struct Call {
  ControlRequest request;
  ControlAnswered answered;
  Microseconds back = 0;  // of the answer
  bool refused = false;
  bool forgotten = false;
  bool done = false;
};

}  // namespace

SimControl::SimControl(World& world) : world_(world) {
  Result<ControlState> state = new_control_state(world.run_id(), World::kBaseLabel);
  DCR_ASSERT(state.ok());
  plane_ = std::make_unique<MemoryControl>(*std::move(state));
}

ControlReply SimControl::carry_out(const ControlRequest& request) {
  if (!std::holds_alternative<CommitRequest>(request)) {
    ControlReply reply = call_control(*plane_, request);
    world_.oracle().on_call(request, reply);
    return reply;
  }
  const ControlRecords before = plane_->read().value();
  ControlReply reply = call_control(*plane_, request);
  world_.oracle().on_commit(before, plane_->read().value());
  return reply;
}

void SimControl::call(SimProcess& from, CallControl&& call) {
  Prng& prng = world_.prng();
  const Swarm& swarm = world_.swarm();
  const std::uint64_t life = from.life();
  world_.trace([&] { return from.name() + " calls " + control_request_name(call.request); });
  Microseconds there = between(prng, swarm.latency_min, swarm.latency_max);
  Microseconds back = between(prng, swarm.latency_min, swarm.latency_max);
  bool refused = from.isolated();
  bool forgotten = false;
  if (world_.faults_on()) {
    refused = refused || happens(prng, swarm.control_refuses);
    forgotten = happens(prng, swarm.control_forgets);
    if (happens(prng, swarm.control_slow)) {
      world_.count_fault("call slow");
      (prng.below(2) == 0 ? there : back) += prng.below(2'000'000);
    }
  }
  bool done = !refused && (!forgotten || prng.below(2) == 0);
  if (world_.hooks().forgets && world_.hooks().forgets(from, call.request)) done = forgotten = true;
  if (refused) world_.count_fault("call refused");
  if (forgotten) world_.count_fault(done ? "answer lost" : "call lost");
  auto made = std::make_unique<Call>(
      Call{std::move(call.request), {call.call, {}}, back, refused, forgotten, done});
  world_.schedule().after(there, [this, &from, life, made = std::move(made)]() mutable {
    ControlReply& reply = made->answered.reply;
    if (made->done) reply = carry_out(made->request);
    if (made->refused) reply = {Status(Code::kUnavailable, "the store does not answer"), {}};
    if (made->forgotten) reply = {Status(Code::kUnknownOutcome, "the answer was lost"), {}};
    const Microseconds delay = made->back;
    world_.schedule().after(
        delay, [&from, made = std::move(made)] { from.answer(std::move(made->answered)); }, &from,
        life);
  });
}

}  // namespace dcr
