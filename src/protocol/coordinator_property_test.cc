// Random worlds: messages lost, repeated and reordered, a store that fails before and after it did
// what it was asked, endpoints and coordinators that die, come back, fall silent and fail. The
// coordinator's own invariants hold after every call and at every message; when everything heals,
// refits end.
#include "protocol/test_coordinator.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

class Chaos : public CoordinatorWorld {
 public:
  explicit Chaos(std::uint64_t seed) : prng(seed) {
    waits.leader_ms = 2'000;
    waits.prepare_ms = 3'000;
    waits.send_ms = 4'000;
    waits.drain_ms = 3'000;
    waits.apply_ms = 3'000;
    waits.stop_ms = 4'000;
    waits.baseline_ms = 5'000;
    waits.cleanup_ms = 3'000;
    waits.join_hold_ms = 1'000;
    delays = [this] {
      std::vector<Milliseconds> copies(faults && prng.below(10) == 0 ? prng.below(3) : 1);
      for (Milliseconds& delay : copies) delay = prng.below(faults ? 300 : 5);
      return copies;
    };
    call_delay = [this] { return prng.below(faults ? 100 : 3); };
    const auto fails = [this](const ControlRequest& /*request*/) -> std::optional<Status> {
      if (!faults || prng.below(20) > 0) return std::nullopt;
      return Status(prng.below(2) == 0 ? Code::kUnavailable : Code::kUnknownOutcome, "chaos");
    };
    fault = [fails](const ControlRequest& request) { return fails(request); };
    lost_reply = [fails](const ControlRequest& request) {
      std::optional<Status> lost = fails(request);
      if (lost) lost = Status(Code::kUnknownOutcome, "chaos");
      return lost;
    };
    before_call = [this](const std::string& /*name*/, const ControlRequest& request) {
      check_call(request);
    };
    script = [this](Scripted& endpoint, const Message& message, Replies* replies) {
      check_message(endpoint, message);
      return faults && misbehave(endpoint, message, replies);
    };
  }

  Prng prng;
  bool faults = true;
  // Who acknowledged what, in their incarnations.
  std::map<std::uint64_t, std::vector<Endpoint>> completed, stopped, closed;
  std::vector<std::string> wrong;

  void hurt() {
    const std::uint64_t what = prng.below(8);
    if (what == 0) {
      const std::string name = numbered("coordinator", prng.below(2));
      if (has_coordinator(name)) {
        kill_coordinator(name);
      } else {
        add_coordinator(name);
      }
    } else if (what < 4) {
      auto victim = endpoints.begin();
      std::advance(victim, static_cast<std::ptrdiff_t>(prng.below(endpoints.size())));
      if (victim->second.alive) {
        victim->second.alive = false;
      } else {
        revive(victim->first);
      }
    }
  }
  void revive(const std::string& name) {
    start(name);
    // A trainer that comes back has no baseline, and calls refit again.
    if (endpoints[name].role != Role::kOwner) return;
    endpoints[name].baseline.reset();
    ask(name, label);
  }
  void heal() {
    faults = false;
    for (const char* name : {"coordinator-0", "coordinator-1"}) {
      if (!has_coordinator(name) || ends.contains(name)) {
        ends.erase(name);
        add_coordinator(name);
      }
    }
    for (auto& [name, endpoint] : endpoints) {
      if (!endpoint.alive) revive(name);
    }
  }
  // Who was barred comes back in another life; who waits, or was overtaken, joins with what is
  // committed now.
  void rejoin() {
    for (auto& [name, endpoint] : endpoints) {
      const auto row = *control.read_member(name);
      if (!endpoint.alive) continue;
      if (!row || row->endpoint != endpoint.endpoint) {
        revive(name);
      } else if (row->state != MemberState::kMember) {
        join(name);
      }
    }
    at(now + 500, [this] { rejoin(); });
  }
  std::string label;

 private:
  static bool holds(const std::vector<Endpoint>& list, const Endpoint& endpoint) {
    return std::find(list.begin(), list.end(), endpoint) != list.end();
  }
  void fault_found(const std::string& what) { wrong.push_back(std::to_string(now) + ": " + what); }

