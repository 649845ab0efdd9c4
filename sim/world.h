// One simulated run: a trainer, coordinators, owners, nodes, receivers and gates around one control
// plane and one object store, on a virtual clock, all from one seed. The machines, owners, codec
// and receivers are those of the product; what carries out their effects is not.
//
// Thread safety: none; a world uses its model alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/control.h"
#include "sim/faults.h"
#include "sim/meetings.h"
#include "sim/model.h"
#include "sim/network.h"
#include "sim/oracle.h"
#include "sim/processes.h"
#include "sim/schedule.h"
#include "sim/store.h"
#include "sim/trainer.h"

namespace dcr {

// A point at which a process dies: before or after its `nth` effect of a name, from 1.
struct DeathPoint {
  std::string process;
  std::string effect;
  bool after = false;
  std::uint64_t nth = 1;
};

// What a test does to a world beside the swarm. Each may be empty.
struct WorldHooks {
  // Before the trainer calls for the transition, which counts from 0.
  std::function<void(World&, std::uint32_t)> before_transition;
  // Of every effect, whether it was carried out already.
  std::function<void(const SimProcess&, const char*, bool)> effect;
  // May change what a receiver's work came to.
  std::function<void(const SimProcess&, ReceiverWorkDone*)> receiver_work;
  // May change what the object store gives.
  std::function<void(const ObjectKey&, std::optional<Bytes>*)> object;
  // Whether the answer of a call is lost once it was carried out.
  std::function<bool(const SimProcess&, const ControlRequest&)> forgets;
  // How often a payload is handed over; 1 as a rule.
  std::function<std::uint32_t(const HandOver&)> hand_over;
};

struct WorldOptions {
  bool traced = false;
  std::optional<Swarm> swarm;  // else drawn from the seed
  WorldHooks hooks;
};

struct WorldResult {
  std::string violation;  // empty: none
  bool diverged = false;  // some bits were not those of a dense load
  std::uint64_t transitions = 0;
  std::uint64_t commits = 0;
  std::uint64_t failures = 0;
  std::uint64_t retried = 0;  // transitions with more than one attempt
  std::uint64_t faults = 0;
  std::uint64_t zombies = 0;
  std::uint64_t events = 0;
  std::uint64_t hash = 0;
  bool death_came = true;  // that of set_death(), if there was one
  std::uint64_t payloads_most = 0;
  std::uint32_t owners = 0, nodes = 0, receivers = 0;
  std::vector<std::string> trace;
};

class World {
 public:
  static constexpr const char* kBaseLabel = "base";
  static std::string engine_name(std::uint32_t engine) {
    return "engine-" + std::to_string(engine);
  }

  // `model` must outlive it.
  World(SimModel& model, std::uint64_t seed, WorldOptions options);
  ~World();

  WorldResult run();

  // ---- what processes see

  SimModel& model() { return model_; }
  Prng& prng() { return prng_; }
  const Swarm& swarm() const { return swarm_; }
  Schedule& schedule() { return schedule_; }
  SimNetwork& network() { return network_; }
  SimControl& control() { return control_; }
  SimStore& payloads() { return payloads_; }
  SimStore& restores() { return restores_; }
  Oracle& oracle() { return oracle_; }
  Meetings& meetings() { return meetings_; }
  Trainer& trainer() { return *trainer_; }
  const Digest& run_id() const { return run_; }
  const Digest& restore_run_id() const { return restore_run_; }
  const Digest& sample_run_id() const { return sample_run_; }
  std::string node_of(std::uint32_t engine) const {
    return "node-" + std::to_string(engine % swarm_.nodes);
  }

  // The one that was started last.
  SimProcess* find(const std::string& name);
  // That of an incarnation, a zombie too; null: none lives.
  SimProcess* find(const Endpoint& endpoint);
  // Whom a message to an endpoint reaches; null: nobody.
  SimProcess* addressee(const Endpoint& endpoint);
  OwnerProcess& owner(std::uint32_t rank) { return *owners_[rank]; }
  ReceiverProcess& receiver(std::uint32_t index) { return *receivers_[index]; }

