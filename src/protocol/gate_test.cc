// An engine's gate (docs/PROTOCOL.md "Gate").
#include "protocol/gate.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "control/memory_control.h"

namespace dcr {
namespace {

class GateTest : public ::testing::Test {
 public:
  GateTest() {
    for (const char* name : {"receiver-0", "receiver-1"}) {
      const std::uint64_t given = control.enrol({name, Role::kReceiver, "engine"})->incarnation;
      receivers.push_back({name, given});
      EXPECT_TRUE(control.join({receivers.back(), VersionId{}, {}}).ok());
    }
    options.engine = "engine";
    options.engine_instance = 7;
    options.receivers = {"receiver-0", "receiver-1"};
  }

  static std::string text_of(const GateEffect& effect) {
    if (const auto* send = std::get_if<SendMessage>(&effect)) {
      std::string text = send->to + ": " + message_name(send->message);
      if (const auto* closed = std::get_if<GateIsClosed>(&send->message)) {
        text += " " + std::to_string(closed->sequence);
      }
      return text;
    }
    if (const auto* close = std::get_if<CloseAndDrain>(&effect)) {
      return close->fail_requests ? "drain, failing requests" : "drain";
    }
    if (const auto* open = std::get_if<OpenFor>(&effect)) {
      return "open " + std::to_string(open->committed.id.version) + " " + open->committed.label;
    }
    if (const auto* ended = std::get_if<Ended>(&effect)) return "ended: " + ended->status.message();
    return {};
  }
  // What it does but for telling how it stands.
  std::string step(const GateEvent& event) {
    if (!gate) gate.emplace(options);
    std::vector<GateEvent> events = {event};
    std::string lines;
    while (!events.empty()) {
      std::vector<GateEffect> effects;
      gate->step(events.front(), now, &effects);
      events.erase(events.begin());
      for (const GateEffect& effect : effects) {
        const auto* const call = std::get_if<CallControl>(&effect);
        const auto* const send = std::get_if<SendMessage>(&effect);
        if (call != nullptr) {
          if (std::holds_alternative<ReadMembersRequest>(call->request)) ++readings;
          if (hold_calls) {
            held_calls.push_back(*call);
          } else {
            events.emplace_back(ControlAnswered{call->call, call_control(control, call->request)});
          }
        } else if (send != nullptr && std::holds_alternative<GateState>(send->message)) {
          told[send->to] = std::get<GateState>(send->message);
          ++times_told;
        } else if (const std::string text = text_of(effect); !text.empty()) {
          lines += text + "\n";
        }
      }
    }
    return lines;
  }
  std::string pass(Milliseconds time) {
    now += time;
    return step(TimePassed{});
  }
  std::string close(std::size_t receiver, std::uint64_t sequence) {
    return step(MessageArrived{receivers[receiver], GateClose{sequence, "", 7}});
  }
  std::string prove(std::size_t receiver, std::uint64_t sequence,
                    std::optional<VersionId> version = VersionId{}) {
    return step(MessageArrived{receivers[receiver], GateProof{sequence, version, 7}});
  }
  std::string opened(Status status = {}) { return step(GateWorkDone{true, std::move(status)}); }
  std::string drained(Status status = {}) { return step(GateWorkDone{false, std::move(status)}); }
  std::string state() const { return gate->status().state; }
  std::string reason() const { return gate->status().gate_reason; }

