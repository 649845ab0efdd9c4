// Many simulated worlds, one per seed, and what came of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/world.h"

namespace dcr {

struct CampaignOptions {
  std::uint64_t seed = 1;  // the first
  std::uint64_t runs = 1;
  // If not 0, more runs, a thousand at a time, until there were so many transitions.
  std::uint64_t transitions = 0;
  unsigned jobs = 1;
  bool stop_at_violation = false;
  // One run in so many is run again, and everything must happen in it again.
  std::uint64_t repeat_one_in = 19;  // so that it is 5 % of any number
};

struct Violation {
  std::uint64_t seed = 0;
  std::string text;
};

struct CampaignResult {
  std::uint64_t runs = 0;
  std::uint64_t transitions = 0;
  std::uint64_t commits = 0;
  std::uint64_t failures = 0;     // refits that ended without a commit
  std::uint64_t divergences = 0;  // runs in which some bits were not those of a dense load
  std::uint64_t faults = 0;
  std::uint64_t zombies = 0;
  std::uint64_t events = 0;
  std::uint64_t full_runs = 0;     // two or more owners and nodes, three receivers, four payloads
  std::uint64_t retried_runs = 0;  // some transition had several attempts
  std::uint64_t repeated = 0;
  std::uint64_t unequal = 0;  // repeated runs in which something else happened
  double seconds = 0;         // of processor time, over all jobs
  std::vector<Violation> violations;
};

CampaignResult run_campaign(const CampaignOptions& options);

// One seed's world.
WorldResult run_seed(std::uint64_t seed, bool traced);

// The seed that the calling thread runs; 0: none.
std::uint64_t running_seed();

}  // namespace dcr
