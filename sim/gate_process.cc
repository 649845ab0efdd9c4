#include "sim/processes.h"
#include "sim/world.h"

namespace dcr {

GateProcess::GateProcess(World& world, std::uint32_t engine)
    : MachineProcess(world, Role::kGate, World::engine_name(engine)), engine_(engine) {}

void GateProcess::begin() {
  GateOptions options;
  options.engine = name();
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
}

void GateProcess::carry_out(GateEffect& effect) {
  GateWorkDone done;
  if (const auto* const opens = std::get_if<OpenFor>(&effect)) {
    done.opened = true;
    if (world_.fault(world_.swarm().open_fails, "gate does not open")) {
      done.status = {Code::kIo, "the caches cannot be invalidated"};
    } else {
      world_.oracle().on_open(*this, engine_, opens->committed);
      serving_ = opens->committed.id;
    }
    step_later(world_.work_time(), done, nullptr);
    return;
  }
  // Requests drain a while; those that fail are over sooner.
  const Microseconds drain =
      std::get<CloseAndDrain>(effect).fail_requests ? 0 : world_.drain_time();
  step_later(drain + world_.work_time(), done, nullptr);
}

void GateProcess::answered(const GateEvent& event) {
  // Requests run until the gate is closed and they have drained.
  if (!std::get<GateWorkDone>(event).opened) serving_.reset();
  step(event);
}

}  // namespace dcr
