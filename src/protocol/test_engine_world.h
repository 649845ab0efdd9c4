// An engine of two receivers and a gate, over a MemoryControl, in a world that loses, repeats and
// reorders messages, answers calls late or not at all, and restarts what it likes. Coordinator,
// owners and node are scripted, and keep to the protocol. Weights are four words, two of each
// owner.
//
// After every step it holds that the gate admits requests only while both storages are, bit for
// bit, the version of its label, and while nothing writes; and that a commit finds every bound
// storage to be the new version. But for words that something changes behind a receiver's back:
// those keep their difference until they are overwritten, and once a sample has shown one, the gate
// admits nothing before that.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "control/memory_control.h"
#include "protocol/gate.h"
#include "protocol/receiver.h"

namespace dcr {

class EngineWorld {
 public:
  static constexpr std::size_t kWords = 4;
  using Words = std::array<std::uint64_t, kWords>;

  explicit EngineWorld(std::uint64_t seed) : prng_(seed) {
    waits_.repeat_ms = 20;
    waits_.look_ms = 50;
    waits_.stop_ms = 300;
    waits_.drain_ms = 200;
    waits_.membership_ms = 400;
    waits_.restore_ms = 2000;
    waits_.restore_again_ms = 50;
    truth_[{0, 0}] = {100, 200, 300, 400};
    node_ = {"node-0", enrol_and_join("node-0", Role::kNode)};
    for (const char* name : {"owner-0", "owner-1"}) {
      owners_.push_back({name, enrol_and_join(name, Role::kOwner)});
    }
    lead();
    start_gate();
    for (std::size_t i = 0; i < kReceivers; ++i) {
      receivers_[i].words = version({});
      start_receiver(i, prng_.below(2) == 0);
    }
  }

  // Random steps, then calm ones until the engine serves K and no attempt is open.
  void run(std::uint64_t steps) {
    for (std::uint64_t i = 0; i < steps && !failed(); ++i) step(true);
    std::uint64_t calm = 0;
    while (!failed() && !settled()) {
      if (++calm > 200'000) {
        ADD_FAILURE() << "nothing opens the gate: " << gate_->status().gate_reason << "; "
                      << receivers_[0].machine->status().state << " "
                      << receivers_[0].machine->status().detail << "; "
                      << receivers_[1].machine->status().state << " "
                      << receivers_[1].machine->status().detail << "; phase " << phase_;
        return;
      }
      step(false);
    }
  }
  std::uint64_t commits() const { return commits_; }
  std::uint64_t repairs() const { return repairs_; }
  std::uint64_t openings() const { return openings_; }
  std::uint64_t found() const { return found_; }

 private:
  static constexpr std::size_t kReceivers = 2;

  struct Flight {
    Endpoint from;
    std::string to;
    std::uint64_t incarnation = 0;
    std::variant<Message, PayloadHandedOver> what;
  };
  struct Call {
    std::string of;  // "gate", or a receiver's name
    std::uint64_t life = 0;
    CallControl call;
    std::optional<ControlReply> reply;
  };
  struct Word {
    std::size_t at = 0;
    std::uint64_t value = 0;
    bool difference = false;
  };
  // What an attempt or a restore brings, of each owner.
  using Payloads = std::array<std::vector<Word>, 2>;
  struct Engine {
    std::unique_ptr<ReceiverEndpoint> machine;
    std::uint64_t life = 0;
    Words words{};
    std::deque<ReceiverEffect> works;
    // What its receiver library has: payloads by order, and which of the work under way is done.
    StreamId stream;
    std::map<std::uint64_t, Word> queue;
    std::array<std::optional<std::uint64_t>, 2> ends;
    std::uint64_t next = 0, applied = 0;
    bool overwrite = true;  // it refuses differences
    bool audits = false;    // it compares
    bool applying = false, stop = false;
    Words changed{};     // behind its back: what words have beside their version's
    bool found = false;  // by a sample
  };

  bool failed() const { return ::testing::Test::HasFailure(); }
  bool chance(std::uint64_t one_in) { return prng_.below(one_in) == 0; }
  std::uint64_t enrol_and_join(const std::string& name, Role role) {
    const std::uint64_t given = control_.enrol({name, role, ""})->incarnation;
    EXPECT_TRUE(control_.join({{name, given}, {}, {}}).ok());
    return given;
  }
  void lead() {
    leader_ = {"leader", control_.enrol({"leader", Role::kCoordinator, ""})->incarnation};
    token_ = control_.claim(leader_, control_.read()->leader)->leader.token;
  }

