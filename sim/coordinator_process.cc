#include "sim/processes.h"
#include "sim/world.h"

namespace dcr {

void CoordinatorProcess::begin() {
  CoordinatorOptions options;
  options.name = name();
  options.abort_transition = abort_;
  options.waits = world_.swarm().waits;
  make_machine(std::move(options));
}

void CoordinatorProcess::carry_out(CoordinatorEffect& effect) {
  if (const auto* const needed = std::get_if<OperatorNeeded>(&effect)) {
    world_.operator_needed(*this, needed->text);
  }
}

}  // namespace dcr
