// Taking part in a run (paper §7; docs/PROTOCOL.md; docs/RUN_DIRECTORY.md): a trainer rank as an
// owner, a serving rank as a receiver, an engine by its request gate. One directory is all that a
// run on one machine needs; its coordinators and its node's agent are processes that members start
// where they are missing. A run on several machines has a file that lists its endpoints
// (docs/CLI.md "The file of a run"); its coordinators and nodes are started by whoever operates it.
//
//   auto run = dcr::RunSession::open("/run/dcr", {.program = "/usr/bin/dcr"});
//   auto owner = dcr::RunOwner::join(*run, *embedded_owner);      // in each trainer rank
//   owner->begin_refit("step 7", false);       // every rank, once it has stepped
//   do outcome = owner->wait(100); while (!outcome);   // what was committed, or why not
//
//   auto receiver = dcr::RunReceiver::join(*run, "engine-0.0", {.engine = "engine-0"});
//   while (!receiver->find_owners(100)) {}                        // then trace with its tensors
//   receiver->serve(*embedded_receiver);                          // until stop()
//
//   auto gate = dcr::RunGate::join(*run, "engine-0", {.receivers = {"engine-0.0"}});
//   while (auto work = gate->next(100)) …                         // close, drain, open
//
// Thread safety: each object's own comment says. Every object that has joined leaves the run when
// it is destroyed; the run notices by itself when a process ends. To destroy the RunSession ends
// what has joined through it, but for what its owner has yet to destroy.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dcr/cancel.h"
#include "dcr/control.h"
#include "dcr/owner.h"
#include "dcr/receiver.h"
#include "dcr/status.h"

namespace dcr {

struct RunOptions {
  // The command dcr, for the processes of a run directory; empty: somebody else starts them.
  std::string program;
  // Makes the run that a file names, if it is not there: of who coordinates it.
  bool create = false;
  // Points of the protocol at which this process kills or stops itself (docs/CLI.md, `dcr local
  // --kill`), to show that nothing comes of it. Roles and indices are not looked at.
  std::vector<std::string> kill_points;
  // What happens, in lines, with the endpoint that it happens to. Called on threads of the run's
  // own; must not wait. May be empty.
  std::function<void(const std::string& endpoint, const std::string& text)> log;
  // What somebody should see to; empty: log's.
  std::function<void(const std::string& endpoint, const std::string& text)> problem = {};
};

// What this process has open of a run. Thread-safe.
class RunSession {
 public:
  // Opens a run directory, and makes it if there is none; or what the run's file names. Errors:
  // kInvalidArgument, others may write to the directory, its path is too long for sockets, a
  // setting, a kill point or a key of the file is wrong; kUnsupported, a network file system; kIo.
  // With a file: kNotFound, no coordinator has made the run where this process looks; kMismatch,
  // the objects there are not the run's.
  // kCancelled: `cancel` was while another process or thread makes the run.
  static Result<std::unique_ptr<RunSession>> open(const std::string& path, RunOptions options,
                                                  const CancelToken* cancel = nullptr);
  ~RunSession();
  RunSession(const RunSession&) = delete;
  RunSession& operator=(const RunSession&) = delete;

  // As it was opened.
  const std::string& path() const;
  // What is committed now. Errors: the control plane's.
  Result<CommitRecord> committed();

  // Of open().
  struct State;
  explicit RunSession(std::shared_ptr<State> state);
  const std::shared_ptr<State>& state() { return state_; }

 private:
  std::shared_ptr<State> state_;
};

// How a refit ended.
struct RefitOutcome {
  CommitRecord committed;
  std::uint64_t attempts = 0;
  std::vector<std::string> without_baseline;  // owners that send everything next time
  std::string gate_closed_early;  // why gates closed before everything was staged; or empty
  OwnerResult sent;               // by this owner, in the attempt that was committed
};

// A trainer rank's owner in a run. Thread-safe, but for one thread at a time in wait().
class RunOwner {
 public:
  // Joins as "owner-RANK", or as the file's owner of this rank. `owner` needs no baseline: the
  // first refit sends everything. Nobody else may call it until this is destroyed. Errors: kExists,
  // such an owner takes part already; those of the run's directory. With a file: kInvalidArgument,
  // it has no such owner; kMismatch, its directory is not the coordinators'; kUnavailable, none of
  // them answers, which takes ten seconds; those of the endpoint's key and address; kCancelled by
  // `cancel` (may be null).
  static Result<std::unique_ptr<RunOwner>> join(RunSession& run, EmbeddedOwner& owner,
                                                const CancelToken* cancel = nullptr);
  ~RunOwner();
  RunOwner(const RunOwner&) = delete;
  RunOwner& operator=(const RunOwner&) = delete;

  // As what it joined as.
  const std::string& name() const;

  // Begins a refit of the weights as they are, which must stay so until wait() has its outcome.
  // Every owner of the trainer begins one with the same words. `asynchronous`: engines serve until
  // everything is staged. Errors: kInvalidArgument, one is open, or the label is none.
  Status begin_refit(const std::string& label, bool asynchronous);
  // Nothing: it is not over after `wait_ms`. Once it is over, says so until the next one begins.
  // Nothing of this owner reads the weights any more then. Errors: what attempts failed with, the
  // same for all owners; kCancelled after interrupt(); kUnknownOutcome.
  std::optional<Result<RefitOutcome>> wait(std::uint64_t wait_ms);
  // What the refit that is open waits for, as whoever leads says; waits a moment for the answer.
  std::string waits_for(const CancelToken* cancel = nullptr);
  // Ends the refit that is open, unless everything of it has been sent, on all owners: every
  // attempt at it fails, or it is withdrawn where none has begun. From now on this owner reads no
  // weights for it. wait() has the outcome soon; called again it withdraws the refit in any case.
  // Does not wait. False: none is open.
  bool interrupt();
  // EmbeddedOwner::replica_digests, between what the run asks of the owner.
  Result<std::vector<std::uint8_t>> replica_digests(const OwnerCall& call = {});

