#include "sim/world.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace dcr {
namespace {

// So long after the last fault everything may take to be well again, and so many events; more is
// no progress. Virtual: a hundred times what the longest waits take.
constexpr Microseconds kHealed = 300'000'000;
constexpr std::uint64_t kEventsMax = 1'000'000;  // for each transition
// How often an operator looks whether somebody still has the committed weights.
constexpr Microseconds kRescue = 10'000'000;

}  // namespace

World::World(SimModel& model, std::uint64_t seed, WorldOptions options)
    : model_(model),
      prng_(seed),
      swarm_(options.swarm ? *options.swarm : draw_swarm(prng_)),
      traced_(options.traced),
      options_(std::move(options)),
      control_(*this),
      oracle_(*this) {
  for (std::size_t i = 0; i < run_.size(); ++i) {
    run_[i] = static_cast<std::uint8_t>(prng_.next());
  }
  restore_run_ = run_;
  restore_run_[0] ^= 1;
  sample_run_ = run_;
  sample_run_[0] ^= 2;
  owners_may_die_ = prng_.below(2) == 0;
  trainer_ = std::make_unique<Trainer>(*this);
  make_processes();
  trace([&] { return swarm_.text(); });
}

World::~World() { model_.unguard(); }

void World::make_processes() {
  const auto add = [this](auto process, auto* list) {
    list->push_back(process.get());
    by_name_[process->name()] = process.get();
    processes_.push_back(std::move(process));
  };
  for (std::uint32_t i = 0; i < swarm_.coordinators; ++i) {
    add(std::make_unique<CoordinatorProcess>(*this, "coordinator-" + std::to_string(i), false),
        &coordinators_);
  }
  for (std::uint32_t i = 0; i < model_.owners(); ++i) {
    add(std::make_unique<OwnerProcess>(*this, i), &owners_);
  }
  for (std::uint32_t i = 0; i < swarm_.nodes; ++i) {
    add(std::make_unique<NodeProcess>(*this, i), &nodes_);
  }
  for (std::uint32_t i = 0; i < model_.engines(); ++i) {
    add(std::make_unique<GateProcess>(*this, i), &gates_);
  }
  for (std::uint32_t i = 0; i < model_.receivers(); ++i) {
    add(std::make_unique<ReceiverProcess>(*this, i), &receivers_);
  }
  auto aborter = std::make_unique<CoordinatorProcess>(*this, "operator", true);
  aborter_ = aborter.get();
  by_name_[aborter->name()] = aborter_;
  processes_.push_back(std::move(aborter));
  for (std::uint32_t engine = 0; engine < model_.engines(); ++engine) connect_engine(engine);
}

// An engine's processes know each other.
void World::connect_engine(std::uint32_t engine) {
  const auto first = receivers_.begin() + std::ptrdiff_t{engine} * model_.ranks();
  const std::vector<ReceiverProcess*> ranks(first, first + model_.ranks());
  for (ReceiverProcess* const receiver : ranks) receiver->set_gate(gates_[engine]);
  gates_[engine]->set_receivers(ranks);
}

