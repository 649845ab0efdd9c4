// An owner machine over a MemoryControl, with everybody else scripted.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "protocol/owner.h"
#include "protocol/test_driver.h"

namespace dcr {

inline OwnerWorkDone done_of(OwnerWorkDone::Kind kind, std::uint64_t number, Status status = {}) {
  OwnerWorkDone done;
  done.kind = kind;
  done.number = number;
  done.status = std::move(status);
  done.result.mode = AttemptMode::kMixed;
  done.result.pipeline.payloads = 3;
  done.result.pipeline.payload_bytes = 300;
  done.result.changed_source_elements = 30;
  return done;
}

class OwnerEndpointTest : public testing::Test {
 public:
  using Kind = OwnerWorkDone::Kind;
  using Driver = TestDriver<OwnerEndpoint, OwnerEvent, OwnerEffect>;

  OwnerEndpointTest() {
    world.lead();
    node = world.member("node-0", Role::kNode);
    receiver = world.member("receiver-0", Role::kReceiver);
    start(VersionId{});
  }

  void start(std::optional<VersionId> baseline) {
    OwnerEndpointOptions options;
    options.name = "owner-0";
    options.details = {0, 1, {}};
    options.elements = 1000;
    owner = std::make_unique<Driver>(OwnerEndpoint(options, baseline), world.control);
    owner->step(Started{});
    owner->pass(0);
  }
  void call_refit(bool same_candidate = false) {
    owner->step(RefitCalled{"next", false, same_candidate});
  }
  Candidate candidate() {
    const auto requests = owner->take<RefitRequest>();
    if (!requests.empty()) candidate_ = requests.back().second.candidate;
    return candidate_;
  }
  // The control plane's attempt, and its Prepare.
  Prepare prepare(AttemptMode mode = AttemptMode::kMixed) {
    const TransitionRecord record = world.prepare({{"owner-0", candidate()}}, mode);
    Prepare message;
    message.attempt = record.attempt;
    message.base = record.base;
    message.label = record.label;
    message.mode = record.mode;
    message.owners = record.owners;
    message.nodes = record.nodes;
    message.receivers = {{receiver, "engine", "node-0"}};
    message.needs = {Need::kAny, Need::kDense};
    return message;
  }
  // Up to everything sent.
  Prepare construct() {
    const Prepare message = prepare();
    owner->receive(world.leader, message);
    sweep(message.attempt);
    EXPECT_EQ(owner->take_work<ConstructAndSend>().attempt.attempt, message.attempt);
    owner->step(done_of(Kind::kConstructAndSend, message.attempt));
    EXPECT_EQ(owner->take<Sent>().size(), 1U);
    return message;
  }
  // The removal of what earlier attempts left behind, if it comes.
  void sweep(std::uint64_t attempt) {
    if (owner->work.empty()) return;
    if (!std::holds_alternative<RemovePayloads>(owner->work.front())) return;
    EXPECT_EQ(owner->take_work<RemovePayloads>().attempt, attempt - 1);
    owner->step(done_of(Kind::kRemovePayloads, attempt - 1));
  }
  // Lets old restore streams go, if it is time for that.
  void remove_restores() {
    if (owner->work.empty()) return;
    if (!std::holds_alternative<RemoveRestores>(owner->work.front())) return;
    owner->step(done_of(Kind::kRemoveRestores, owner->take_work<RemoveRestores>().version));
  }
  void commit(std::uint64_t attempt) { ASSERT_TRUE(world.control.commit(attempt).ok()); }
  // A whole refit, with its baseline, after which nothing is left.
  void refit() {
    const std::uint64_t attempt = refit_that_leaves_payloads();
    EXPECT_EQ(owner->take_work<RemovePayloads>().attempt, attempt);
    owner->step(done_of(Kind::kRemovePayloads, attempt));
    remove_restores();
  }
  std::uint64_t refit_that_leaves_payloads() {
    call_refit();
    const Prepare message = construct();
    commit(message.attempt);
    owner->receive(world.leader, Look{});
    EXPECT_EQ(owner->take_work<UpdateBaseline>().version, message.base.version + 1);
    owner->step(done_of(Kind::kUpdateBaseline, message.base.version + 1));
    remove_restores();
    owner->receive(
        world.leader,
        RefitEnded{candidate_, world.control.read()->commit, std::nullopt, 1, {}, 0, {}});
    EXPECT_TRUE(owner->take_work<RefitFinished>().status.ok());
    return message.attempt;
  }

  TestControl world;
  Endpoint node, receiver;
  std::unique_ptr<Driver> owner;

 protected:
  Candidate candidate_;
};

}  // namespace dcr
