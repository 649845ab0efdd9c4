#include "run/operator_restore.h"

#include <gtest/gtest.h>

namespace dcr {
namespace {

using Words = std::vector<std::string>;

// Two receivers of engine-0 and one of engine-1, barred in their first lives while version 3 of
// attempt 4 is committed, and the owners; nobody has answered.
class RestoreProgressTest : public testing::Test {
 protected:
  void SetUp() override {
    status_.membership.records.commit.id = {3, 4};
    for (const char* const name : {"receiver-0", "receiver-1", "receiver-2"}) {
      Member& receiver = receivers_.emplace_back();
      receiver.endpoint = {name, 1};
      receiver.role = Role::kReceiver;
      receiver.engine = receivers_.size() < 3 ? "engine-0" : "engine-1";
    }
    for (const char* const name : {"owner-0", "owner-1"}) {
      Member& owner = status_.membership.members.emplace_back();
      owner.endpoint = {name, 1};
      owner.role = Role::kOwner;
    }
  }

  StatusReply& answers(const std::string& name, std::optional<VersionId> held,
                       const char* state = "member", std::uint64_t incarnation = 2) {
    StatusReply& reply = status_.endpoints[name] = StatusReply();
    reply.state = state;
    reply.held = held;
    status_.incarnations[name] = incarnation;
    return reply;
  }

  void open(const std::string& gate, VersionId version) {
    answers(gate, version, "open").gate_open = true;
  }

  RestoreProgress progress() const { return restore_progress(config_, status_, receivers_, 3); }

  RunConfig config_;
  RunStatus status_;
  std::vector<Member> receivers_;
};

TEST_F(RestoreProgressTest, WaitsForReceiversAndTheirGates) {
  RestoreProgress found = progress();
  EXPECT_EQ(found.receivers,
            (Words{"receiver-0 is silent", "receiver-1 is silent", "receiver-2 is silent"}));
  EXPECT_EQ(found.gates, (Words{"gate engine-0 is silent", "gate engine-1 is silent"}));
  EXPECT_TRUE(found.silent);
  answers("receiver-0", VersionId{3, 4});
  answers("receiver-1", VersionId{2, 2});
  answers("receiver-2", std::nullopt, "restoring").detail = "owner-1 is silent";
  open("engine-0", {2, 2});
  answers("engine-1", std::nullopt, "closed").gate_reason = "receiver-2 restores";
  found = progress();
  EXPECT_EQ(found.receivers,
            (Words{"receiver-1 holds version 2 and is member",
                   "receiver-2 holds no version and is restoring, owner-1 is silent"}));
  EXPECT_EQ(found.gates, (Words{"gate engine-0 is open for an earlier version",
                                "gate engine-1 is closed, receiver-2 restores"}));
  EXPECT_EQ(found.text(),
            "receiver-1 holds version 2 and is member, receiver-2 holds no version and is "
            "restoring, owner-1 is silent, gate engine-0 is open for an earlier version, gate "
            "engine-1 is closed, receiver-2 restores");
  EXPECT_FALSE(found.silent);
  EXPECT_FALSE(found.done());
}

TEST_F(RestoreProgressTest, WhatWasCommittedMeanwhileIsAsGood) {
  for (const char* const name : {"receiver-0", "receiver-1", "receiver-2"}) {
    answers(name, VersionId{4, 7});
  }
  for (const char* const gate : {"engine-0", "engine-1"}) open(gate, {4, 7});
  EXPECT_TRUE(progress().done());
}

TEST_F(RestoreProgressTest, WhatWasSaidInABarredLifeDoesNotCount) {
  receivers_.resize(1);
  answers("receiver-0", VersionId{3, 4}, "member", 1);
  open("engine-0", {3, 4});
  const RestoreProgress found = progress();
  EXPECT_EQ(found.receivers, Words{"receiver-0 begins anew"});
  EXPECT_FALSE(found.silent);
  receivers_[0].endpoint.incarnation = 0;  // it was not barred
  EXPECT_TRUE(progress().done());
}

TEST_F(RestoreProgressTest, NobodyWaitsForReceiversThatWereRefused) {
  receivers_.erase(receivers_.begin());
  open("engine-1", {3, 4});
  answers("receiver-1", std::nullopt, "refused").detail = "a tensor is packed";
  answers("receiver-2", VersionId{3, 4});
  answers("engine-0", std::nullopt, "closed").gate_reason = "receiver-1 was refused";
  const RestoreProgress found = progress();
  EXPECT_TRUE(found.done());
  EXPECT_EQ(found.refused, Words{"receiver-1 takes no part: a tensor is packed"});
}

TEST_F(RestoreProgressTest, AllGatesAreWaitedFor) {
  receivers_.clear();
  EXPECT_TRUE(progress().done());
  config_.engines.resize(1);
  config_.engines[0].gate.name = "engine-0";
  Member& gate = status_.membership.members.emplace_back();
  gate.endpoint = {"engine-7", 3};
  gate.role = Role::kGate;
  EXPECT_EQ(progress().gates, (Words{"gate engine-0 is silent", "gate engine-7 is silent"}));
}

TEST_F(RestoreProgressTest, OwnersThatDoSomethingMayStillHaveABaseline) {
  answers("owner-0", VersionId{2, 2}, "updating_baseline");
  EXPECT_EQ(progress().without_baseline, Words());
  answers("owner-0", VersionId{2, 2}, "idle");
  answers("owner-1", VersionId{3, 4}, "idle");
  EXPECT_EQ(progress().without_baseline, Words{"owner-0"});
  answers("owner-1", std::nullopt, "idle");
  EXPECT_EQ(progress().without_baseline, (Words{"owner-0", "owner-1"}));
}

}  // namespace
}  // namespace dcr