  void start_receiver(std::size_t i, bool base) {
    ReceiverEndpointOptions options;
    options.name = name_of(i);
    options.engine = "engine";
    options.engine_instance = 7;
    options.details.node = "node-0";
    options.owners = {"owner-0", "owner-1"};
    options.base_loaded = base;
    options.audit = !base && chance(2);
    options.credit_payloads = 1 + prng_.below(3);
    options.credit_bytes = 100;
    options.waits = waits_;
    Engine& engine = receivers_[i];
    engine.machine = std::make_unique<ReceiverEndpoint>(options);
    ++engine.life;
    engine.works.clear();
    engine.applying = engine.stop = false;
    step_receiver(i, Started{});
  }
  void start_gate() {
    GateOptions options;
    options.engine = "engine";
    options.engine_instance = 7;
    options.receivers = {"receiver-0", "receiver-1"};
    if (chance(2)) options.drain_overdue = GateOptions::DrainOverdue::kAbort;
    options.waits = waits_;
    gate_ = std::make_unique<Gate>(options);
    ++gate_life_;
    gate_works_.clear();
    admits_.reset();
    step_gate(Started{});
  }
  static std::string name_of(std::size_t i) { return "receiver-" + std::to_string(i); }

  // ---- machines

  void step_receiver(std::size_t i, const ReceiverEvent& event) {
    std::vector<ReceiverEffect> effects;
    receivers_[i].machine->step(event, now_, &effects);
    const Endpoint me{name_of(i), receivers_[i].machine->incarnation()};
    for (ReceiverEffect& effect : effects) {
      if (auto* send = std::get_if<SendMessage>(&effect)) {
        flights_.push_back({me, send->to, send->incarnation, std::move(send->message)});
      } else if (auto* call = std::get_if<CallControl>(&effect)) {
        calls_.push_back({me.name, receivers_[i].life, std::move(*call), {}});
      } else if (auto* ended = std::get_if<Ended>(&effect)) {
        ADD_FAILURE() << me.name << " ended: " << ended->status.message();
      } else if (std::holds_alternative<StopApplying>(effect)) {
        receivers_[i].stop = true;
        receivers_[i].works.push_back(std::move(effect));
      } else if (!std::holds_alternative<Note>(effect)) {
        receivers_[i].works.push_back(std::move(effect));
      }
    }
  }
  void step_gate(const GateEvent& event) {
    std::vector<GateEffect> effects;
    gate_->step(event, now_, &effects);
    const Endpoint me{"engine", gate_->incarnation()};
    bool restart = false;
    for (GateEffect& effect : effects) {
      if (auto* send = std::get_if<SendMessage>(&effect)) {
        flights_.push_back({me, send->to, send->incarnation, std::move(send->message)});
      } else if (auto* call = std::get_if<CallControl>(&effect)) {
        calls_.push_back({"gate", gate_life_, std::move(*call), {}});
      } else if (auto* ended = std::get_if<Ended>(&effect)) {
        EXPECT_EQ(ended->status.code(), Code::kConflict) << ended->status.message();
        EXPECT_FALSE(admits_);
        restart = true;
      } else if (!std::holds_alternative<Note>(effect)) {
        gate_works_.push_back(std::move(effect));
      }
    }
    if (restart) start_gate();
  }

  // ---- one step of the world

  void step(bool faults) {
    now_ += prng_.below(4);
    for (std::size_t i = 0; i < kReceivers; ++i) {
      if (receivers_[i].machine->wake_at() <= now_) step_receiver(i, TimePassed{});
    }
    if (gate_->wake_at() <= now_) step_gate(TimePassed{});
    switch (prng_.below(6)) {
      case 0:
      case 1:
        deliver(faults);
        break;
      case 2:
        answer_call(faults);
        break;
      case 3:
        work(prng_.below(kReceivers));
        break;
      case 4:
        work_gate();
        break;
      default:
        coordinate(faults);
    }
    if (faults && chance(1000)) fault();
    if (faults && chance(100)) change_word();
    check();
  }

  void fault() {
    switch (prng_.below(5)) {
      case 0: {  // the process of a receiver, inside a living engine; its threads are joined
        const std::size_t i = prng_.below(kReceivers);
        start_receiver(i, false);
        break;
      }
      case 1:
        start_gate();
        break;
      case 2:  // a wrong suspicion
        if (control_.read()->transition.state != AttemptState::kActive) {
          const std::size_t i = prng_.below(kReceivers);
          const std::uint64_t incarnation = receivers_[i].machine->incarnation();
          if (incarnation != 0) {
            EXPECT_TRUE(control_.bar(token_, {{name_of(i), incarnation}}).ok());
          }
        }
        break;
      case 3:  // takeover: the attempt is obsolete, and everything is stopped
        lead();
        if (phase_ != "idle") abort_attempt();
        break;
      default:
        flights_.clear();
    }
  }

  void change_word() {
    Engine& engine = receivers_[prng_.below(kReceivers)];
    if (!admits_ || !engine.works.empty() || !engine.machine->status().held) return;
    const std::size_t word = prng_.below(kWords);
    const std::uint64_t change = 1 + prng_.below(1000);
    engine.words[word] += change;
    engine.changed[word] += change;
  }

  void deliver(bool faults) {
    if (faults && !late_.empty() && chance(4)) return hand(late_[prng_.below(late_.size())]);
    if (flights_.empty()) return;
    const std::size_t at = faults ? prng_.below(flights_.size()) : 0;
    const Flight flight = flights_[at];
    flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(at));
    if (flights_.size() > 200) flights_.erase(flights_.begin(), flights_.begin() + 100);
    if (faults && chance(10)) {
      // It comes again, once or often, much later.
      if (late_.size() < 40) late_.emplace_back();
      late_[prng_.below(late_.size())] = flight;
    }
    if (!faults || !chance(8)) hand(flight);
  }