  // Open for the base, each receiver's proof having sequence 2.
  void become_open() {
    step(Started{});
    EXPECT_EQ(close(0, 1), "receiver-0: gate_is_closed 1\n");
    EXPECT_EQ(close(1, 1), "receiver-1: gate_is_closed 1\n");
    EXPECT_EQ(prove(0, 2), "");
    EXPECT_EQ(prove(1, 2), "open 0 base\n");
    EXPECT_EQ(opened(), "");
    ASSERT_EQ(state(), "open");
  }
  // A version is committed by an attempt that binds all members.
  void commit() {
    if (token == 0) {
      owner = {"owner-0", control.enrol({"owner-0", Role::kOwner, ""})->incarnation};
      ASSERT_TRUE(control.join({owner, {}, {}}).ok());
      const std::uint64_t leader = control.enrol({"leader", Role::kCoordinator, ""})->incarnation;
      token = control.claim({"leader", leader}, control.read()->leader)->leader.token;
    }
    const ControlRecords records = *control.read();
    const Result<TransitionRecord> made = control.prepare({token,
                                                           records.transition.attempt,
                                                           records.members_revision,
                                                           records.commit.id,
                                                           "step",
                                                           AttemptMode::kDense,
                                                           {},
                                                           {{"owner-0", {owner.incarnation, 1}}}});
    ASSERT_TRUE(made.ok()) << made.status().message();
    ASSERT_TRUE(control.commit(made->attempt).ok());
  }

