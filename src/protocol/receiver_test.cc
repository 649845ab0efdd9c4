// An incarnation's life: enrolment, gate, membership (docs/PROTOCOL.md "Receiver").
#include "protocol/receiver.h"

#include "protocol/test_receiver.h"

namespace dcr {
namespace {

TEST_F(ReceiverTest, ClosesItsGateAndJoinsByTheBase) {
  options.base_loaded = true;
  EXPECT_EQ(step(Started{}),
            "engine: gate_close 1\nowner-0: base_digests_request\nowner-1: base_digests_request\n");
  EXPECT_EQ(machine->status().state, "proving_base");
  EXPECT_EQ(hear(owners[0], BaseDigests{{{1}}, {}}), "");
  EXPECT_EQ(pass(200), "engine: gate_close 1\nowner-1: base_digests_request\n");
  EXPECT_EQ(gate_closes(1), "");
  EXPECT_EQ(hear(owners[1], BaseDigests{{{2}}, {}}), "check_base\n");
  stream = {};
  EXPECT_EQ(done(Kind::kCheckBase), "engine: gate_proof 2 version 0\n");
  EXPECT_EQ(machine->status().state, "member");
  EXPECT_EQ(machine->status().held, VersionId{});
  EXPECT_EQ((**control.read_member("receiver-0")).state, MemberState::kMember);
  EXPECT_EQ(pass(200), "engine: gate_proof 2 version 0\n");
  EXPECT_EQ(from_gate(GateState{true, {}, "", 2}), "");
  EXPECT_TRUE(machine->status().gate_open);
  // From here on it only looks.
  for (int i = 0; i < 10; ++i) EXPECT_EQ(pass(500), "");
}

// Rule 5: a gate that started anew knows nothing and is told.
TEST_F(ReceiverTest, ProvesItsVersionToAGateThatStartedAnew) {
  become_member();
  gate.incarnation = 78;
  EXPECT_EQ(from_gate(GateState{false, {}, "receiver-0 has proven no version", 0}),
            "engine: gate_proof 3 version 0\n");
  EXPECT_EQ(machine->status().gate_reason, "receiver-0 has proven no version");
}

// Rule 6: a barred incarnation closes its gate and begins again. Nothing was ever written here, so
// the base may be proven again; else it restores.
TEST_F(ReceiverTest, ABarredIncarnationClosesItsGateAndBeginsAnew) {
  become_member();
  const std::uint64_t before = machine->incarnation();
  ASSERT_TRUE(control.bar(token, {{"receiver-0", before}}).ok());
  EXPECT_EQ(pass(500),
            "engine: gate_close 3\nengine: gate_close 1\n"
            "owner-0: base_digests_request\nowner-1: base_digests_request\n");
  EXPECT_GT(machine->incarnation(), before);
}

TEST_F(ReceiverTest, ABarredIncarnationStopsWhatItAppliesFirst) {
  become_member();
  become_prepared();
  close_gate_and_open(1, 3);
  hand_over(0, 0);
  EXPECT_EQ(ingested(0, 0), "apply\nnode-0: credit 1 next 1 room 7/90\n");
  ASSERT_TRUE(control.mark_obsolete(1).ok());
  ASSERT_TRUE(control.bar(token, {{"receiver-0", machine->incarnation()}}).ok());
  EXPECT_EQ(pass(500),
            "node-0: credit 1 next 1 room 7/90\nstop\nengine: gate_close 1\n"
            "owner-0: restore_request 0\nowner-1: restore_request 0\n");
  // Neither the old answer nor the drained device alone lets the restore begin.
  EXPECT_EQ(applied_payloads(1), "");
  EXPECT_EQ(done(Kind::kStopApplying), "begin restore 1 overwrite\n");
}

// Until it enrols anew it is the old one, whose attempts are over.
TEST_F(ReceiverTest, BetweenTwoIncarnationsOnlyStopsAreAnswered) {
  become_member();
  const Prepare message = prepare();
  ASSERT_TRUE(control.mark_obsolete(1).ok());
  ASSERT_TRUE(control.bar(token, {{"receiver-0", machine->incarnation()}}).ok());
  now += 500;
  hold_calls = true;
  step(TimePassed{});
  while (!held_calls.empty() && machine->status().state != "enrolling") {
    const CallControl call = held_calls.front();
    held_calls.erase(held_calls.begin());
    step(ControlAnswered{call.call, call_control(control, call.request)});
  }
  ASSERT_EQ(machine->status().state, "enrolling");
  EXPECT_EQ(from_leader(message), "");
  EXPECT_EQ(from_leader(CloseGate{1}), "");
  EXPECT_EQ(from_leader(StopAndWait{1}), "leader: stopped 1\n");
  EXPECT_EQ(from_leader(StopAndWait{1}), "leader: stopped 1\n");
  EXPECT_EQ(machine->status().detail, "it was barred");
}

// Rule 8: the store is asked again, and nothing else changes.
TEST_F(ReceiverTest, AnUnreachableControlPlaneChangesNothing) {
  become_member();
  hold_calls = true;
  EXPECT_EQ(pass(500), "");
  ASSERT_EQ(held_calls.size(), 1U);
  EXPECT_EQ(step(ControlAnswered{held_calls[0].call, {{Code::kUnavailable, "no answer"}, {}}}), "");
  EXPECT_EQ(pass(200), "");
  ASSERT_EQ(held_calls.size(), 2U);
  EXPECT_EQ(machine->status().state, "member");
}

TEST_F(ReceiverTest, ANameThatIsTakenIsForTheOperator) {
  ASSERT_TRUE(control.enrol({"receiver-0", Role::kNode, ""}).ok());
  EXPECT_EQ(step(Started{}),
            "ended: receiver-0 is enrolled as node, not as receiver: take another name\n");
  EXPECT_EQ(machine->wake_at(), kNever);
  EXPECT_EQ(pass(10'000), "");
}

TEST_F(ReceiverTest, ADeviceThatCannotBeDrainedIsForTheOperator) {
  become_member();
  become_prepared();
  EXPECT_EQ(from_leader(StopAndWait{1}), "stop\n");
  EXPECT_EQ(done(Kind::kStopApplying, {Code::kInternal, "the device is lost"}),
            "ended: stopping to apply: the device is lost\n");
}

TEST_F(ReceiverTest, SaysHowItStands) {
  become_member();
  EXPECT_EQ(from_leader(StatusRequest{}), "leader: status_reply\n");
  become_prepared();
  const StatusReply status = machine->status();
  EXPECT_EQ(status.state, "prepared");
  EXPECT_EQ(status.attempt, 1U);
  EXPECT_EQ(status.detail, "waits for payload 0 or the end of owner 0");
}

}  // namespace
}  // namespace dcr
