// The state of a Coordinator, and its parts: leadership and calls (coordinator.cc), what an attempt
// is made of (coordinator_gather.cc, coordinator_prepare.cc), the attempt (coordinator_attempt.cc),
// its end (coordinator_stop.cc).
//
// Events change the state; `advance` then does whatever the phase calls for, so that nothing
// depends on the order in which events come.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "protocol/coordinator.h"
#include "protocol/coordinator_gather.h"
#include "protocol/member.h"

namespace dcr {

class Coordinator::Machine {
 public:
  explicit Machine(CoordinatorOptions options);

  void step(const CoordinatorEvent& event, Milliseconds now,
            std::vector<CoordinatorEffect>* effects);
  Milliseconds wake_at() const { return ended_ ? kNever : wake_; }
  std::uint64_t incarnation() const { return session_.incarnation(); }
  bool leading() const { return token_ != 0; }
  StatusReply status() const;

 private:
  enum class Phase : std::uint8_t {
    kFollow,    // another leads, or this one is not enrolled yet
    kClaim,     // that one stood still
    kGather,    // waits for owners' requests, and for members
    kPrepare,   // the call
    kAttempt,   // until every receiver has completed
    kCommit,    // the call, until its outcome is known
    kBaseline,  // committed: owners update
    kObsolete,  // failed: the call that says what became of it
    kStop,      // nothing of it may have an effect any more
    kBar,       // the call that retires who did not answer
    kCleanup,   // what it left in the transport goes
    kAbort,     // an operator ends the transition: the call
    kRefuse,    // and owners that ask are told
  };

  // Who the attempt binds.
  struct Peer {
    Endpoint endpoint;
    Role role = Role::kOwner;
    std::string engine;   // of a receiver
    Candidate candidate;  // of an owner
    bool gone = false;    // this incarnation is no member any more
    bool failed = false;  // by its own word, or because it was waited for
    bool prepared = false, sent = false, staged = false, closed = false, completed = false;
    bool stopped = false, updated = false, cleaned = false;
    bool without_baseline = false;
    Applying applying;  // of a receiver: the last that it said, and when it had grown
    Milliseconds applied_at = 0;
  };
  using Done = bool Peer::*;
  static constexpr unsigned kOwners = 1, kNodes = 2, kReceivers = 4, kAll = 7;

  // Of the control plane, one of each kind at a time. What a new one takes the place of may still
  // be carried out; its answer is not for anybody.
  enum Slot : std::uint8_t { kSession, kBeat, kMembers, kWork, kSlots };
  struct Call {
    std::uint64_t id = 0;  // under way; 0: none
    Milliseconds retry_at = 0;
  };
  struct Wait {
    const char* phase = "";
    unsigned roles = 0;  // of peers; 0: it is not peers that are waited for
    Done done = &Peer::prepared;
    Milliseconds until = kNever;
  };

  // ---- coordinator.cc
  void on(const Started& /*event*/) { session_.start(now_); }
  void on(const TimePassed& /*event*/) {}
  void on(const MessageArrived& event);
  void on(const ControlAnswered& event);
  void advance();
  void advance_phase();
  void make_calls();
  void session_answered(const ControlAnswered& answer);
  void beat_answered(const ControlReply& reply);
  void members_answered(const ControlReply& reply);
  void work_answered(const ControlReply& reply);
  void want(ControlRequest request);
  void saw(const ControlRecords& records);
  void follow();
  void claim_answered(const ControlReply& reply);
  void abort_answered(const ControlReply& reply);
  void take_over(const ControlRecords& records);
  void lose(const std::string& why);
  void end(Status status);
  void enter(Phase phase);
  void report();
  CoordinatorProgress progress() const;

  // Whether that moment has come; else it is when the machine wants to be woken.
  bool due(Milliseconds at);
  void emit(CoordinatorEffect effect) { effects_->push_back(std::move(effect)); }
  void note(std::string text) { emit(Note{std::move(text)}); }
  void send(const Endpoint& to, Message message);

  // ---- peers (coordinator.cc)
  static bool has_role(const Peer& peer, unsigned roles);
  Peer* find_peer(const Endpoint& endpoint);
  void set_peers(const TransitionRecord& record);
  void mark_gone();
  bool all(unsigned roles, Done done) const;
  // The first that is waited for, or null.
  const Peer* missing(unsigned roles, Done done) const;
  // Of a receiver that has not completed.
  Milliseconds apply_until(const Peer& peer) const;
  // To those that are waited for.
  void ask(unsigned roles, Done done, const Message& message);
  std::string name_of(const Peer& peer) const;

  // ---- coordinator_prepare.cc
  void on_message(const Endpoint& from, const RefitRequest& message);
  void on_message(const Endpoint& from, const Refused& message);
  void gather();
  void forget_silent_refusals();
  bool stands(const std::string& what, Milliseconds how_long);
  bool held();
  void prepare_answered(const ControlReply& reply);
  void begin_attempt(const TransitionRecord& record);

