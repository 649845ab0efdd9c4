// An engine's request gate (DESIGN §8 rule 5): the set of receivers that serve a request together
// opens to requests only on evidence. Starts closed.
//
// It opens when one linearizable read of the control plane shows K = (v, g) and, for every receiver
// of the engine, the incarnation that proved to this incarnation of the gate that it holds (v, g)
// whole; then label, caches, gate, in this order. It closes when a receiver is about to write, and
// when it cannot read the control plane for membership_ms.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "protocol/machine.h"

namespace dcr {

struct GateOptions {
  std::string engine;                  // its name
  std::vector<std::string> receivers;  // of the engine, all of them
  // When requests do not drain in time: fail them, or go on waiting.
  enum class DrainOverdue : std::uint8_t { kWait, kAbort };
  DrainOverdue drain_overdue = DrainOverdue::kWait;
  Waits waits;
};

// ---- work, each answered once

struct CloseAndDrain {
  bool fail_requests = false;  // rather than wait for them
};
// Sets the label, invalidates caches, then admits requests.
struct OpenFor {
  CommitRecord committed;
};
struct GateWorkDone {
  bool opened = false;  // of OpenFor
  Status status;        // an error of OpenFor keeps the gate closed, with that reason
};

using GateEvent = std::variant<Started, TimePassed, MessageArrived, ControlAnswered, GateWorkDone>;
using GateEffect = std::variant<SendMessage, CallControl, Note, Ended, CloseAndDrain, OpenFor>;

class Gate {
 public:
  explicit Gate(GateOptions options);

  void step(const GateEvent& event, Milliseconds now, std::vector<GateEffect>* effects);
  Milliseconds wake_at() const;

  std::uint64_t incarnation() const;
  bool open() const;  // requests may run; from the effect OpenFor until CloseAndDrain is answered
  StatusReply status() const;
};

}  // namespace dcr
