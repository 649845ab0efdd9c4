// What an operator does with a running cluster: refit, status, verification, abort and restore.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dcr/control.h"
#include "dcr/status.h"
#include "protocol/coordinator.h"
#include "protocol/messages.h"
#include "run/mailbox.h"
#include "run/process_context.h"
#include "runtime/event_queue.h"

namespace dcr {

// Whether whoever is named so may command.
bool is_operator(const RunPeers& peers, const std::string& name);

// What an owner's refit failed of. After so many attempts it was given up, which is for an operator
// (kConflict): something fails every time.
Status refit_failure(const std::string& owner, const OperatorReply& reply,
                     std::uint64_t attempts_max);

// How the cluster stands.
struct RunStatus {
  Membership membership;
  // Of the endpoints that answered; the others are silent.
  std::map<std::string, StatusReply> endpoints;
  std::map<std::string, std::uint64_t> incarnations;  // in which they did
  std::vector<std::string> silent;
};

struct RefitReport {
  CommitRecord committed;
  std::uint64_t attempts = 0;
  std::uint64_t payload_bytes = 0;            // of the attempt that was committed
  std::vector<std::string> without_baseline;  // owners that are dense next time
  std::optional<EarlyClose> gate_closed_early;
};

// One engine, in a RunStatus.
struct EngineStatus {
  std::string name;
  bool answered = false;  // its gate; else only `held` is known
  bool open = false;
  std::string reason;  // of a gate that is not open
  double seconds = 0;  // that it has been open, or not
  std::optional<std::uint64_t>
      held;  // the oldest version of its receivers; nothing: one holds none
};
// Those of the configuration, and those of the control plane's receivers and gates; ascending by
// name.
std::vector<EngineStatus> engines_of(const RunConfig& config, const RunStatus& status);

struct EnginesReport {
  std::uint64_t engines = 0;
  std::uint64_t bytes_compared = 0;
  std::uint64_t bytes_differing = 0;
  std::uint64_t reads = 0;            // by engines' readers, of all weights, since their start
  std::uint64_t reads_different = 0;  // of those, the ones that were not their label's version
  double gate_seconds = 0;            // that the gate was closed since it first opened, the longest
};

// What processes have counted since they began. Those that do not answer are not in it.
struct RunCounts {
  EnginesReport engines;
  std::uint64_t owners = 0;
  double refit_seconds = 0;         // of the owner that waited longest
  std::uint64_t payload_bytes = 0;  // of attempts that were committed
};

// Not thread-safe.
class Operator {
 public:
  // As the operator of this name in the configuration. `context` must outlive it.
  static Result<std::unique_ptr<Operator>> open(ProcessContext& context, const std::string& name);
  Operator(ProcessContext& context, std::string name, std::unique_ptr<Mailbox> mailbox);

  // Another reason to give up (kCancelled) than that the process is asked to end. Thread-safe.
  void set_cancelled(std::function<bool()> cancelled) { cancelled_ = std::move(cancelled); }

  // Has every owner load `path` and refit it, and waits until the outcome is final. `idle` is
  // called a few times a second meanwhile. Errors: refit_failure's; kCancelled.
  Result<RefitReport> refit(const std::string& path, const std::string& label, bool asynchronous,
                            const std::function<void()>& idle);

  // Waits for answers for at most `wait_ms`.
  Result<RunStatus> status(std::uint64_t wait_ms);

  // Waits for answers for at most `wait_ms`.
  Result<RunCounts> counts(std::uint64_t wait_ms);

  // Compares every byte of the engines with a dense load of `path`; waits for gates to open, but
  // for no more than `wait_ms`, and a moment more to say why they did not. Error kUnavailable
  // naming engines that were not compared.
  Result<EnginesReport> verify(const std::string& path, const std::vector<std::string>& engines,
                               std::uint64_t wait_ms, const std::function<void()>& idle);

  // Bars every receiver that is a member and does not hold K, so that it comes back in a new life
  // and restores it, and returns all that do not: those it barred, with their incarnations, and,
  // with incarnation 0, those that restore already, take no part at present (of a configuration's),
  // or were refused. Waits for answers for at most `wait_ms`: who is silent is behind. Error
  // kConflict: something is to be barred, and an attempt is active.
  Result<std::vector<Member>> restore(std::uint64_t wait_ms);

  // Waits until what restore() returned holds K, or what is committed meanwhile, and all gates are
  // open. `waits` is told what for whenever that is something else; may be empty. Errors:
  // kUnsupported, all is as it should be but for receivers that were refused; kConflict, owners
  // have no baseline to send; kUnavailable naming what was waited for, when nothing has changed for
  // restore_ms, or for a minute if all that is left is silent; kCancelled.
  Status wait_for_restored(const std::vector<Member>& receivers,
                           const std::function<void(const std::string& what)>& waits);

 private:
  // As a leader for a moment. Error kConflict: an attempt is active.
  Status bar(const std::vector<Endpoint>& endpoints);
  // Sends a command again and again until all of `to` have answered for good.
  Result<std::map<std::string, OperatorReply>> command(OperatorCommand command,
                                                       const std::vector<std::string>& to,
                                                       std::optional<std::uint64_t> wait_ms,
                                                       bool repeat_failures,
                                                       const std::function<void()>& idle);
  // Takes the next answer, of whichever kind, into the maps below; waits for at most so long.
  void take_answer(std::uint64_t wait_ms);
  std::uint64_t now_ms() const { return context_.options().clock->nanoseconds() / 1'000'000; }
  bool cancelled() const {
    return context_.options().cancel->cancelled() || (cancelled_ && cancelled_());
  }
  std::uint64_t next_id() { return context_.options().clock->nanoseconds(); }

  ProcessContext& context_;
  const std::string name_;
  const std::unique_ptr<Mailbox> mailbox_;
  std::function<bool()> cancelled_;  // or empty
  EventQueue<std::pair<Endpoint, Message>> answers_;
  std::uint64_t command_id_ = 0;                  // of the last command
  std::map<std::string, OperatorReply> replies_;  // the last ones, by endpoint
  RunStatus status_;                              // as far as answers have come
};

}  // namespace dcr