  MemoryControl control{*new_control_state({1}, "base")};
  Milliseconds now = 1000;
  GateOptions options;
  std::optional<Gate> gate;
  std::vector<Endpoint> receivers;
  Endpoint owner;
  std::uint64_t token = 0;
  int readings = 0, times_told = 0;
  std::map<std::string, GateState> told;
  bool hold_calls = false;
  std::vector<CallControl> held_calls;
};

TEST_F(GateTest, StartsClosedAndSaysWhy) {
  EXPECT_EQ(step(Started{}), "");
  EXPECT_FALSE(gate->open());
  EXPECT_EQ(reason(), "receiver-0 has proven no version to this gate");
  EXPECT_EQ(told["receiver-0"], (GateState{false, {}, reason(), 0, 7}));
  EXPECT_EQ((**control.read_member("engine")).role, Role::kGate);
  // It reads no members as long as that could open nothing, and tells those that have said nothing.
  times_told = 0;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(pass(500), "");
  EXPECT_EQ(readings, 0);
  EXPECT_EQ(times_told, 20);
}

TEST_F(GateTest, SaysWhichReceiverTakesNoPart) {
  step(Started{});
  prove(0, 1);
  EXPECT_EQ(gate->refusal(), "");
  step(MessageArrived{receivers[1], Refused{{Code::kUnsupported, "w", "w is packed"}, 7}});
  EXPECT_EQ(gate->refusal(), "receiver-1 takes no part: w is packed");
  EXPECT_EQ(reason(), gate->refusal());
  EXPECT_EQ(told["receiver-0"].reason, gate->refusal());
  EXPECT_EQ(state(), "closed");
  // Its next life may.
  receivers[1].incarnation = control.enrol({"receiver-1", Role::kReceiver, "engine"})->incarnation;
  ASSERT_TRUE(control.join({receivers[1], VersionId{}, {}}).ok());
  EXPECT_EQ(prove(1, 1), "open 0 base\n");
  EXPECT_EQ(gate->refusal(), "");
}

// It serves a whole version still, but its agent is told that it cannot open: both at once would
// fail requests of an open gate.
TEST_F(GateTest, ClosesAtOnceWhenAReceiverTakesNoPartAnyMore) {
  const auto refused = [this] {
    receivers[1].incarnation =
        control.enrol({"receiver-1", Role::kReceiver, "engine"})->incarnation;
    return step(MessageArrived{receivers[1], Refused{{Code::kIo, "", "the device failed"}, 7}});
  };
  become_open();
  EXPECT_EQ(refused(), "drain\n");
  EXPECT_EQ(reason(), "receiver-1 takes no part: the device failed; requests drain");
  EXPECT_EQ(drained(), "");
  EXPECT_EQ(state(), "closed");
  EXPECT_EQ(reason(), "receiver-1 takes no part: the device failed");
}

TEST_F(GateTest, ClosesRightAfterItOpensForAReceiverThatTakesNoPartAnyMore) {
  step(Started{});
  prove(0, 1);
  EXPECT_EQ(prove(1, 1), "open 0 base\n");
  receivers[1].incarnation = control.enrol({"receiver-1", Role::kReceiver, "engine"})->incarnation;
  EXPECT_EQ(step(MessageArrived{receivers[1], Refused{{Code::kIo, "", "the device failed"}, 7}}),
            "");
  EXPECT_EQ(opened(), "drain\n");
  EXPECT_EQ(drained(), "");
  EXPECT_EQ(state(), "closed");
}

TEST_F(GateTest, OpensWhenEveryReceiverHasProvenK) {
  become_open();
  EXPECT_EQ(readings, 1);
  EXPECT_EQ(told["receiver-1"], (GateState{true, {}, "", 2, 7}));
  EXPECT_TRUE(gate->open());
  times_told = 0;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(pass(500), "");
  EXPECT_EQ(readings, 1);
  EXPECT_EQ(times_told, 0);
}

// Label, caches, gate: one piece of work, after which alone it is open.
TEST_F(GateTest, IsOpenWhenLabelAndCachesAreDone) {
  step(Started{});
  prove(0, 1);
  EXPECT_EQ(prove(1, 1), "open 0 base\n");
  EXPECT_EQ(state(), "opening");
  EXPECT_TRUE(gate->open());  // requests may come any time now
  EXPECT_FALSE(told["receiver-0"].open);
  EXPECT_EQ(opened({Code::kInternal, "the cache manager does not answer"}), "");
  EXPECT_EQ(state(), "closed");
  EXPECT_EQ(reason(), "could not be opened: the cache manager does not answer");
  EXPECT_EQ(pass(499), "");
  EXPECT_EQ(pass(1), "open 0 base\n");
  EXPECT_EQ(opened(), "");
  EXPECT_EQ(reason(), "");
}

TEST_F(GateTest, ClosesDrainsAndAnswersAgain) {
  become_open();
  EXPECT_EQ(close(0, 3), "drain\n");
  EXPECT_TRUE(gate->open());  // requests still run
  EXPECT_EQ(reason(), "receiver-0 is about to write; requests drain");
  EXPECT_EQ(close(0, 3), "");
  EXPECT_EQ(close(1, 3), "");
  EXPECT_EQ(drained(), "receiver-0: gate_is_closed 3\nreceiver-1: gate_is_closed 3\n");
  EXPECT_FALSE(gate->open());
  EXPECT_EQ(reason(), "receiver-0 writes, or is about to");
  EXPECT_EQ(close(0, 3), "receiver-0: gate_is_closed 3\n");
}

TEST_F(GateTest, SaysWhyAReceiverHasNoVersion) {
  become_open();
  close(0, 3);
  close(1, 3);
  drained();
  step(MessageArrived{receivers[1], GateClose{4, "its restore failed: tensor \"a\"", 7}});
  EXPECT_EQ(reason(), "receiver-0 writes, or is about to");
  prove(0, 4, VersionId{1, 1});
  EXPECT_EQ(reason(), "receiver-1 has no version: its restore failed: tensor \"a\"");
  prove(1, 5, VersionId{1, 1});
  EXPECT_EQ(reason(),
            "receiver-0 holds version 1 of attempt 1; committed is version 0 of attempt 0");
}

TEST_F(GateTest, OpensForTheNextVersionOnlyWhenKNamesIt) {
  become_open();
  close(0, 3);
  close(1, 3);
  drained();
  // Its receivers finished the attempt; K is not there yet.
  EXPECT_EQ(prove(0, 4, VersionId{1, 1}), "");
  EXPECT_EQ(prove(1, 4, VersionId{1, 1}), "");
  EXPECT_EQ(reason(),
            "receiver-0 holds version 1 of attempt 1; committed is version 0 of attempt 0");
  commit();
  EXPECT_EQ(pass(500), "open 1 step\n");
  EXPECT_EQ(gate->status().held, (VersionId{1, 1}));
}

TEST_F(GateTest, SaysForHowLongItHasBeenOpenOrNot) {
  become_open();
  pass(300);
  EXPECT_EQ(gate->status().gate_for_ms, 300U);
  close(0, 3);
  drained();
  pass(50);
  prove(0, 4);
  EXPECT_EQ(gate->status().gate_for_ms, 50U);  // whatever it waits for
  opened();
  EXPECT_TRUE(gate->status().gate_open);
  EXPECT_EQ(gate->status().gate_for_ms, 0U);
}

TEST_F(GateTest, VersionsThatDifferKeepItClosed) {
  step(Started{});
  commit();
  prove(0, 1, VersionId{1, 1});
  EXPECT_EQ(prove(1, 1, VersionId{0, 0}), "");
  EXPECT_EQ(reason(),
            "receiver-1 holds version 0 of attempt 0; committed is version 1 of attempt 1");
  EXPECT_EQ(prove(1, 2, std::nullopt), "");
  EXPECT_EQ(reason(), "receiver-1 has proven no version to this gate");
  EXPECT_EQ(prove(1, 3, VersionId{1, 1}), "open 1 step\n");
}

// What comes late neither opens nor closes.
TEST_F(GateTest, ALateProofNeverOpens) {
  become_open();
  close(0, 3);
  drained();
  EXPECT_EQ(prove(0, 2), "");
  EXPECT_EQ(pass(500), "");
  EXPECT_EQ(reason(), "receiver-0 writes, or is about to");
  EXPECT_EQ(told["receiver-0"].sequence, 0U);
  EXPECT_EQ(prove(0, 4), "open 0 base\n");
}

TEST_F(GateTest, ALateCloseNeitherClosesNorIsAnswered) {
  become_open();
  EXPECT_EQ(close(0, 1), "");
  EXPECT_EQ(close(0, 2), "");  // a number that was a proof's
  EXPECT_EQ(state(), "open");
  // Of an incarnation that was replaced.
  close(0, 3);
  drained();
  const Endpoint before = receivers[0];
  receivers[0].incarnation = control.enrol({"receiver-0", Role::kReceiver, "engine"})->incarnation;
  ASSERT_TRUE(control.join({receivers[0], VersionId{}, {}}).ok());
  EXPECT_EQ(prove(0, 1), "open 0 base\n");
  opened();
  EXPECT_EQ(step(MessageArrived{before, GateClose{9, "", 7}}), "");
  EXPECT_EQ(step(MessageArrived{before, GateProof{10, VersionId{7, 7}, 7}}), "");
  EXPECT_EQ(state(), "open");
}

// Another engine of its name was started while this gate's receivers, or those of another engine
// that was taken for dead, go on: members until the new ones enrol, who hold what was committed.
TEST_F(GateTest, ReceiversOfAnotherInstanceOfTheEngineAreNotHeard) {
  const auto of_another = [&](Message message) {
    return step(MessageArrived{receivers[0], std::move(message)});
  };
  step(Started{});
  EXPECT_EQ(of_another(GateClose{1, "", 8}), "");
  EXPECT_EQ(prove(1, 2), "");
  EXPECT_EQ(of_another(GateProof{2, VersionId{}, 8}), "");
  EXPECT_EQ(reason(),
            "receiver-0 has proven no version to this gate; one of another instance of the engine "
            "spoke");
  EXPECT_EQ(told["receiver-0"].engine_instance, 7U);
  receivers[0].incarnation = control.enrol({"receiver-0", Role::kReceiver, "engine"})->incarnation;
  ASSERT_TRUE(control.join({receivers[0], VersionId{}, {}}).ok());
  EXPECT_EQ(prove(0, 1), "open 0 base\n");
  opened();
  // What it says neither closes the gate nor is answered, even in a later incarnation.
  ++receivers[0].incarnation;
  EXPECT_EQ(of_another(GateClose{9, "", 8}), "");
  EXPECT_EQ(of_another(GateProof{10, VersionId{7, 7}, 8}), "");
  EXPECT_EQ(of_another(Refused{{Code::kIo, "", "the device failed"}, 8}), "");
  EXPECT_EQ(state(), "open");
}

// At a gate that started anew, a late close is the first that it hears. It goes on telling the
// receiver, which has no reason to speak, and hears what is true now.
TEST_F(GateTest, ALateCloseDoesNotKeepANewGateClosed) {
  step(Started{});
  EXPECT_EQ(close(0, 3), "receiver-0: gate_is_closed 3\n");
  prove(1, 1);
  told.clear();
  EXPECT_EQ(pass(500), "");
  EXPECT_EQ(told["receiver-0"], (GateState{false, {}, "receiver-0 writes, or is about to", 0, 7}));
  EXPECT_EQ(told.size(), 1U);
  EXPECT_EQ(prove(0, 5), "open 0 base\n");
}

TEST_F(GateTest, AProofOfANewIncarnationCountsWhenItIsTheMember) {
  step(Started{});
  prove(1, 1);
  prove(0, 1);
  close(0, 2);
  const Endpoint successor{"receiver-0", receivers[0].incarnation + 5};
  receivers[0] = successor;
  opened();
  drained();
  EXPECT_EQ(prove(0, 1), "");
  EXPECT_EQ(reason(), "receiver-0 (incarnation 6) is no member: incarnation 1 is");
}

TEST_F(GateTest, AReceiverThatHasNotJoinedKeepsItClosed) {
  step(Started{});
  receivers[0].incarnation = control.enrol({"receiver-0", Role::kReceiver, "engine"})->incarnation;
  prove(0, 1);
  EXPECT_EQ(prove(1, 1), "");
  EXPECT_EQ(reason(), "receiver-0 (incarnation 4) is no member");
  ASSERT_TRUE(control.join({receivers[0], VersionId{}, {}}).ok());
  EXPECT_EQ(pass(500), "open 0 base\n");
}

TEST_F(GateTest, WhoeverIsNotOfTheEngineIsNotHeard) {
  become_open();
  EXPECT_EQ(step(MessageArrived{{"receiver-2", 9}, GateClose{1, "", 7}}), "");
  EXPECT_EQ(state(), "open");
}

TEST_F(GateTest, ClosesAsSoonAsItIsOpenWhenThatWasAskedMeanwhile) {
  step(Started{});
  prove(0, 1);
  EXPECT_EQ(prove(1, 1), "open 0 base\n");
  EXPECT_EQ(close(0, 2), "");
  EXPECT_EQ(opened(), "drain\n");
  EXPECT_EQ(drained(), "receiver-0: gate_is_closed 2\n");
  // Where it could not be opened it is closed already.
  EXPECT_EQ(prove(0, 3), "open 0 base\n");
  EXPECT_EQ(close(0, 4), "");
  EXPECT_EQ(opened({Code::kInternal, "no"}), "receiver-0: gate_is_closed 4\n");
}

// A reading that began before the last proof opens nothing.
TEST_F(GateTest, WhatChangesDuringAReadingIsReadAgain) {
  step(Started{});
  prove(0, 1);
  hold_calls = true;
  EXPECT_EQ(prove(1, 1), "");
  ASSERT_EQ(held_calls.size(), 1U);
  const ControlAnswered answer{held_calls[0].call, call_control(control, held_calls[0].request)};
  EXPECT_EQ(prove(1, 2), "");
  hold_calls = false;
  EXPECT_EQ(step(answer), "open 0 base\n");
  EXPECT_EQ(readings, 2);
  // Nor does one during which it was asked to close.
  opened();
  close(0, 2);
  drained();
  hold_calls = true;
  prove(0, 3);
  const CallControl second = held_calls.back();
  const ControlAnswered late{second.call, call_control(control, second.request)};
  EXPECT_EQ(close(0, 4), "receiver-0: gate_is_closed 4\n");
  EXPECT_EQ(step(late), "");
  EXPECT_EQ(state(), "closed");
}

// Rule 6: an old whole version is served for membership_ms at most, on the gate's own clock.
TEST_F(GateTest, ABarredReceiverClosesItAfterAWhile) {
  become_open();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(pass(500), "");
  const Endpoint before = receivers[1];
  receivers[1].incarnation = control.enrol({"receiver-1", Role::kReceiver, "engine"})->incarnation;
  Milliseconds served = 0;
  std::string lines;
  while (lines.empty()) {
    lines = pass(500);
    served += 500;
  }
  EXPECT_EQ(lines, "drain\n");
  EXPECT_EQ(served, options.waits.membership_ms);
  drained();
  EXPECT_EQ(reason(),
            "receiver-1 (incarnation " + std::to_string(before.incarnation) + ") is no member");
}

TEST_F(GateTest, AControlPlaneThatDoesNotAnswerClosesItAfterAWhile) {
  become_open();
  hold_calls = true;
  EXPECT_EQ(pass(options.waits.membership_ms - 1), "");
  EXPECT_EQ(pass(1), "drain\n");
  drained();
  EXPECT_EQ(reason(), "the control plane was not read for 30000 ms");
  // It answers again.
  hold_calls = false;
  std::string lines;
  for (const CallControl& call : held_calls) {
    lines += step(ControlAnswered{call.call, call_control(control, call.request)});
  }
  EXPECT_EQ(lines, "open 0 base\n");
}

TEST_F(GateTest, AnUnavailableControlPlaneIsAskedAgain) {
  step(Started{});
  prove(0, 1);
  hold_calls = true;
  prove(1, 1);
  ASSERT_EQ(held_calls.size(), 1U);
  hold_calls = false;
  EXPECT_EQ(step(ControlAnswered{held_calls[0].call, {{Code::kUnavailable, "locked"}, {}}}), "");
  EXPECT_EQ(pass(199), "");
  EXPECT_EQ(pass(1), "open 0 base\n");
}

// Rule 8: requests that do not drain.
TEST_F(GateTest, RequestsThatDoNotDrainAreWaitedFor) {
  become_open();
  EXPECT_EQ(close(0, 3), "drain\n");
  EXPECT_EQ(pass(options.waits.drain_ms * 10), "");
  EXPECT_EQ(drained(), "receiver-0: gate_is_closed 3\n");
}

TEST_F(GateTest, OrAreFailedWhereThatWasChosen) {
  options.drain_overdue = GateOptions::DrainOverdue::kAbort;
  become_open();
  EXPECT_EQ(close(0, 3), "drain\n");
  EXPECT_EQ(pass(options.waits.drain_ms / 2 - 1), "");
  EXPECT_EQ(pass(1), "drain, failing requests\n");
  EXPECT_EQ(pass(options.waits.drain_ms), "");
  EXPECT_EQ(drained(), "");
  EXPECT_EQ(drained(), "receiver-0: gate_is_closed 3\n");
}

TEST_F(GateTest, AGateThatCannotBeClosedTriesAgain) {
  become_open();
  EXPECT_EQ(close(0, 3), "drain\n");
  EXPECT_EQ(drained({Code::kIo, "the engine does not answer"}), "");
  EXPECT_EQ(reason(), "could not be closed: the engine does not answer; requests drain");
  EXPECT_EQ(pass(199), "");
  EXPECT_EQ(pass(1), "drain\n");
  EXPECT_EQ(drained(), "receiver-0: gate_is_closed 3\n");
}

// Two gates of one engine: the one that was replaced ends, closed.
TEST_F(GateTest, AGateThatWasReplacedClosesAndEnds) {
  become_open();
  ASSERT_TRUE(control.enrol({"engine", Role::kGate, ""}).ok());
  EXPECT_EQ(pass(500), "drain\n");
  EXPECT_EQ(drained(), "ended: gate engine (incarnation 3) is barred\n");
  EXPECT_EQ(pass(500), "");
  EXPECT_EQ(gate->wake_at(), kNever);
}

TEST_F(GateTest, ANameThatIsTakenIsForTheOperator) {
  ASSERT_TRUE(control.enrol({"engine", Role::kNode, ""}).ok());
  EXPECT_EQ(step(Started{}), "ended: engine is enrolled as node, not as gate: take another name\n");
}

}  // namespace
}  // namespace dcr
