// Drives one machine against a control plane in memory: carries its calls out at once and keeps its
// other effects for the test.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "control/memory_control.h"
#include "protocol/machine.h"

namespace dcr {

// A control plane with a leader, and scripted attempts.
class TestControl {
 public:
  MemoryControl control{*new_control_state({7}, "base")};
  Endpoint leader;
  std::uint64_t token = 0;

  void lead() {
    leader = {"coordinator-0",
              control.enrol({"coordinator-0", Role::kCoordinator, ""})->incarnation};
    token = control.claim(leader, control.read()->leader)->leader.token;
  }
  // An endpoint that is a member and otherwise played by the test.
  Endpoint member(const std::string& name, Role role) {
    const Result<Enrolment> enrolled =
        control.enrol({name, role, role == Role::kReceiver ? "engine" : ""});
    const Endpoint endpoint{name, enrolled->incarnation};
    std::optional<VersionId> restored;
    if (role == Role::kReceiver) restored = enrolled->records.commit.id;
    EXPECT_TRUE(control.join({endpoint, restored, {}}).ok());
    return endpoint;
  }
  // Prepares an attempt of all members; owners' candidates by name.
  TransitionRecord prepare(const std::vector<OwnerCandidate>& candidates,
                           AttemptMode mode = AttemptMode::kMixed) {
    const Membership all = *control.read_members();
    PrepareRequest request;
    request.token = token;
    request.after = all.records.transition.attempt;
    request.members_revision = all.records.members_revision;
    request.base = all.records.commit.id;
    request.label = "next";
    request.mode = mode;
    request.candidates = candidates;
    const Result<TransitionRecord> prepared = control.prepare(request);
    EXPECT_TRUE(prepared.ok()) << prepared.status().message();
    return prepared.ok() ? *prepared : TransitionRecord();
  }
};

template <typename Machine, typename Event, typename Effect>
class TestDriver {
 public:
  TestDriver(Machine driven, ControlPlane& control)
      : machine(std::move(driven)), control_(control) {}

  void step(const Event& event) {
    std::vector<Effect> effects;
    machine.step(event, now, &effects);
    std::vector<CallControl> calls;
    for (Effect& effect : effects) {
      if (auto* const call = std::get_if<CallControl>(&effect)) {
        calls.push_back(std::move(*call));
      } else if (auto* const sent = std::get_if<SendMessage>(&effect)) {
        messages.push_back(std::move(*sent));
      } else if (!std::holds_alternative<Note>(effect)) {
        work.push_back(std::move(effect));
      }
    }
    for (const CallControl& call : calls) {
      if (call.call == unanswered) continue;
      if (control_silent) {
        step(ControlAnswered{call.call, {Status(Code::kUnavailable, "silent"), {}}});
      } else {
        step(ControlAnswered{call.call, call_control(control_, call.request)});
      }
    }
  }
  void receive(const Endpoint& from, Message message) {
    step(MessageArrived{from, std::move(message)});
  }
  // Lets time pass, waking the machine whenever it asks for it.
  void pass(Milliseconds time) {
    const Milliseconds until = now + time;
    while (machine.wake_at() <= until) {
      const Milliseconds before = now;
      now = std::max(now, machine.wake_at());
      step(TimePassed{});
      ASSERT_TRUE(now > before || machine.wake_at() > now) << "it asks for no time to pass";
    }
    now = until;
  }

  // The messages of one kind that were sent since, with addressees; the rest is left.
  template <typename T>
  std::vector<std::pair<std::string, T>> take() {
    std::vector<std::pair<std::string, T>> taken;
    std::erase_if(messages, [&](const SendMessage& sent) {
      const T* const message = std::get_if<T>(&sent.message);
      if (message != nullptr) taken.emplace_back(sent.to, *message);
      return message != nullptr;
    });
    return taken;
  }
  // The next work, which must be of this kind.
  template <typename T>
  T take_work() {
    if (work.empty() || !std::holds_alternative<T>(work.front())) {
      ADD_FAILURE() << "another effect, or none: "
                    << (work.empty() ? -1 : static_cast<int>(work.front().index()));
      return T();
    }
    T taken = std::get<T>(std::move(work.front()));
    work.pop_front();
    return taken;
  }

  Machine machine;
  Milliseconds now = 1'000;
  std::vector<SendMessage> messages;
  std::deque<Effect> work;  // every effect but messages, calls and notes
  bool control_silent = false;
  std::optional<std::uint64_t> unanswered;  // a call on which nothing comes back

 private:
  ControlPlane& control_;
};

}  // namespace dcr
