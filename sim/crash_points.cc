#include "sim/crash_points.h"

#include <map>
#include <memory>
#include <set>
#include <utility>

namespace dcr {
namespace {

constexpr AttemptMode kModes[] = {AttemptMode::kMixed, AttemptMode::kOverwrite,
                                  AttemptMode::kDense};
// The transition in which the process dies.
constexpr std::uint32_t kTransition = 1;

using Seen = std::map<std::pair<std::string, std::string>, std::uint64_t>;  // process, effect

// Brings the attempt of the mode about.
class ModeMaker {
 public:
  ModeMaker(AttemptMode mode, WorldHooks* hooks) : mode_(mode) {
    hooks->receiver_work = [this](const SimProcess&, ReceiverWorkDone* done) { fail_once(done); };
  }

  void begin(World& world) {
    to_fail_ = mode_ == AttemptMode::kOverwrite;
    // Owners without a baseline send everything.
    if (mode_ == AttemptMode::kDense) world.trainer().restart();
  }

 private:
  // An attempt that has written makes the next one overwrite.
  void fail_once(ReceiverWorkDone* done) {
    if (!to_fail_ || done->kind != ReceiverWorkDone::Kind::kFinishStream || done->stream.restore) {
      return;
    }
    to_fail_ = false;
    done->status = {Code::kIo, "the device failed"};
  }

  const AttemptMode mode_;
  bool to_fail_ = false;
};

Swarm scenario_swarm(bool asynchronous) {
  Swarm swarm = quiet_swarm();
  swarm.transitions = 3;
  swarm.asynchronous = asynchronous ? 1024 : 0;
  swarm.kills_engines = true;
  swarm.restarts_receivers = true;
  return swarm;
}

Seen watch(SimModel& model, AttemptMode mode, bool asynchronous) {
  Seen seen;
  bool watched = false;
  WorldOptions options;
  options.swarm = scenario_swarm(asynchronous);
  ModeMaker maker(mode, &options.hooks);
  options.hooks.before_transition = [&](World& world, std::uint32_t number) {
    watched = number == kTransition;
    if (watched) maker.begin(world);
  };
  options.hooks.effect = [&](const SimProcess& process, const char* effect, bool after) {
    if (watched && !after) ++seen[{process.name(), effect}];
  };
  World(model, 1, std::move(options)).run();
  return seen;
}

// Of several alike the first one; both coordinators.
bool stands_for_others(const std::string& process) {
  return process.ends_with("-0") || process == "coordinator-1";
}

}  // namespace

Swarm quiet_swarm() {
  Swarm swarm;
  swarm.nodes = 2;
  swarm.coordinators = 2;
  swarm.staging_bytes_max = kMiB;
  swarm.decoded_bytes_max = kMiB;
  swarm.credit_bytes = kMiB;
  swarm.credit_payloads = 264;
  swarm.window_payloads = 264;
  swarm.latency_min = 100;
  swarm.latency_max = 1000;
  swarm.work_max = 500;
  swarm.through_bytes = 16;
  swarm.waits.repeat_ms = 50;
  swarm.waits.look_ms = 300;
  swarm.waits.beat_ms = 100;
  swarm.waits.leader_ms = 700;
  swarm.waits.prepare_ms = 2000;
  swarm.waits.send_ms = 3000;
  swarm.waits.drain_ms = 2000;
  swarm.waits.apply_ms = 3000;
  swarm.waits.stop_ms = 1000;
  swarm.waits.baseline_ms = 3000;
  swarm.waits.cleanup_ms = 1000;
  swarm.waits.join_hold_ms = 500;
  swarm.waits.membership_ms = 2000;
  swarm.waits.restore_ms = 3000;
  swarm.waits.restore_again_ms = 300;
  return swarm;
}

std::string CrashScenario::text() const {
  return std::string(attempt_mode_name(mode)) + (asynchronous ? " async: " : " sync: ") +
         death.process + " dies " + (death.after ? "after" : "before") + " its " +
         std::to_string(death.nth) + ". " + death.effect;
}

std::unique_ptr<SimModel> crash_model(bool residual) {
  for (std::uint64_t number = 0;; ++number) {
    if (SimModel::residual(number) != residual) continue;
    std::unique_ptr<SimModel> model = SimModel::make(number);
    if (model->owners() >= 2 && model->engines() >= 2 && model->ranks() >= 2) return model;
  }
}

std::vector<CrashScenario> crash_scenarios(SimModel& model) {
  const std::set<std::string> passive = {"note", "progress", "operator_needed"};
  std::vector<CrashScenario> all;
  for (const AttemptMode mode : kModes) {
    for (const bool asynchronous : {false, true}) {
      for (const auto& [point, count] : watch(model, mode, asynchronous)) {
        const auto& [process, effect] = point;
        if (!stands_for_others(process) || passive.contains(effect)) continue;
        for (const std::uint64_t nth : std::set<std::uint64_t>{1, (count + 1) / 2, count}) {
          for (const bool after : {false, true}) {
            all.push_back({mode, asynchronous, {process, effect, after, nth}});
          }
        }
      }
    }
  }
  return all;
}

WorldResult run_scenario(SimModel& model, const CrashScenario& scenario, bool traced) {
  WorldOptions options;
  options.traced = traced;
  options.swarm = scenario_swarm(scenario.asynchronous);
  ModeMaker maker(scenario.mode, &options.hooks);
  options.hooks.before_transition = [&](World& world, std::uint32_t number) {
    if (number != kTransition) return;
    maker.begin(world);
    world.set_death(scenario.death);
  };
  return World(model, 1, std::move(options)).run();
}

}  // namespace dcr