  // What was said when the call was made; the store itself refuses what is out of date.
  void check_call(const ControlRequest& request) {
    const ControlRecords records = *control.read();
    const TransitionRecord& last = records.transition;
    if (const auto* open = std::get_if<OpenRequest>(&request)) {
      if (open->attempt != last.attempt || last.state != AttemptState::kActive) return;
      for (const Endpoint& receiver : last.receivers) {
        if (!holds(closed[open->attempt], receiver)) {
          fault_found("opened before " + receiver.name + " closed its gate");
        }
      }
    } else if (const auto* commit = std::get_if<CommitRequest>(&request)) {
      if (commit->attempt != last.attempt || last.state != AttemptState::kActive) return;
      for (const Endpoint& receiver : last.receivers) {
        if (!holds(completed[commit->attempt], receiver)) {
          fault_found("committed before " + receiver.name + " completed");
        }
      }
    } else if (const auto* prepare = std::get_if<PrepareRequest>(&request)) {
      if (prepare->token == records.leader.token && prepare->after == last.attempt) {
        check_stopped(last, "prepared");
      }
    }
  }
  // Of an attempt that was not committed nobody may be at work, unless he is barred.
  void check_stopped(const TransitionRecord& last, const std::string& what) {
    if (last.state != AttemptState::kObsolete) return;
    std::vector<Endpoint> bound = last.nodes;
    bound.insert(bound.end(), last.receivers.begin(), last.receivers.end());
    for (const OwnerBinding& owner : last.owners) bound.push_back(owner.endpoint);
    for (const Endpoint& endpoint : bound) {
      const auto row = *control.read_member(endpoint.name);
      const bool barred = !row || row->endpoint != endpoint;
      if (!barred && !holds(stopped[last.attempt], endpoint)) {
        // One whose Prepare never went out has nothing to stop.
        if (endpoints[endpoint.name].current != last.attempt) continue;
        fault_found(what + " before " + endpoint.name + " stopped");
      }
    }
  }
  void check_message(const Scripted& endpoint, const Message& message) {
    const ControlRecords records = *control.read();
    if (const auto* open = std::get_if<OpenApply>(&message)) {
      if (endpoint.role == Role::kReceiver && open->attempt == endpoint.current &&
          records.transition.attempt == open->attempt &&
          records.transition.state == AttemptState::kActive && !records.transition.dirty()) {
        fault_found("open_apply before the record says so");
      }
    } else if (const auto* ended = std::get_if<RefitEnded>(&message)) {
      if (ended->failure || !endpoint.asks || endpoint.asks->candidate != ended->candidate) return;
      if (ended->committed.label != endpoint.asks->label) {
        fault_found("a refit ended with another's commit");
      }
      if (ended->committed.id.version > records.commit.id.version) {
        fault_found("a refit ended before its commit");
      }
    } else if (const auto* cleanup = std::get_if<Cleanup>(&message)) {
      if (cleanup->attempt == records.transition.attempt &&
          records.transition.state == AttemptState::kActive) {
        fault_found("an active attempt was cleaned up");
      }
    }
  }
  bool misbehave(Scripted& endpoint, const Message& message, Replies* replies) {
    if (prng.below(60) == 0) return true;  // silent
    if (const auto* prepare = std::get_if<Prepare>(&message)) {
      if (prng.below(40) > 0) return false;
      endpoint.fence = std::max(endpoint.fence, prepare->attempt);
      replies->push_back(
          AttemptFailed{prepare->attempt, prng.below(2) == 0, {Code::kIo, "", "chaos"}});
      return true;
    }
    if (const auto* flush = std::get_if<Flush>(&message)) {
      if (prng.below(20) > 0) return false;
      replies->push_back(AttemptFailed{flush->attempt, false, {Code::kCorrupt, "", "chaos"}});
      return true;
    }
    return false;
  }
};

TEST(CoordinatorProperty, RandomWorldsKeepItsRulesAndEnd) {
  for (std::uint64_t seed = 0; seed < campaign_cases(1'000); ++seed) {
    Chaos chaos(seed);
    chaos.observe = [&chaos](const Endpoint& from, const Message& message) {
      if (const auto* done = std::get_if<Completed>(&message)) {
        chaos.completed[done->attempt].push_back(from);
      } else if (const auto* stop = std::get_if<Stopped>(&message)) {
        chaos.stopped[stop->attempt].push_back(from);
      } else if (const auto* closed = std::get_if<GateClosed>(&message)) {
        chaos.closed[closed->attempt].push_back(from);
      }
    };
    chaos.populate(2, 2, 3);
    chaos.add_coordinator("coordinator-0");
    chaos.add_coordinator("coordinator-1");
    chaos.rejoin();
    for (std::uint64_t refit = 0; refit < 4; ++refit) {
      chaos.label = "step " + std::to_string(refit);
      chaos.refit(chaos.label, chaos.prng.below(2) == 0);
      for (int round = 0; round < 30 && !chaos.refits_ended(); ++round) {
        chaos.run_for(chaos.prng.below(1'000));
        chaos.hurt();
      }
    }
    chaos.heal();
    chaos.label = "healed";
    // Owners that still wait for an older refit are given up by their trainer.
    for (auto& [name, endpoint] : chaos.endpoints) {
      if (endpoint.role == Role::kOwner) chaos.ask(name, chaos.label);
    }
    const bool ended = chaos.run_for(120'000, [&chaos] {
      return chaos.refits_ended() && chaos.control.read()->commit.label == "healed";
    });
    ASSERT_EQ(chaos.wrong, std::vector<std::string>()) << "seed " << seed;
    ASSERT_TRUE(ended) << "seed " << seed << "\n" << chaos.all_notes();
  }
}

}  // namespace
}  // namespace dcr
