// What can go wrong in one simulated world. Each seed draws which kinds of faults there are at all
// and how often each strikes ("swarm"), so that rare kinds are not always hidden behind frequent
// ones.
#pragma once

#include <cstdint>
#include <string>

#include "base/prng.h"
#include "protocol/machine.h"
#include "sim/schedule.h"

namespace dcr {

// Probabilities count in 1/1024.
struct Swarm {
  // ---- how the world is made
  std::uint32_t nodes = 2;
  std::uint32_t coordinators = 2;
  std::uint32_t transitions = 1;
  // In which of them the trainer goes to weights that have nothing to do with the last; others may.
  std::uint32_t far_transition = ~std::uint32_t{0};
  bool unloaded_engines = false;  // they start without the base checkpoint
  bool other_bases = false;       // some start with another checkpoint than the owners' base
  std::uint32_t asynchronous = 0;
  std::uint64_t staging_bytes_max = 0;
  std::uint64_t decoded_bytes_max = 0;
  std::uint64_t credit_payloads = 0;
  std::uint64_t credit_bytes = 0;
  std::uint32_t window_payloads = 0;
  bool post_drains_fail = false;  // DrainOverdue::kAbort
  bool audits = false;            // receivers without the base compare what they first get
  Waits waits;
  Microseconds latency_min = 0, latency_max = 0;  // of messages, calls and objects
  Microseconds work_max = 0;                      // of a piece of work
  std::uint32_t through_bytes = 0;  // messages that are encoded and decoded on their way
  std::uint32_t slices_max = 1;     // in which what is applied at a time gets to storage

  // ---- faults while they are on
  bool faulty = false;
  std::uint32_t lose = 0, repeat = 0, delay = 0;  // messages
  Microseconds delay_max = 0;
  std::uint32_t hand_over_lost = 0;
  std::uint32_t control_refuses = 0, control_forgets = 0, control_slow = 0;              // calls
  std::uint32_t store_refuses = 0, store_corrupts = 0, store_tears = 0, store_late = 0;  // objects
  std::uint32_t open_fails = 0;      // a gate that cannot be opened
  std::uint32_t long_requests = 0;   // requests that run longer than anybody waits for them
  std::uint32_t meetings_break = 0;  // of owners

  // Sudden faults of a transition: how many, and which kinds.
  std::uint32_t sudden_max = 0;
  bool crashes = false, pauses = false, partitions = false, slowness = false;
  bool kills_coordinators = false, kills_nodes = false, kills_gates = false;
  bool restarts_receivers = false;  // within a living engine
  bool kills_engines = false;       // with all it holds
  bool kills_owners = false;        // with weights and baselines
  bool zombies = false;             // of what is killed, some go on
  bool aborts = false;              // an operator ends a transition
  bool asks_outcomes = false;       // somebody asks for the outcome of an attempt, which ends it
  // Until when after the call of a refit faults are on.
  Microseconds faults_last = 0;

  // ---- the trainer
  bool continuous = false;              // calls one refit after another while faults are on
  std::uint32_t changes_candidate = 0;  // after a failure, rather than calling again with the same

  std::string text() const;
};

Swarm draw_swarm(Prng& prng);

inline bool happens(Prng& prng, std::uint32_t of_1024) {
  return of_1024 > 0 && prng.below(1024) < of_1024;
}
inline Microseconds between(Prng& prng, Microseconds least, Microseconds most) {
  return least + prng.below(most - least + 1);
}

}  // namespace dcr
