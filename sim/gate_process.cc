#include "sim/processes.h"
#include "sim/world.h"

namespace dcr {

GateProcess::GateProcess(World& world, std::uint32_t engine)
    : MachineProcess(world, Role::kGate, World::engine_name(engine)), engine_(engine) {}

void GateProcess::begin() {
  GateOptions options;
  options.engine = name();
  options.engine_instance = engine_instance_;
  for (std::uint32_t rank = 0; rank < world_.model().ranks(); ++rank) {
    options.receivers.push_back("receiver-" +
                                std::to_string(engine_ * world_.model().ranks() + rank));
  }
  options.drain_overdue = world_.swarm().post_drains_fail ? GateOptions::DrainOverdue::kAbort
                                                          : GateOptions::DrainOverdue::kWait;
  options.waits = world_.swarm().waits;
  make_machine(std::move(options));
}

void GateProcess::lose() {
  drop_machine();
  serving_.reset();
  draining_ = 0;
  ++turn_;
}

void GateProcess::carry_out(GateEffect& effect) {
  GateWorkDone done;
  if (const auto* const opens = std::get_if<OpenFor>(&effect)) {
    done.opened = true;
    if (world_.fault(world_.swarm().open_fails, "gate does not open")) {
      done.status = {Code::kIo, "the caches cannot be invalidated"};
    } else {
      world_.oracle().on_open(*this, opens->committed);
      serving_ = opens->committed.id;
    }
    step_later(world_.work_time(), done, nullptr);
    return;
  }
  ++draining_;
  if (!std::get<CloseAndDrain>(effect).fail_requests) {
    return step_later(world_.drain_time() + world_.work_time(), done, &turn_);
  }
  // Requests that fail are over at once, and with them whatever waited until they had drained.
  ++turn_;
  for (std::uint64_t left = draining_; left > 0; --left) {
    step_later(world_.work_time(), done, &turn_);
  }
}

void GateProcess::answered(const GateEvent& event) {
  // Requests run until the gate is closed and they have drained.
  if (!std::get<GateWorkDone>(event).opened) {
    serving_.reset();
    --draining_;
  }
  step(event);
}

}  // namespace dcr
