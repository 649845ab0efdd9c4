// The coordinator (paper Algorithm B.2, B.1; docs/PROTOCOL.md "Coordinator"): follows the leader
// until that stands still, then leads: waits for every owner's candidate, and drives attempts until
// one is committed.
//
// A takeover is nothing special: claiming makes an active attempt obsolete; the new leader stops it
// wherever it is bound, and owners, which still wait, are asked for the next one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "protocol/machine.h"

namespace dcr {

struct CoordinatorOptions {
  std::string name;
  // Claims at once, ends an active transition for good, and ends itself (`dcr abort`).
  bool abort_transition = false;
  Waits waits;
};

// Something for the operator to do; progress goes on by itself once it is done.
struct OperatorNeeded {
  std::string text;
};
// Progress, for whoever shows it.
struct CoordinatorProgress {
  std::uint64_t attempt = 0;
  VersionId base;
  AttemptMode mode = AttemptMode::kMixed;
  // "gather", "prepare", "stream", "close_gate", "open", "apply", "commit", "baseline", "stop",
  // "cleanup", …: the states of docs/PROTOCOL.md "Coordinator".
  const char* phase = "";
  std::uint64_t done = 0, of = 0;  // endpoints that the phase waits for
  std::string waits_for;           // one of them, by name, or what else is missing
  bool operator==(const CoordinatorProgress&) const = default;
};

using CoordinatorEvent = std::variant<Started, TimePassed, MessageArrived, ControlAnswered>;
using CoordinatorEffect =
    std::variant<SendMessage, CallControl, Note, Ended, OperatorNeeded, CoordinatorProgress>;

class Coordinator {
  class Machine;

 public:
  explicit Coordinator(CoordinatorOptions options);
  ~Coordinator();
  Coordinator(Coordinator&&) noexcept;
  Coordinator& operator=(Coordinator&&) noexcept;

  void step(const CoordinatorEvent& event, Milliseconds now,
            std::vector<CoordinatorEffect>* effects);
  Milliseconds wake_at() const;

  std::uint64_t incarnation() const;
  bool leading() const;
  StatusReply status() const;

 private:
  std::unique_ptr<Machine> machine_;
};

}  // namespace dcr