  // ---- coordinator_attempt.cc
  void on_message(const Endpoint& from, const Prepared& message);
  void on_message(const Endpoint& from, const Sent& message);
  void on_message(const Endpoint& from, const Staged& message);
  void on_message(const Endpoint& from, const StagingFull& message);
  void on_message(const Endpoint& from, const GateClosed& message);
  void on_message(const Endpoint& from, const Completed& message);
  void on_message(const Endpoint& from, const Applying& message);
  void on_message(const Endpoint& from, const AttemptFailed& message);
  Peer* bound(const Endpoint& from, std::uint64_t attempt);
  void set(Peer* peer, Done done);
  void drive_attempt();
  bool check_attempt();
  void close_gates();
  void repeat_attempt();
  Wait attempt_wait() const;
  void open_answered(const ControlReply& reply);
  void commit_answered(const ControlReply& reply);
  std::string attempt_text() const;
  void fail_attempt(const Status& status, bool rejected);

  // ---- coordinator_stop.cc
  void on_message(const Endpoint& from, const Stopped& message);
  void on_message(const Endpoint& from, const CleanedUp& message);
  void on_message(const Endpoint& from, const BaselineUpdated& message);
  void obsolete_answered(const ControlReply& reply);
  void committed(const ControlRecords& records);
  void drive_baseline();
  void drive_stop();
  std::vector<Endpoint> silent_endpoints() const;
  std::vector<Endpoint> blamed_endpoints();
  void bar(std::vector<Endpoint> endpoints, Phase then);
  void bar_answered(const ControlReply& reply);
  void drive_cleanup();
  void after_failure();
  void release_receivers();
  void refuse();
  // Ends the refits that `ends` takes.
  void end_refits(const std::optional<Failure>& failure,
                  const std::function<bool(const AskedRefit&)>& ends);
  bool bound_candidate(const AskedRefit& asked) const;
  void end_committed();

  template <typename T>
  void on_message(const Endpoint& /*from*/, const T& /*message*/) {}  // for others

  const CoordinatorOptions options_;
  MemberSession session_;
  std::vector<CoordinatorEffect>* effects_ = nullptr;  // of the running step
  Milliseconds now_ = 0;
  Milliseconds wake_ = kNever;
  bool ended_ = false;

  Phase phase_ = Phase::kFollow;
  Milliseconds phase_since_ = 0;
  Milliseconds repeat_at_ = 0;  // what the phase waits for is asked for again

  std::uint64_t calls_ = 0;  // made so far
  std::array<Call, kSlots> call_;
  std::uint64_t session_call_ = 0;  // the session's own number of its call
  std::optional<ControlRequest> work_;
  bool members_wanted_ = false;

  // As a follower: the row as it stands, since when, and when it was last read; and one that a
  // claim found changed.
  std::optional<LeaderRow> seen_, overtaken_row_;
  Milliseconds seen_since_ = 0;
  Milliseconds seen_at_ = 0;

  // As the leader.
  std::uint64_t token_ = 0;  // 0: it is not
  Milliseconds beat_at_ = 0;
  CommitRecord committed_;  // the newest K that was read
  Membership members_;
  AskedRefits asked_;
  RefusedMembers refused_;                        // receivers that say so, again and again
  std::map<std::string, Milliseconds> heard_at_;  // of refused_, by name
  std::map<std::string, RefitEnded> answered_;    // the last of each owner

  // While gathering: for what, since when, and until when joins are waited for.
  std::string stands_;
  Milliseconds stands_since_ = 0;
  bool operator_called_ = false;
  std::optional<Gathered> gathered_;  // of what came last
  std::optional<Milliseconds> hold_until_;
  std::map<std::string, std::uint64_t> held_;  // overtaken joins that were waited for already
  Prepare prepare_;                            // being made, or of the attempt

  // The last attempt.
  TransitionRecord record_;
  std::vector<Peer> peers_;
  bool closing_ = false;  // gates are being closed
  bool opening_ = false;  // the call is under way, or wanted
  bool open_ = false;     // receivers may write
  bool flushing_ = false;
  bool staging_full_ = false;
  Milliseconds closing_since_ = 0;
  Milliseconds progress_at_ = 0;
  Milliseconds remind_at_ = 0;

  // The transition: attempts until one is committed, or owners are told that none will be.
  std::uint64_t attempts_ = 0;
  bool retired_ = false;                        // an engine, in it
  bool rejected_ = false;                       // the last attempt was, before anything was opened
  std::optional<EarlyClose> closed_early_;      // the last of its attempts for which it happened
  Status failure_;                              // of the last attempt
  std::map<std::string, std::uint64_t> blame_;  // failures of receivers since they last completed
  Phase after_bar_ = Phase::kGather;

  CoordinatorProgress reported_;
};

}  // namespace dcr