  void hand(const Flight& flight) {
    if (flight.to == "engine") {
      if (flight.incarnation == 0 || flight.incarnation == gate_->incarnation()) {
        step_gate(MessageArrived{flight.from, std::get<Message>(flight.what)});
      }
      return;
    }
    for (std::size_t i = 0; i < kReceivers; ++i) {
      const std::uint64_t mine = receivers_[i].machine->incarnation();
      if (flight.to != name_of(i) || mine == 0) continue;
      if (flight.incarnation != 0 && flight.incarnation != mine) continue;
      if (const auto* message = std::get_if<Message>(&flight.what)) {
        step_receiver(i, MessageArrived{flight.from, *message});
      } else {
        step_receiver(i, std::get<PayloadHandedOver>(flight.what));
      }
    }
    if (const auto* message = std::get_if<Message>(&flight.what)) script(flight, *message);
  }

  void answer_call(bool faults) {
    if (calls_.empty()) return;
    const std::size_t at = prng_.below(calls_.size());
    Call& call = calls_[at];
    if (!call.reply) {
      call.reply = faults && chance(10) ? ControlReply{{Code::kUnavailable, "no answer"}, {}}
                                        : call_control(control_, call.call.request);
      if (faults && chance(20)) call.reply = ControlReply{{Code::kUnknownOutcome, "lost"}, {}};
      return;
    }
    const Call done = call;
    calls_.erase(calls_.begin() + static_cast<std::ptrdiff_t>(at));
    if (done.of == "gate") {
      if (done.life == gate_life_) step_gate(ControlAnswered{done.call.call, *done.reply});
      return;
    }
    const std::size_t i = done.of == name_of(0) ? 0 : 1;
    if (done.life == receivers_[i].life) {
      step_receiver(i, ControlAnswered{done.call.call, *done.reply});
    }
  }

  void check();
  bool settled() const {
    return phase_ == "idle" && admits_ && *admits_ == control_.read()->commit.id &&
           gate_->status().gate_open;
  }

  // ---- shells
  void work(std::size_t i);
  void work_gate();
  void compare(Engine* engine, const CompareSample& sample, ReceiverWorkDone* done);
  Status ingest(Engine* engine, const IngestPayload& payload, ReceiverWorkDone* done);
  bool apply_word(Engine* engine);

  // ---- script
  void script(const Flight& flight, const Message& message);
  void hear_receiver(const Endpoint& from, const Message& message);
  void give(const Endpoint& receiver, const Credit& credit);
  std::optional<Payloads> payloads_of(const StreamId& stream) const;
  void coordinate(bool faults);
  void prepare();
  void say(const std::string& to, std::uint64_t incarnation, Message message) {
    flights_.push_back({leader_, to, incarnation, std::move(message)});
  }
  void drive();
  void abort_attempt();
  void commit();
  void note_payloads();
  ControlRecords control_record() const { return *control_.read(); }
  void enter(const std::string& phase) {
    phase_ = phase;
    phase_at_ = drive_at_ = now_;
  }
  bool all(const std::set<std::string>& said) const {
    return said.size() == attempt_.receivers.size();
  }
  const Words& version(VersionId id) const { return truth_.at({id.version, id.baseline}); }
  // What a receiver has that has these words.
  static Words held(const Engine& engine, Words words) {
    for (std::size_t word = 0; word < kWords; ++word) words[word] += engine.changed[word];
    return words;
  }

  Prng prng_;
  Waits waits_;
  mutable MemoryControl control_{*new_control_state({1}, "base")};
  Milliseconds now_ = 1000;
  std::map<std::pair<std::uint64_t, std::uint64_t>, Words> truth_;  // by version and baseline
  Milliseconds committed_at_ = 0;

  std::array<Engine, kReceivers> receivers_;
  std::unique_ptr<Gate> gate_;
  std::uint64_t gate_life_ = 0;
  std::deque<GateEffect> gate_works_;
  std::optional<VersionId> admits_;  // requests, under this label

  std::vector<Flight> flights_, late_;
  std::vector<Call> calls_;

  Endpoint node_, leader_;
  std::vector<Endpoint> owners_;
  std::uint64_t token_ = 0;
  std::string phase_ = "idle";  // "prepare", "close", "apply", "stop"
  TransitionRecord attempt_;
  bool asynchronous_ = false;
  std::array<std::uint64_t, 2> candidates_ = {1, 1};
  std::map<std::pair<std::size_t, std::uint64_t>, std::array<std::uint64_t, 2>>
      weights_;                             // of them
  std::map<std::uint64_t, Payloads> sent_;  // by attempt
  std::set<std::string> prepared_, closed_, completed_, stopped_;
  Milliseconds phase_at_ = 0, drive_at_ = 0;
  std::uint64_t commits_ = 0, repairs_ = 0, openings_ = 0, found_ = 0;
};

}  // namespace dcr
