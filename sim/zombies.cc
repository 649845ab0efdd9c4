// Processes that are taken for dead and are not: another one of the same name is started, while
// they go on, or wake up some time later, with whatever they had begun.
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "sim/world.h"

namespace dcr {
namespace {

constexpr Microseconds kKilledAtLast = 10'000'000;

}  // namespace

SimProcess& World::replace(SimProcess& old, std::unique_ptr<SimProcess> process) {
  SimProcess& started = *process;
  by_name_[old.name()] = &started;
  const auto found = std::find_if(processes_.begin(), processes_.end(),
                                  [&](const auto& one) { return one.get() == &old; });
  DCR_ASSERT(found != processes_.end());
  zombies_.push_back(std::exchange(*found, std::move(process)));
  old.become_zombie();
  if (!old.alive()) {
    old.end_for_good("it is dead");
    return started;
  }
  ++result_.zombies;
  count_fault("process is taken for dead");
  trace([&] { return old.name() + " is a zombie"; });
  // Often it is taken for dead as it does nothing.
  if (prng_.below(2) == 0) old.pause(prng_.below(2000 * swarm_.waits.leader_ms));
  schedule_.after(prng_.below(kKilledAtLast), [&old] { old.end_for_good("it is killed at last"); });
  return started;
}

void World::replace(std::vector<SimProcess*>* among, SimProcess& old,
                    std::unique_ptr<SimProcess> process) {
  std::replace(among->begin(), among->end(), &old, process.get());
  start_later(replace(old, std::move(process)), down_time());
}

bool World::make_zombie(SimProcess& process) {
  if (zombie_of(process.name()) != nullptr) return false;
  switch (process.role()) {
    case Role::kCoordinator:
      replace(&coordinators_, process,
              std::make_unique<CoordinatorProcess>(*this, process.name(), false));
      return true;
    case Role::kNode:
      replace(&nodes_, process,
              std::make_unique<NodeProcess>(*this, static_cast<NodeProcess&>(process).number()));
      return true;
    case Role::kOwner: {
      auto& old = static_cast<OwnerProcess&>(process);
      auto started = std::make_unique<OwnerProcess>(*this, old.rank(), !old.spare());
      started->begin_with(old.weights());
      owners_[old.rank()] = started.get();
      start_later(replace(old, std::move(started)), down_time());
      return true;
    }
    case Role::kReceiver:
      return make_zombie_engine(static_cast<ReceiverProcess&>(process).engine());
    case Role::kGate:
      return false;  // with its engine only
  }
  return false;
}

// Whatever of the engine is dead stays so. Its memory is free when all of the zombie before it is.
bool World::make_zombie_engine(std::uint32_t engine) {
  if (!swarm_.kills_engines || zombie_of(gates_[engine]->name()) != nullptr) return false;
  const std::vector<ReceiverProcess*>& ranks = gates_[engine]->receivers();
  if (std::any_of(ranks.begin(), ranks.end(), [&](const ReceiverProcess* receiver) {
        return zombie_of(receiver->name()) != nullptr;
      })) {
    return false;
  }
  const Microseconds down = down_time();
  const auto take_place = [&](auto** place, auto started) {
    auto* const old = std::exchange(*place, started.get());
    start_later(replace(*old, std::move(started)), down);
  };
  take_place(&gates_[engine], std::make_unique<GateProcess>(*this, engine));
  for (std::uint32_t rank = 0; rank < model_.ranks(); ++rank) {
    const std::uint32_t index = engine * model_.ranks() + rank;
    take_place(&receivers_[index],
               std::make_unique<ReceiverProcess>(*this, index, !receivers_[index]->spare()));
  }
  connect_engine(engine);
  kill_engine(engine);
  return true;
}

}  // namespace dcr