  bool faults_on() const { return faults_on_; }
  // Whether a fault of this kind happens now.
  bool fault(std::uint32_t of_1024, const char* what) {
    if (!faults_on_ || !happens(prng_, of_1024)) return false;
    count_fault(what);
    return true;
  }
  void count_fault(const char* what);
  const WorldHooks& hooks() const { return options_.hooks; }
  // From now on counted.
  void set_death(DeathPoint death);
  Microseconds latency() { return between(prng_, swarm_.latency_min, swarm_.latency_max); }
  Microseconds work_time() { return between(prng_, 1, swarm_.work_max) * slowness_; }
  Microseconds store_time() { return latency() * slowness_; }
  Microseconds drain_time();

  // ---- what processes tell

  void fail(const std::string& violation);
  void diverged(const std::string& violation);
  void ended(SimProcess& process, const Status& status);
  void died(SimProcess& process);
  bool dies_here(const SimProcess& process, const char* effect, bool after);
  void operator_needed(SimProcess& coordinator, const std::string& text);
  void refit_ended(bool committed);
  void zombie_puts() { zombie_put_ = true; }
  void start_later(SimProcess& process, Microseconds delay);
  void land_later(std::uint64_t attempt, std::uint32_t owner, bool restore, std::uint64_t number,
                  Bytes bytes);

  template <typename Text>
  void trace(const Text& text) {
    if (traced_) add_trace(text());
  }

 private:
  void make_processes();
  void start_all();
  void transition(std::uint32_t number);
  void plan_sudden();
  void sudden();
  void crash_suddenly();
  void pause_suddenly();
  void cut_off_suddenly();
  SimProcess* victim();
  SimProcess* zombie_of(const std::string& name);
  // False: the process cannot be one now.
  bool make_zombie(SimProcess& process);
  bool make_zombie_engine(std::uint32_t engine);
  SimProcess& replace(SimProcess& old, std::unique_ptr<SimProcess> process);
  void replace(std::vector<SimProcess*>* among, SimProcess& old,
               std::unique_ptr<SimProcess> process);
  void connect_engine(std::uint32_t engine);
  Microseconds down_time();
  void kill_engine(std::uint32_t engine);
  void heal();
  bool settled();
  std::string unsettled();
  void rescue();
  void happen_next();
  void run_until(Microseconds time, const std::function<bool()>& done);
  void add_trace(const std::string& text);

  SimModel& model_;
  Prng prng_;
  const Swarm swarm_;
  const bool traced_;
  const WorldOptions options_;
  Digest run_{};
  Digest restore_run_{};
  Digest sample_run_{};
  Schedule schedule_;
  SimNetwork network_{*this};
  SimControl control_;
  SimStore payloads_{*this};
  SimStore restores_{*this};
  Oracle oracle_;
  Meetings meetings_{*this};
  std::unique_ptr<Trainer> trainer_;
  std::vector<std::unique_ptr<SimProcess>> processes_;
  std::uint64_t engine_instances_ = 0;                // so far
  std::vector<std::unique_ptr<SimProcess>> zombies_;  // and those that died since
  std::unordered_map<std::string, SimProcess*> by_name_;
  std::vector<OwnerProcess*> owners_;
  std::vector<ReceiverProcess*> receivers_;
  std::vector<GateProcess*> gates_;
  std::vector<SimProcess*> coordinators_, nodes_;
  SimProcess* aborter_ = nullptr;

  bool faults_on_ = false;
  Microseconds slowness_ = 1;
  bool owners_may_die_ = false;   // else engines may: never both, someone has to hold K
  bool refit_committed_ = false;  // the last one
  bool zombie_put_ = false;       // an object, in this transition
  std::optional<DeathPoint> death_;
  WorldResult result_;
};

}  // namespace dcr
