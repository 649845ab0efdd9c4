// A receiver machine over a MemoryControl, with everybody else scripted: what it does is text, line
// by line, so that a test reads like the protocol.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "control/memory_control.h"
#include "protocol/receiver.h"

namespace dcr {

inline std::string text_of(const StreamId& stream) {
  return (stream.restore ? "restore " : "") + std::to_string(stream.number);
}

inline std::string text_of(const Message& message) {
  std::string text = message_name(message);
  const auto add = [&text](std::uint64_t number) { text += " " + std::to_string(number); };
  if (const auto* credit = std::get_if<Credit>(&message)) {
    text += " " + text_of(credit->stream) + " next " + std::to_string(credit->next) + " room " +
            std::to_string(credit->payloads) + "/" + std::to_string(credit->bytes) +
            (credit->again ? " again" : "");
  } else if (const auto* failed = std::get_if<AttemptFailed>(&message)) {
    add(failed->attempt);
    text += (failed->rejected ? " rejected: " : ": ") + failed->failure.message;
  } else if (const auto* prepared = std::get_if<Prepared>(&message)) {
    add(prepared->attempt);
  } else if (const auto* stopped = std::get_if<Stopped>(&message)) {
    add(stopped->attempt);
  } else if (const auto* closed = std::get_if<GateClosed>(&message)) {
    add(closed->attempt);
  } else if (const auto* completed = std::get_if<Completed>(&message)) {
    add(completed->attempt);
    add(completed->payloads);
  } else if (const auto* applying = std::get_if<Applying>(&message)) {
    add(applying->attempt);
    add(applying->payloads);
    text += ": " + applying->state;
  } else if (const auto* restore = std::get_if<RestoreRequest>(&message)) {
    add(restore->version.version);
  } else if (const auto* close = std::get_if<GateClose>(&message)) {
    add(close->sequence);
  } else if (const auto* proof = std::get_if<GateProof>(&message)) {
    add(proof->sequence);
    text += " version " + std::to_string(proof->resident->version);
  }
  return text;
}

inline std::string text_of(const ReceiverEffect& effect) {
  if (const auto* send = std::get_if<SendMessage>(&effect)) {
    return send->to + ": " + text_of(send->message);
  }
  if (std::holds_alternative<CheckBase>(effect)) return "check_base";
  if (const auto* begin = std::get_if<BeginStream>(&effect)) {
    return "begin " + text_of(begin->stream) + (begin->header.overwrite_only ? " overwrite" : "") +
           (begin->header.mode == ApplyMode::kVerify ? " audit" : "");
  }
  if (const auto* ingest = std::get_if<IngestPayload>(&effect)) {
    return "ingest " + std::to_string(ingest->owner) + "/" + std::to_string(ingest->number);
  }
  if (const auto* end = std::get_if<EndOfOwner>(&effect)) {
    return "end " + std::to_string(end->owner) + "/" + std::to_string(end->payloads);
  }
  if (std::holds_alternative<CompareSample>(effect)) return "compare";
  if (std::holds_alternative<ApplyQueued>(effect)) return "apply";
  if (std::holds_alternative<FinishStream>(effect)) return "finish";
  if (std::holds_alternative<StopApplying>(effect)) return "stop";
  if (const auto* ended = std::get_if<Ended>(&effect)) return "ended: " + ended->status.message();
  return {};  // notes and calls
}

class ReceiverTest : public ::testing::Test {
 public:
  using Kind = ReceiverWorkDone::Kind;

  ReceiverTest() {
    node = enrol_and_join("node-0", Role::kNode);
    for (const char* name : {"owner-0", "owner-1"}) {
      owners.push_back(enrol_and_join(name, Role::kOwner));
    }
    leader = {"leader", control.enrol({"leader", Role::kCoordinator, ""})->incarnation};
    token = control.claim(leader, control.read()->leader)->leader.token;
    options.name = "receiver-0";
    options.engine = "engine";
    options.engine_instance = 7;
    options.details.node = "node-0";
    options.owners = {"owner-0", "owner-1"};
    options.credit_payloads = 8;
    options.credit_bytes = 100;
  }

  Endpoint enrol_and_join(const std::string& name, Role role) {
    const Endpoint endpoint{name, control.enrol({name, role, ""})->incarnation};
    EXPECT_TRUE(control.join({endpoint, {}, {}}).ok());
    return endpoint;
  }

