// An engine's request gate (docs/PROTOCOL.md rule 5, "Gate"): the set of receivers that serve a
// request together opens to requests only on evidence. Starts closed.
//
// It opens when one linearizable read of the control plane shows K = (v, g) and, for every receiver
// of the engine, the incarnation that proved to this incarnation of the gate that it holds (v, g)
// whole, and is of this instance of the engine; then label, caches, gate, in this order. It closes
// when a receiver is about to write or takes no part any more, and when it cannot show any more,
// for membership_ms, that what it serves is committed and its receivers are members. What it waits
// for is always in its state.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "protocol/machine.h"
#include "protocol/member.h"

namespace dcr {

struct GateOptions {
  std::string engine;                  // its name
  std::vector<std::string> receivers;  // of the engine, all of them
  // From 1; drawn by the engine when it started (docs/PROTOCOL.md "Gate"). Its receivers have the
  // same.
  std::uint64_t engine_instance = 0;
  // When requests do not drain in time: fail them at half of `drain_ms`, so that the attempt need
  // not fail, or go on waiting.
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
  // REQUIRES: at least one receiver, an engine's instance.
  explicit Gate(GateOptions options);

  void step(const GateEvent& event, Milliseconds now, std::vector<GateEffect>* effects);
  Milliseconds wake_at() const;

  std::uint64_t incarnation() const { return session_.incarnation(); }
  // Requests may run: from the effect OpenFor until CloseAndDrain is answered.
  bool open() const { return state_ != State::kClosed; }
  StatusReply status() const;
  // Which of its receivers takes no part, and why: it cannot open then. Empty: all do, as far as is
  // known.
  std::string refusal() const;

 private:
  enum class State : std::uint8_t { kClosed, kOpening, kOpen, kClosing };
  struct Receiver {
    std::string name;
    std::uint64_t incarnation = 0;  // the newest that was heard of
    std::uint64_t sequence = 0;     // of its messages
    bool closing = false;           // the last was GateClose: it writes, or is about to
    bool answer = false;            // which is to be answered
    std::string why;                // what it said with it
    std::optional<VersionId> proof;
    std::string refused;       // why it takes no part; empty: it does
    bool stranger = false;     // one of its name and of another instance of the engine spoke last
    std::uint64_t member = 0;  // incarnation that is a member, as last read; 0: none
    Milliseconds tell_at = 0;  // say again how the gate stands
  };

  void on(const Started&) {
    session_.start(now_);
    stands_since_ = now_;
  }
  void on(const TimePassed&) {}
  void on(const MessageArrived& event);
  void on(const ControlAnswered& event);
  void on(const GateWorkDone& done);
  void on_close(const Endpoint& from, const GateClose& message);
  void on_proof(const Endpoint& from, const GateProof& message);
  void on_refused(const Endpoint& from, const Refused& message);
  Receiver* hear(const Endpoint& from, std::uint64_t engine_instance);
  void take_members(const Membership& all);
  void advance();
  void follow_session();
  void watch_membership();
  Milliseconds overdue_at() const;
  void watch_drain();
  void call_control();
  void close(const std::string& why);
  void open_if_proven();
  void answer_and_tell();
  bool reading_is_due() const;
  std::string unproven() const;
  std::string reason() const;
  GateState state() const;

  GateOptions options_;
  std::vector<Receiver> receivers_;
  Milliseconds now_ = 0;
  bool stood_open_ = false;  // as status() says
  Milliseconds stands_since_ = 0;
  std::vector<GateEffect>* effects_ = nullptr;
  bool ended_ = false;
  MemberSession session_;

  std::uint64_t calls_ = 0;
  std::uint64_t session_call_ = 0, session_number_ = 0;  // under way, by both counts
  std::uint64_t members_call_ = 0;                       // under way
  Milliseconds members_called_at_ = 0;
  Milliseconds read_again_at_ = 0;  // not before
  bool look_ = true;                // the members are to be read: something has changed

  // As they were when the members were read last.
  std::optional<CommitRecord> committed_;
  std::uint64_t members_revision_ = 0;
  Milliseconds read_at_ = 0;
  // When it was last known that what is served is committed and its receivers are members.
  Milliseconds confirmed_at_ = 0;

  State state_ = State::kClosed;
  VersionId serving_;          // unless closed
  bool close_wanted_ = false;  // as soon as it is open
  std::string why_;            // it closed
  std::string open_failure_;
  unsigned closes_ = 0;  // CloseAndDrain under way
  bool drained_ = false;
  bool aborted_ = false;  // requests that did not drain
  Milliseconds closing_since_ = 0;
  Milliseconds close_again_at_ = kNever;
  GateState told_;
};

}  // namespace dcr
