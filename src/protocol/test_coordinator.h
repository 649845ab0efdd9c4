// Coordinators over the reference control plane, with scripted owners, nodes and receivers, in
// virtual time. Scripted endpoints follow the fences of docs/PROTOCOL.md rule 3 and say what they
// must; a test's script may do otherwise.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "control/memory_control.h"
#include "protocol/coordinator.h"

namespace dcr {

class CoordinatorWorld {
 public:
  struct Scripted {
    Endpoint endpoint;
    Role role = Role::kOwner;
    std::string engine, node;
    std::uint32_t rank = 0;
    bool alive = true;
    // As rule 3 has them, and what the attempt has come to here.
    std::uint64_t fence = 0, current = 0;
    Prepare prepare;  // of `current`
    bool closed = false, open = false, completed = false;
    // Of an owner.
    std::optional<VersionId> baseline = VersionId{};
    std::optional<RefitRequest> asks;
    std::vector<RefitEnded> ended;
    std::uint64_t calls = 0, candidates = 0;
    Milliseconds repeats_at = 0;
  };
  using Replies = std::vector<Message>;
  // What an endpoint does with a message instead of the usual; false: the usual.
  using Script = std::function<bool(Scripted&, const Message&, Replies*)>;
  // Before a call is carried out: an answer to give instead, or nothing.
  using ControlFault = std::function<std::optional<Status>(const ControlRequest&)>;
  // After a call was carried out: an answer to give instead, or nothing.
  using LostReply = std::function<std::optional<Status>(const ControlRequest&)>;

  MemoryControl control{*new_control_state({1}, "base")};
  Waits waits;
  Milliseconds now = 0;
  Script script;
  ControlFault fault;
  LostReply lost_reply;
  std::function<void(const std::string& coordinator, const ControlRequest&)> before_call;
  // What endpoints say, when they say it.
  std::function<void(const Endpoint& from, const Message&)> observe;
  // How long a message or an answer takes; nothing: it is lost.
  std::function<std::vector<Milliseconds>()> delays = [] { return std::vector<Milliseconds>{0}; };
  std::function<Milliseconds()> call_delay = [] { return Milliseconds{0}; };
  std::function<Milliseconds(const ControlRequest&)> answer_delay;  // beside that

  std::vector<std::string> sent;   // by coordinators: "prepare 1 > owner-0"
  std::vector<std::string> calls;  // "commit", …; beats and looks left out
  std::vector<std::string> notes;
  std::vector<std::string> operator_calls;
  std::vector<std::string> phases;
  std::map<std::string, Status> ends;
  std::map<std::string, Scripted> endpoints;

  // ---- the cast

  void add_coordinator(const std::string& name, bool abort_transition = false) {
    CoordinatorOptions options;
    options.name = name;
    options.abort_transition = abort_transition;
    options.waits = waits;
    Host& host = hosts_[name];
    host.machine = std::make_unique<Coordinator>(std::move(options));
    ++host.life;
    step(name, Started{});
  }
  void kill_coordinator(const std::string& name) {
    hosts_[name].machine.reset();
    ++hosts_[name].life;
  }
  const Coordinator& coordinator(const std::string& name) { return *hosts_[name].machine; }
  bool has_coordinator(const std::string& name) { return hosts_[name].machine != nullptr; }