  struct State;
  explicit RunOwner(std::unique_ptr<State> state);

 private:
  std::unique_ptr<State> state_;
};

struct RunReceiverOptions {
  std::string engine;  // its name, which its gate has
  // The same number for an engine's gate and all its receivers, which is drawn at random when the
  // engine starts, from 1 to 2^62: what another engine of this name says, which was taken for dead
  // and is not, its gate does not hear. 0: a number of this RunSession's, where all of an engine
  // joins through one and nothing of it is left when another of its name joins through the same.
  std::uint64_t engine_instance = 0;
};

struct ServeOptions {
  // Called on a thread of the receiver's whenever an attempt's or a restore's payloads are all
  // applied, before it says so; an error fails the attempt; may be empty.
  std::function<Status()> applied = {};
  // Nothing has shown yet that what is written to the parameters stays what it is: what first
  // brings everything is taken a second time, in ApplyMode::kVerify, before the receiver says that
  // it has it. A word that differs keeps the gate closed, with the tensor named.
  bool audit = false;
};

// A serving rank's receiver in a run. Thread-safe, but for one thread at a time in find_owners()
// and serve().
class RunReceiver {
 public:
  // Errors: kExists, a receiver of this name takes part already; kInvalidArgument, the engine's
  // instance; as RunOwner::join.
  static Result<std::unique_ptr<RunReceiver>> join(RunSession& run, const std::string& name,
                                                   RunReceiverOptions options,
                                                   const CancelToken* cancel = nullptr);
  ~RunReceiver();
  RunReceiver(const RunReceiver&) = delete;
  RunReceiver& operator=(const RunReceiver&) = delete;

  // Whether owners are there; waits for them for at most `wait_ms`. Then tensors() and boxes() are
  // what they have published, for EmbeddedReceiver::create; before, they are empty. Errors:
  // kCorrupt, kMismatch.
  Result<bool> find_owners(std::uint64_t wait_ms);
  const std::vector<CanonicalTensor>& tensors() const;
  const std::vector<std::vector<CanonicalBox>>& boxes() const;

  // Takes part with a receiver that was made for these tensors and boxes, and prewarmed: restores
  // what is committed, joins, applies. Returns when other owners with other tensors have come (OK),
  // and after stop() (kCancelled); it has left the run then. To trace anew is only safe while the
  // engine cannot be serving, as !has_applied() shows. Errors: kUnsupported naming a tensor that
  // was refused, and why, or whose loader talks to other ranks, which would all have to call it in
  // an order that nothing tells them; kInvalidArgument before find_owners() was true.
  Status serve(EmbeddedReceiver& receiver, const ServeOptions& options = {});
  // Takes no part, and says why to the engine's gate, which stays closed, to the coordinators, so
  // that no refit waits for it, and to whoever asks how it stands. Returns after stop()
  // (kCancelled). Errors: as join.
  Status refuse(const Status& why);
  void stop();
  // Whether it has ever held what was committed.
  bool has_applied() const;

  // What it waits for or does, in words; "serves nothing" outside serve(). Waits a moment for the
  // answer, or until `cancel`.
  std::string status(const CancelToken* cancel = nullptr);

  struct State;
  explicit RunReceiver(std::unique_ptr<State> state);

 private:
  std::unique_ptr<State> state_;
};

struct RunGateOptions {
  std::vector<std::string> receivers;  // names of all of the engine's
  // Requests that have not finished half of `drain_ms` (the run's settings) after the gate began to
  // close are failed; else it goes on waiting for them, and attempts fail after the whole of it.
  bool fail_overdue = false;
  std::uint64_t engine_instance = 0;  // see RunReceiverOptions
};

// What a gate has done: everything of it is answered by RunGate::done.
struct GateWork {
  std::uint64_t number = 0;    // by which it is answered
  bool open = false;           // sets the label, drops caches, admits requests; or: closes
  std::string label;           // of what is committed, if it opens
  bool fail_requests = false;  // if it closes, rather than wait for requests that run
};

// An engine's request gate in a run (docs/PROTOCOL.md "Gate"). Thread-safe.
class RunGate {
 public:
  // Closed until the first work says otherwise. Errors: kInvalidArgument without receivers; as
  // RunReceiver::join.
  static Result<std::unique_ptr<RunGate>> join(RunSession& run, const std::string& engine,
                                               RunGateOptions options,
                                               const CancelToken* cancel = nullptr);
  ~RunGate();
  RunGate(const RunGate&) = delete;
  RunGate& operator=(const RunGate&) = delete;

  // The next thing to do; nothing if none came within `wait_ms`. One that fails requests comes
  // while one that waits for them is not done yet; anything else, after what came before is done.
  std::optional<GateWork> next(std::uint64_t wait_ms);
  // It is done: closed, with no request running and none that could begin; or open. An error of
  // what was to open keeps the gate closed, with that reason.
  void done(const GateWork& work, const Status& status);

  // Why it is not open; empty: it is. Waits a moment for the answer, or until `cancel`.
  std::string closed_because(const CancelToken* cancel = nullptr);
  // Which receiver takes no part, and why, so that it cannot open; empty: none that is known of.
  // Nothing: the gate does not answer, or takes no part any more.
  std::optional<std::string> refusal();

  struct State;
  explicit RunGate(std::unique_ptr<State> state);

 private:
  std::unique_ptr<State> state_;
};

}  // namespace dcr