SimProcess* World::find(const std::string& name) {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

SimProcess* World::find(const Endpoint& endpoint) {
  const auto is_it = [&](const SimProcess* process) {
    return process != nullptr && process->alive() && process->incarnation() == endpoint.incarnation;
  };
  if (SimProcess* const process = find(endpoint.name); is_it(process)) return process;
  SimProcess* const zombie = zombie_of(endpoint.name);
  return is_it(zombie) ? zombie : nullptr;
}

// Who does not say which one is meant may still be connected to the zombie.
SimProcess* World::addressee(const Endpoint& endpoint) {
  if (endpoint.incarnation != 0) return find(endpoint);
  SimProcess* const zombie = zombie_of(endpoint.name);
  return zombie != nullptr && prng_.below(2) == 0 ? zombie : find(endpoint.name);
}

SimProcess* World::zombie_of(const std::string& name) {
  for (const auto& zombie : zombies_) {
    if (zombie->there() && zombie->name() == name) return zombie.get();
  }
  return nullptr;
}

void World::start_all() {
  model_.initialize_owners();
  for (OwnerProcess* owner : owners_) owner->begin_initialized();
  for (std::uint32_t engine = 0; engine < model_.engines(); ++engine) kill_engine(engine);
  for (const auto& process : processes_) {
    if (process.get() != aborter_) start_later(*process, between(prng_, 0, 20'000));
  }
}

// What a killed engine holds is gone; the next one has loaded the base checkpoint, or what it takes
// for it, or has not.
void World::kill_engine(std::uint32_t engine) {
  gates_[engine]->die("its engine is killed");
  gates_[engine]->set_engine_instance(++engine_instances_);
  for (std::uint32_t rank = 0; rank < model_.ranks(); ++rank) {
    const std::uint32_t index = engine * model_.ranks() + rank;
    receivers_[index]->die("its engine is killed");
    const bool loaded = !swarm_.unloaded_engines || prng_.below(3) == 0;
    const bool other = swarm_.other_bases && prng_.below(3) == 0;
    const auto weights =
        static_cast<std::uint32_t>(other ? 1 + prng_.below(SimModel::kWeights - 1) : 0);
    Image image = model_.dense(weights, rank);
    if (!loaded) model_.scramble(prng_, rank, &image);
    receivers_[index]->model().set_image(image);
    receivers_[index]->begin_with_base(loaded ? std::optional(weights) : std::nullopt);
  }
}

void World::start_later(SimProcess& process, Microseconds delay) {
  schedule_.after(delay, [&process, life = process.life()] {
    if (!process.alive() && process.there() && process.life() == life) process.start();
  });
}

void World::land_later(std::uint64_t attempt, std::uint32_t owner, bool restore,
                       std::uint64_t number, Bytes bytes) {
  const ObjectKey key{restore ? restore_run_ : run_, attempt, owner, number};
  schedule_.after(prng_.below(1'000'000), [this, restore, key, bytes = std::move(bytes)] {
    SimStore& store = restore ? restores_ : payloads_;
    // Nobody is there to hear what became of it.
    static_cast<void>(store.put(key, bytes).ok());
  });
}

void World::count_fault(const char* what) {
  ++result_.faults;
  trace([&] { return std::string("fault: ") + what; });
}

void World::fail(const std::string& violation) {
  if (result_.violation.empty()) result_.violation = violation;
  trace([&] { return "violation: " + violation; });
}

void World::diverged(const std::string& violation) {
  result_.diverged = true;
  fail(violation);
}

void World::operator_needed(SimProcess& coordinator, const std::string& text) {
  trace([&] { return "operator needed: " + coordinator.name() + ": " + text; });
  // What it says next is about a refit that another one, which has taken over, goes on with by
  // then, or is about to.
  if (!faults_on_ || prng_.below(2) == 0) return;
  const Milliseconds leader = swarm_.waits.leader_ms;
  coordinator.pause_after(0, 1000 * (leader + prng_.below(leader + leader / 2)));
}

void World::refit_ended(bool committed) { refit_committed_ = committed; }

// A machine that is barred begins anew within its process; of zombies, which lose their names so,
// only gates: they bar the gates of the engines that were started for theirs.
void World::ended(SimProcess& process, const Status& status) {
  trace([&] { return process.name() + " ends: " + (status.ok() ? "done" : status.message()); });
  if (process.role() == Role::kOwner) static_cast<OwnerProcess&>(process).keep();
  process.die("its machine has ended");
  if (process.zombie() && process.role() != Role::kGate)
    return process.end_for_good("nor begins anew");
  if (&process != aborter_) start_later(process, between(prng_, 100, 50'000));
}

void World::died(SimProcess& process) {
  count_fault("process dies between two effects");
  if (process.zombie()) return process.end_for_good("it was taken for dead");
  if (process.role() == Role::kReceiver) {
    const std::uint32_t engine = static_cast<ReceiverProcess&>(process).engine();
    if (swarm_.kills_engines && (!swarm_.restarts_receivers || prng_.below(2) == 0)) {
      kill_engine(engine);
      const Microseconds down = down_time();
      start_later(*gates_[engine], down);
      for (std::uint32_t rank = 0; rank < model_.ranks(); ++rank) {
        start_later(*receivers_[engine * model_.ranks() + rank], down);
      }
      return;
    }
  }
  if (process.role() == Role::kOwner && prng_.below(2) == 0) {
    trainer_->restart();
    return;
  }
  if (&process != aborter_) start_later(process, down_time());
}

void World::set_death(DeathPoint death) { death_ = std::move(death); }

bool World::dies_here(const SimProcess& process, const char* effect, bool after) {
  if (hooks().effect) hooks().effect(process, effect, after);
  if (!death_ || after != death_->after || death_->process != process.name() ||
      death_->effect != effect || --death_->nth > 0) {
    return false;
  }
  death_.reset();
  return true;
}

Microseconds World::down_time() {
  constexpr Microseconds kMost[] = {2'000, 50'000, 400'000, 3'000'000};
  return between(prng_, 1'000, kMost[prng_.below(4)]);
}

// ---- sudden faults

SimProcess* World::victim() {
  std::vector<SimProcess*> all;
  const auto add = [&all](bool wanted, const auto& list) {
    if (wanted) all.insert(all.end(), list.begin(), list.end());
  };
  add(swarm_.kills_coordinators, coordinators_);
  add(swarm_.kills_nodes, nodes_);
  add(swarm_.kills_gates, gates_);
  add(swarm_.kills_owners && owners_may_die_, owners_);
  add((swarm_.restarts_receivers || swarm_.kills_engines) && !owners_may_die_, receivers_);
  return all.empty() ? nullptr : all[static_cast<std::size_t>(prng_.below(all.size()))];
}

void World::plan_sudden() {
  if (swarm_.sudden_max == 0) return;
  for (std::uint64_t left = prng_.below(swarm_.sudden_max + 1); left > 0; --left) {
    // Soon, as a transition has ends within a fraction of a second.
    const Microseconds when =
        prng_.below(3) == 0 ? prng_.below(swarm_.faults_last + 1) : prng_.below(60'000);
    schedule_.after(when, [this] {
      if (faults_on_) sudden();
    });
  }
}

void World::sudden() {
  enum class Kind : std::uint8_t { kCrash, kPause, kCutOff, kSlow, kAbort, kOutcome };
  std::vector<Kind> kinds;
  if (swarm_.crashes) kinds.assign(3, Kind::kCrash);
  if (swarm_.pauses) kinds.push_back(Kind::kPause);
  if (swarm_.partitions) kinds.push_back(Kind::kCutOff);
  if (swarm_.slowness) kinds.push_back(Kind::kSlow);
  if (swarm_.aborts) kinds.push_back(Kind::kAbort);
  if (swarm_.asks_outcomes) kinds.push_back(Kind::kOutcome);
  if (kinds.empty()) return;
  switch (kinds[static_cast<std::size_t>(prng_.below(kinds.size()))]) {
    case Kind::kCrash:
      return crash_suddenly();
    case Kind::kPause:
      return pause_suddenly();
    case Kind::kCutOff:
      return cut_off_suddenly();
    case Kind::kSlow:
      count_fault("disks and work are slow");
      slowness_ = 2 + prng_.below(40);
      return;
    case Kind::kAbort:
      if (aborter_->alive()) return;
      count_fault("operator aborts");
      return aborter_->start();
    case Kind::kOutcome:
      // Whoever may call the control plane may ask, and an attempt that is active ends by it.
      count_fault("outcome asked for");
      static_cast<void>(control_.plane().mark_obsolete(
          std::max<std::uint64_t>(1, control_.plane().read()->transition.attempt)));
      return;
  }
}

void World::crash_suddenly() {
  SimProcess* const process = victim();
  if (process == nullptr || !process->alive()) return;
  if (swarm_.zombies && prng_.below(2) == 0 && make_zombie(*process)) return;
  if (prng_.below(3) > 0) return process->die_after(prng_.below(25));
  process->die("sudden");
  died(*process);
}

void World::pause_suddenly() {
  // A coordinator that others replace meanwhile is the most trouble.
  SimProcess& process =
      *(prng_.below(2) == 0
            ? coordinators_[static_cast<std::size_t>(prng_.below(coordinators_.size()))]
            : processes_[static_cast<std::size_t>(prng_.below(processes_.size()))].get());
  if (!process.alive()) return;
  process.pause_after(prng_.below(40),
                      prng_.below(prng_.below(2) == 0 ? 100'000 : 2000 * swarm_.waits.leader_ms));
}

void World::cut_off_suddenly() {
  count_fault("processes are cut off");
  if (prng_.below(2) == 0) {
    for (const auto& process : processes_) {
      if (prng_.below(4) == 0) process->isolate(prng_.below(2'000'000));
    }
    return;
  }
  // An engine and all that is in it.
  const Microseconds lasts = prng_.below(1500 * swarm_.waits.membership_ms);
  const auto engine = static_cast<std::uint32_t>(prng_.below(model_.engines()));
  gates_[engine]->isolate(lasts);
  for (std::uint32_t rank = 0; rank < model_.ranks(); ++rank) {
    receivers_[engine * model_.ranks() + rank]->isolate(lasts);
  }
}

Microseconds World::drain_time() {
  const Microseconds drains = between(prng_, 0, swarm_.work_max);
  if (!fault(swarm_.long_requests, "requests run long")) return drains;
  return drains + prng_.below(3000 * swarm_.waits.drain_ms);
}

void World::heal() {
  trace([] { return std::string("faults end"); });
  faults_on_ = false;
  slowness_ = 1;
  payloads_.heal();
  restores_.heal();
  for (const auto& process : processes_) {
    process->heal();
    if (!process->alive() && process.get() != aborter_) {
      start_later(*process, between(prng_, 0, 20'000));
    }
  }
}

// ---- the run

void World::happen_next() {
  schedule_.next([](Schedule::Next& next) {
    if (next.process == nullptr) {
      next.what();
    } else {
      next.process->happen(next.life, std::move(next.what));
    }
  });
}

void World::run_until(Microseconds time, const std::function<bool()>& done) {
  while (result_.violation.empty() && schedule_.now() < time && !done()) {
    if (schedule_.empty()) return fail("nothing happens any more: " + unsettled());
    happen_next();
    if (schedule_.events() > kEventsMax * swarm_.transitions)
      return fail("no end of events: " + unsettled());
  }
}

// The refit is committed, every engine serves it, and nothing of an attempt is left but what a
// zombie may have put when all was removed: that goes with the next attempt.
bool World::settled() {
  if (trainer_->calling() || !refit_committed_) return false;
  const VersionId& committed = oracle_.committed().id;
  for (const GateProcess* gate : gates_) {
    if (!gate->alive() || gate->serving() != committed) return false;
  }
  for (const auto& process : processes_) {
    if (!process->alive() && process.get() != aborter_) return false;
  }
  return payloads_.objects() == 0 || zombie_put_;
}

std::string World::unsettled() {
  std::string text = trainer_->calling() ? "a refit is open" : "no refit is open";
  text += ", " + std::to_string(payloads_.objects()) + " objects";
  for (const auto& process : processes_) {
    if (!process->alive()) {
      if (process.get() != aborter_) text += "; " + process->name() + " is dead";
      continue;
    }
    const StatusReply status = process->status();
    text += "; " + process->name() + " is " + status.state + " (attempt " +
            std::to_string(status.attempt) + ") " + status.detail + " " + status.gate_reason;
  }
  return text;
}

// Nobody can restore what an owner lacks as its baseline: that takes the next refit, to which
// training comes.
void World::rescue() {
  const bool all = std::all_of(owners_.begin(), owners_.end(), [this](const OwnerProcess* owner) {
    return owner->alive() && owner->status().held == oracle_.committed().id;
  });
  if (all || trainer_->calling() || !refit_committed_) return;
  refit_committed_ = false;
  trainer_->call();
}

void World::transition(std::uint32_t number) {
  if (hooks().before_transition) hooks().before_transition(*this, number);
  refit_committed_ = false;
  zombie_put_ = false;
  if (!trainer_->calling()) trainer_->call();
  faults_on_ = swarm_.faulty;
  if (faults_on_) {
    plan_sudden();
    // Mostly faults end with the transition; sometimes they go on while nothing is refitted, and
    // sometimes the next refit is called among them.
    const bool hurry = swarm_.continuous && number + 1 < swarm_.transitions;
    const bool lasts = !hurry && prng_.below(6) == 0;
    run_until(schedule_.now() + swarm_.faults_last,
              [&] { return !lasts && !trainer_->calling() && refit_committed_; });
    if (hurry && !trainer_->calling() && refit_committed_) return;
    heal();
  }
  const Microseconds end = schedule_.now() + kHealed;
  const auto well = [this] { return settled(); };
  while (result_.violation.empty() && !well()) {
    if (schedule_.now() >= end) return fail("no end after the faults: " + unsettled());
    run_until(std::min(end, schedule_.now() + kRescue), well);
    if (!well()) rescue();
  }
}

WorldResult World::run() {
  start_all();
  if (prng_.below(2) == 0) run_until(prng_.below(100'000), [] { return false; });
  for (std::uint32_t i = 0; i < swarm_.transitions && result_.violation.empty(); ++i) {
    transition(i);
  }
  if (result_.violation.empty()) {
    for (const ReceiverProcess* receiver : receivers_) {
      oracle_.compare(*receiver, oracle_.committed(), "is at the end");
    }
  }
  result_.transitions = trainer_->transitions();
  result_.failures = trainer_->failures();
  result_.retried = trainer_->retried();
  result_.commits = oracle_.commits();
  result_.events = schedule_.events();
  result_.hash = schedule_.hash();
  result_.death_came = !death_;
  result_.payloads_most = oracle_.payloads_most();
  result_.owners = model_.owners();
  result_.nodes = swarm_.nodes;
  result_.receivers = model_.receivers();
  return std::move(result_);
}

void World::add_trace(const std::string& text) {
  const std::string time = std::to_string(schedule_.now());
  result_.trace.push_back(std::string(time.size() < 10 ? 10 - time.size() : 0, ' ') + time + "  " +
                          text);
}

}  // namespace dcr