  static std::string numbered(const char* kind, std::uint64_t number) {
    return kind + ("-" + std::to_string(number));
  }
  Scripted& add(const std::string& name, Role role, const std::string& engine,
                const std::string& node, std::uint32_t rank) {
    Scripted& endpoint = endpoints[name];
    endpoint.role = role;
    endpoint.engine = engine;
    endpoint.node = node;
    endpoint.rank = rank;
    return endpoint;
  }
  // Enrols it in a new life, and joins. Receivers hold what is committed.
  void start(const std::string& name) {
    Scripted& endpoint = endpoints[name];
    const Enrolment enrolment = *control.enrol({name, endpoint.role, endpoint.engine});
    endpoint.endpoint = {name, enrolment.incarnation};
    endpoint.fence = enrolment.records.transition.attempt;
    endpoint.current = 0;
    endpoint.closed = endpoint.open = endpoint.completed = false;
    endpoint.alive = true;
    endpoint.asks.reset();
    join(name);
  }
  JoinOutcome join(const std::string& name) {
    const Scripted& endpoint = endpoints[name];
    const bool receiver = endpoint.role == Role::kReceiver;
    std::optional<VersionId> restored;
    if (receiver) restored = control.read()->commit.id;
    const Result<Joined> joined = control.join({endpoint.endpoint, restored, details(endpoint)});
    EXPECT_TRUE(joined.ok()) << joined.status().message();
    return joined->outcome;
  }
  Bytes details(const Scripted& endpoint) const {
    if (endpoint.role == Role::kOwner) return encode_owner_details({endpoint.rank, owners, {7}});
    if (endpoint.role == Role::kNode) return {};
    return encode_receiver_details({endpoint.node, {7}, {8}, {Need::kAny, Need::kOverwrite}});
  }
  std::uint32_t owners = 0;
  // Owners; nodes, each with receivers; two receivers an engine.
  void populate(std::uint32_t owner_count, std::uint32_t nodes, std::uint32_t receivers) {
    owners = owner_count;
    for (std::uint32_t i = 0; i < owner_count; ++i) {
      add(numbered("owner", i), Role::kOwner, "", "", i);
      start(numbered("owner", i));
    }
    for (std::uint32_t i = 0; i < nodes; ++i) {
      add(numbered("node", i), Role::kNode, "", "", 0);
      start(numbered("node", i));
    }
    for (std::uint32_t i = 0; i < receivers; ++i) {
      add(numbered("receiver", i), Role::kReceiver, numbered("engine", i / 2),
          numbered("node", i % nodes), 0);
      start(numbered("receiver", i));
    }
  }

  // ---- refits

  void ask(const std::string& owner, const std::string& label, bool asynchronous = false,
           bool same_candidate = false) {
    Scripted& endpoint = endpoints[owner];
    if (!same_candidate) ++endpoint.candidates;
    endpoint.asks = RefitRequest{{endpoint.endpoint.incarnation, endpoint.candidates},
                                 label,
                                 endpoint.baseline,
                                 asynchronous,
                                 ++endpoint.calls};
    repeat_request(owner, endpoint.calls);
  }
  void refit(const std::string& label, bool asynchronous = false, bool same_candidate = false) {
    for (auto& [name, endpoint] : endpoints) {
      if (endpoint.role == Role::kOwner && endpoint.alive) {
        ask(name, label, asynchronous, same_candidate);
      }
    }
  }
  bool refits_ended() {
    return std::none_of(endpoints.begin(), endpoints.end(),
                        [](const auto& entry) { return entry.second.asks.has_value(); });
  }

  // ---- time

  // Everything that happens up to `until`, or until `done`.
  bool run(
      Milliseconds until, const std::function<bool()>& done = [] { return false; }) {
    while (!done()) {
      if (queue_.empty() || queue_.begin()->first.first > until) {
        now = std::max(now, until);
        return done();
      }
      auto next = queue_.extract(queue_.begin());
      now = std::max(now, next.key().first);
      next.mapped()();
    }
    return true;
  }
  bool run_for(
      Milliseconds span, const std::function<bool()>& done = [] { return false; }) {
    return run(now + span, done);
  }
  void at(Milliseconds when, std::function<void()> what) {
    queue_.emplace(std::make_pair(when, ++order_), std::move(what));
  }

  // ---- messages

  void to_coordinator(const Endpoint& from, const Endpoint& to, const Message& message) {
    if (observe) observe(from, message);
    for (const Milliseconds delay : delays()) {
      at(now + delay, [this, from, to, message] {
        Host& host = hosts_[to.name];
        if (host.machine == nullptr) return;
        if (to.incarnation != 0 && host.machine->incarnation() != to.incarnation) return;
        step(to.name, MessageArrived{from, message});
      });
    }
  }
  // How often it was sent.
  std::size_t count(const std::string& message) const {
    return static_cast<std::size_t>(std::count(sent.begin(), sent.end(), message));
  }
  bool noted(const std::string& part) const {
    return std::any_of(notes.begin(), notes.end(), [&part](const std::string& text) {
      return text.find(part) != std::string::npos;
    });
  }
  std::string all_notes() const {
    std::string text;
    for (const std::string& line : notes) text += line + "\n";
    return text;
  }

 private:
  struct Host {
    std::unique_ptr<Coordinator> machine;
    std::uint64_t life = 0;   // of processes of this name
    std::uint64_t timer = 0;  // the last that was set
  };