  void start() { step(Started{}); }
  // Takes the event, answers control calls at once, and returns what else there was to do, a line
  // each.
  std::string step(const ReceiverEvent& event) {
    if (!machine) machine.emplace(options);
    std::vector<ReceiverEvent> events = {event};
    std::string lines;
    while (!events.empty()) {
      std::vector<ReceiverEffect> effects;
      machine->step(events.front(), now, &effects);
      events.erase(events.begin());
      for (ReceiverEffect& effect : effects) {
        note_why(effect);
        const auto* const call = std::get_if<CallControl>(&effect);
        const auto* const send = std::get_if<SendMessage>(&effect);
        if (send != nullptr && std::holds_alternative<SampleRequest>(send->message)) {
          asked_for_samples.push_back(send->to);
        } else if (call != nullptr && hold_calls) {
          held_calls.push_back(*call);
        } else if (call != nullptr) {
          events.emplace_back(ControlAnswered{call->call, call_control(control, call->request)});
        } else if (const std::string text = text_of(effect); !text.empty()) {
          lines += text + "\n";
        }
      }
    }
    return lines;
  }
  void note_why(const ReceiverEffect& effect) {
    const auto* const send = std::get_if<SendMessage>(&effect);
    const auto* const close = send ? std::get_if<GateClose>(&send->message) : nullptr;
    if (close != nullptr) why = close->why;
  }
  std::string pass(Milliseconds time) {
    now += time;
    return step(TimePassed{});
  }
  std::string hear(const Endpoint& from, Message message) {
    return step(MessageArrived{from, std::move(message)});
  }
  std::string from_leader(Message message) { return hear(leader, std::move(message)); }
  std::string from_node(Message message) { return hear(node, std::move(message)); }
  std::string from_gate(Message message) { return hear(gate, std::move(message)); }
  std::string done(Kind kind, Status status = {}) {
    ReceiverWorkDone work;
    work.kind = kind;
    work.stream = stream;
    work.status = std::move(status);
    work.applied = applied;
    work.counts.payloads = 2;
    return step(work);
  }
  std::string ingested(std::uint32_t owner, std::uint64_t number,
                       Ingested what = Ingested::kQueued) {
    ReceiverWorkDone work;
    work.kind = Kind::kIngestPayload;
    work.stream = stream;
    work.owner = owner;
    work.number = number;
    work.ingested = what;
    return step(work);
  }
  std::string ended(std::uint32_t owner) {
    ReceiverWorkDone work;
    work.kind = Kind::kEndOfOwner;
    work.stream = stream;
    work.owner = owner;
    return step(work);
  }
  void end_without_payloads() {
    for (std::uint32_t owner = 0; owner < owners.size(); ++owner) {
      from_node(OwnerEnd{stream, owner, 0});
      ended(owner);
    }
  }
  std::string applied_payloads(std::uint64_t payloads) {
    applied = payloads;
    return done(Kind::kApplyQueued);
  }
  std::string hand_over(std::uint32_t owner, std::uint64_t number) {
    return step(PayloadHandedOver{stream, owner, number, 10});
  }
  std::string from_gate(GateState state) {
    state.engine_instance = options.engine_instance;
    return from_gate(Message(std::move(state)));
  }
  std::string gate_closes(std::uint64_t sequence) { return from_gate(GateIsClosed{sequence}); }

  // The next attempt in the control plane, and its message.
  Prepare prepare(AttemptMode mode = AttemptMode::kMixed, std::uint64_t candidate = 1,
                  bool asynchronous = false) {
    const Membership all = *control.read_members();
    const ControlRecords& records = all.records;
    PrepareRequest request{token,
                           records.transition.attempt,
                           records.members_revision,
                           records.commit.id,
                           "next",
                           mode,
                           {},
                           {}};
    for (const Endpoint& owner : owners) {
      request.candidates.push_back({owner.name, {owner.incarnation, candidate}});
    }
    const Result<TransitionRecord> made = control.prepare(request);
    EXPECT_TRUE(made.ok()) << made.status().message();
    Prepare message;
    message.attempt = made->attempt;
    message.base = made->base;
    message.label = made->label;
    message.mode = made->mode;
    message.asynchronous = asynchronous;
    message.owners = made->owners;
    message.nodes = made->nodes;
    for (const Endpoint& receiver : made->receivers) {
      message.receivers.push_back({receiver, "engine", "node-0"});
    }
    stream = {false, made->attempt};
    return message;
  }
  // A member that holds the base, and whose gate has its proof, sequence 2.
  void become_member() {
    options.base_loaded = true;
    start();
    for (const Endpoint& owner : owners) hear(owner, BaseDigests{});
    EXPECT_EQ(gate_closes(1), "");
    stream = {};
    EXPECT_EQ(done(Kind::kCheckBase), "engine: gate_proof 2 version 0\n");
    EXPECT_EQ(from_gate(GateState{true, {}, "", 2}), "");
  }
  // In an attempt that is prepared, and has its credit.
  Prepare become_prepared(AttemptMode mode = AttemptMode::kMixed, bool asynchronous = false) {
    const Prepare message = prepare(mode, 1, asynchronous);
    const std::string attempt = std::to_string(message.attempt);
    EXPECT_EQ(from_leader(message),
              "begin " + attempt + (mode == AttemptMode::kMixed ? "" : " overwrite") + "\n");
    EXPECT_EQ(done(Kind::kBeginStream),
              "leader: prepared " + attempt + "\n" +
                  (asynchronous ? "" : "node-0: credit " + attempt + " next 0 room 8/100\n"));
    return message;
  }
  std::string close_gate_and_open(std::uint64_t attempt, std::uint64_t sequence) {
    std::string lines = from_leader(CloseGate{attempt});
    lines += gate_closes(sequence);
    EXPECT_TRUE(control.open(attempt).ok());
    return lines + from_leader(OpenApply{attempt});
  }

  // Whom it has asked for a sample, which it does beside everything else.
  std::vector<std::string> asked_for_samples;
  MemoryControl control{*new_control_state({1}, "base")};
  Milliseconds now = 1000;
  ReceiverEndpointOptions options;
  std::optional<ReceiverEndpoint> machine;
  Endpoint leader, node, gate{"engine", 77};
  std::vector<Endpoint> owners;
  std::uint64_t token = 0;
  StreamId stream;            // that answers to work are of
  std::uint64_t applied = 0;  // by the next kApplyQueued
  std::string why;            // its gate was told last
  bool hold_calls = false;
  std::vector<CallControl> held_calls;
};

}  // namespace dcr
