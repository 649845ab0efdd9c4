// Every point between two effects of every machine, in every mode: one process dies there, and all
// must end well all the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/world.h"

namespace dcr {

struct CrashScenario {
  AttemptMode mode = AttemptMode::kMixed;  // of the attempt in which it dies
  bool asynchronous = false;
  DeathPoint death;

  std::string text() const;  // "overwrite async: owner-0 dies before its 2. stopped"
};

// All of them, by what happens in runs in which nobody dies.
std::vector<CrashScenario> crash_scenarios(SimModel& model);

// A transition in which nothing happens, that one, and another to see that all is well.
WorldResult run_scenario(SimModel& model, const CrashScenario& scenario, bool traced);

// A model that they run on: several owners, engines and nodes, several receivers to an engine; with
// residual tensors or without.
std::unique_ptr<SimModel> crash_model(bool residual = false);

// What a world without faults is like.
Swarm quiet_swarm();

}  // namespace dcr