  void step(const std::string& name, const CoordinatorEvent& event) {
    Host& host = hosts_[name];
    std::vector<CoordinatorEffect> effects;
    host.machine->step(event, now, &effects);
    const std::uint64_t timer = ++host.timer;
    const Milliseconds wake = host.machine->wake_at();
    if (wake != kNever) {
      at(std::max(wake, now), [this, name, timer, life = host.life] {
        Host& woken = hosts_[name];
        if (woken.machine == nullptr || woken.life != life || woken.timer != timer) return;
        step(name, TimePassed{});
      });
    }
    const Endpoint self{name, host.machine->incarnation()};
    for (CoordinatorEffect& effect : effects) carry_out(self, host.life, effect);
  }

  void carry_out(const Endpoint& self, std::uint64_t life, const CoordinatorEffect& effect) {
    if (const auto* message = std::get_if<SendMessage>(&effect)) {
      send(self, *message);
    } else if (const auto* call = std::get_if<CallControl>(&effect)) {
      at(now + call_delay(), [this, self, life, called = *call] { make_call(self, life, called); });
    } else if (const auto* note = std::get_if<Note>(&effect)) {
      notes.push_back(self.name + ": " + note->text);
    } else if (const auto* end = std::get_if<Ended>(&effect)) {
      ends[self.name] = end->status;
    } else if (const auto* needed = std::get_if<OperatorNeeded>(&effect)) {
      operator_calls.push_back(needed->text);
    } else if (const auto* progress = std::get_if<CoordinatorProgress>(&effect)) {
      if (phases.empty() || phases.back() != progress->phase) phases.emplace_back(progress->phase);
    }
  }

  void make_call(const Endpoint& self, std::uint64_t life, const CallControl& call) {
    Host& host = hosts_[self.name];
    const std::string name = control_request_name(call.request);
    if (name != "beat" && !name.starts_with("read")) calls.push_back(name);
    ControlReply reply;
    const std::optional<Status> failed = fault ? fault(call.request) : std::nullopt;
    if (failed) {
      reply.status = *failed;
    } else {
      if (before_call) before_call(self.name, call.request);
      reply = call_control(control, call.request);
      const std::optional<Status> lost = lost_reply ? lost_reply(call.request) : std::nullopt;
      if (lost) reply = {*lost, {}};
    }
    if (host.machine == nullptr || host.life != life) return;
    const Milliseconds later = answer_delay ? answer_delay(call.request) : 0;
    at(now + call_delay() + later, [this, self, life, called = call.call, reply] {
      Host& answered = hosts_[self.name];
      if (answered.machine == nullptr || answered.life != life) return;
      step(self.name, ControlAnswered{called, reply});
    });
  }

  static std::string text_of(const Message& message) {
    return std::visit(
        [&message](const auto& kind) {
          std::string text = message_name(message);
          if constexpr (requires { kind.attempt; }) text += " " + std::to_string(kind.attempt);
          return text;
        },
        message);
  }

  void send(const Endpoint& self, const SendMessage& message) {
    sent.push_back(text_of(message.message) + " > " + message.to);
    for (const Milliseconds delay : delays()) {
      at(now + delay, [this, self, message] {
        const auto found = endpoints.find(message.to);
        if (found == endpoints.end() || !found->second.alive) return;
        Scripted& endpoint = found->second;
        if (message.incarnation != endpoint.endpoint.incarnation) return;
        Replies replies;
        if (!script || !script(endpoint, message.message, &replies)) {
          usual(endpoint, message.message, &replies);
        }
        for (const Message& reply : replies) {
          to_coordinator(endpoint.endpoint, self, reply);
          if (std::holds_alternative<Sent>(reply))
            repeat_sent(message.to, self, std::get<Sent>(reply));
        }
      });
    }
  }

  // An owner says it until its attempt is over.
  void repeat_sent(const std::string& owner, const Endpoint& to, const Sent& message) {
    at(now + waits.repeat_ms, [this, owner, to, message, from = endpoints[owner].endpoint] {
      const Scripted& endpoint = endpoints[owner];
      const bool over = control.read()->commit.id.baseline == message.attempt;
      if (over || !endpoint.alive || endpoint.endpoint != from) return;
      if (endpoint.current != message.attempt || endpoint.repeats_at > now) return;
      endpoints[owner].repeats_at = now + 1;
      to_coordinator(endpoint.endpoint, to, message);
      repeat_sent(owner, to, message);
    });
  }

  void repeat_request(const std::string& owner, std::uint64_t call) {
    const Scripted& endpoint = endpoints[owner];
    if (!endpoint.alive || !endpoint.asks || endpoint.asks->call != call) return;
    const LeaderRow leader = control.read()->leader;
    if (leader.token > 0) to_coordinator(endpoint.endpoint, leader.holder, *endpoint.asks);
    at(now + waits.repeat_ms, [this, owner, call] { repeat_request(owner, call); });
  }

