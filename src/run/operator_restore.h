// How far a restore has come that an operator asked for (Operator::restore).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "run/operator.h"

namespace dcr {

// All in words.
struct RestoreProgress {
  std::vector<std::string> receivers;  // that do not hold the version, or a later one
  std::vector<std::string> gates;    // that are not open for it, of engines where none was refused
  std::vector<std::string> refused;  // receivers that take no part, and why
  // Of `receivers` and `gates`, all are silent.
  bool silent = true;
  // Names of owners that answer, do nothing, and have no baseline of K: nobody can restore.
  std::vector<std::string> without_baseline;

  bool done() const { return receivers.empty() && gates.empty(); }
  std::string text() const;  // of receivers and gates
};

// `receivers`: of Operator::restore, while `version` was committed. What one of them said in a life
// that was barred does not count.
RestoreProgress restore_progress(const RunConfig& config, const RunStatus& status,
                                 const std::vector<Member>& receivers, std::uint64_t version);

// "gate engine-0 is closed, its reason"; nothing where it is open for `version` or a later one.
std::string gate_waits_for(const RunStatus& status, const std::string& name, std::uint64_t version);

std::vector<std::string> names_of(const std::vector<Member>& members);

}  // namespace dcr
