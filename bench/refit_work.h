// The work of one refit without a protocol and without waiting: what `dcr-bench protocol` compares
// a cluster of processes with.
#pragma once

#include <cstdint>
#include <string>

#include "bench/checkpoint_files.h"
#include "dcr/status.h"

namespace dcr {

// Processor time in milliseconds.
struct RefitWork {
  double construct = 0;     // all owners' comparison, coding and compression
  double put = 0;           // and their durable objects
  double node = 0;          // one node's payloads: from the store, validated, decoded into sealed
                            // memory, which each of its receivers maps and validates
  double apply = 0;         // by the receivers of one node
  double baseline = 0;      // of all owners, which follows the commit
  double slowest_send = 0;  // the slowest stage that one thread runs

  // Of what was measured before something and after it: a machine's speed drifts within a minute.
  static RefitWork mean(const RefitWork& before, const RefitWork& after);

  // What the refit takes at least until gates open: no processor rests, nothing is repeated.
  double until_gates_open(double nodes, double cores) const;
  // And until owners have updated their baselines, which ends it.
  double until_end(double nodes, double cores) const;

  // Of all of it, the update of baselines too.
  double processor(double nodes) const {
    return construct + put + nodes * (node + apply) + baseline;
  }
};

struct RefitShape {
  std::uint64_t owners = 0, receivers_per_node = 0;
};

// Medians of `rounds`. `directory`: where objects are put. Errors: kMismatch, a receiver differs
// from a dense load.
Result<RefitWork> measure_refit_work(const CheckpointPair& pair, const RefitShape& shape,
                                     unsigned rounds, const std::string& directory);

}  // namespace dcr