 public:
  // What endpoints do by the rules.
  void usual(Scripted& endpoint, const Message& message, Replies* replies) {
    if (const auto* prepare = std::get_if<Prepare>(&message)) {
      if (prepare->attempt > endpoint.fence) {
        endpoint.fence = endpoint.current = prepare->attempt;
        endpoint.prepare = *prepare;
        endpoint.closed = endpoint.open = endpoint.completed = false;
      }
      if (prepare->attempt != endpoint.current) return;
      replies->push_back(Prepared{endpoint.current});
      if (endpoint.role == Role::kOwner) {
        replies->push_back(Sent{endpoint.current, prepare->mode, 1, 10, 5, 1});
      } else if (endpoint.role == Role::kNode && prepare->asynchronous) {
        replies->push_back(Staged{endpoint.current});
      }
    } else if (const auto* stop = std::get_if<StopAndWait>(&message)) {
      endpoint.fence = std::max(endpoint.fence, stop->attempt);
      if (endpoint.current <= stop->attempt) endpoint.current = 0;
      replies->push_back(Stopped{stop->attempt});
    } else if (const auto* ended = std::get_if<RefitEnded>(&message)) {
      if (!endpoint.asks || endpoint.asks->call != ended->call) return;
      endpoint.ended.push_back(*ended);
      endpoint.asks.reset();
    } else if (const auto* cleanup = std::get_if<Cleanup>(&message)) {
      replies->push_back(CleanedUp{cleanup->attempt});
    } else if (std::holds_alternative<Look>(message)) {
      look(endpoint, replies);
    } else if (endpoint.role == Role::kReceiver) {
      usual_receiver(endpoint, message, replies);
    }
  }

 private:
  void look(Scripted& endpoint, Replies* replies) {
    if (endpoint.role != Role::kOwner) return;
    const ControlRecords records = *control.read();
    if (records.transition.state != AttemptState::kCommitted) return;
    for (const OwnerBinding& owner : records.transition.owners) {
      if (owner.endpoint != endpoint.endpoint) continue;
      endpoint.baseline = records.commit.id;
      replies->push_back(BaselineUpdated{records.commit.id, std::nullopt});
    }
  }
  void usual_receiver(Scripted& endpoint, const Message& message, Replies* replies) {
    if (const auto* close = std::get_if<CloseGate>(&message)) {
      if (close->attempt != endpoint.current) return;
      endpoint.closed = true;
      replies->push_back(GateClosed{endpoint.current});
    } else if (const auto* open = std::get_if<OpenApply>(&message)) {
      if (open->attempt == endpoint.current) endpoint.open = true;
    } else if (const auto* flush = std::get_if<Flush>(&message)) {
      if (flush->attempt != endpoint.current) return;
      endpoint.open = endpoint.completed = true;
      replies->push_back(Completed{endpoint.current, 1, 5, 0});
    }
  }

  std::map<std::string, Host> hosts_;
  std::map<std::pair<Milliseconds, std::uint64_t>, std::function<void()>> queue_;
  std::uint64_t order_ = 0;
};

class CoordinatorTest : public ::testing::Test, protected CoordinatorWorld {
 protected:
  // A coordinator that leads, two owners, two nodes, and four receivers in two engines.
  void SetUp() override {
    // Longer than the other waits, and short enough for a test to pass all of them.
    waits.send_ms = waits.apply_ms = waits.baseline_ms = 200'000;
    populate(2, 2, 4);
    add_coordinator("coordinator-0");
    run_for(0);
    ASSERT_TRUE(coordinator("coordinator-0").leading());
  }
  std::vector<RefitEnded> ended(const std::string& owner) { return endpoints[owner].ended; }
  bool refit_ends(Milliseconds within) {
    return run_for(within, [this] { return refits_ended(); });
  }
  std::uint64_t version() { return control.read()->commit.id.version; }
  // The script for messages of one kind.
  template <typename Kind>
  void on(const std::function<bool(Scripted&, const Kind&, Replies*)>& what) {
    script = [what](Scripted& endpoint, const Message& message, Replies* replies) {
      const auto* const kind = std::get_if<Kind>(&message);
      return kind != nullptr && what(endpoint, *kind, replies);
    };
  }
  // These messages do not arrive there.
  template <typename Kind>
  void mute(const std::string& name) {
    on<Kind>([name](Scripted& endpoint, const Kind& /*message*/, Replies* /*replies*/) {
      return endpoint.endpoint.name == name;
    });
  }
};

}  // namespace dcr
