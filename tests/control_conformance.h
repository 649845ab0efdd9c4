// What every control plane does alike: each operation's conditions and effects, one by one; joins
// and bars are in control_membership_conformance.h. A store passes by running these cases
// (docs/PROTOCOL.md rules 1, 2, 4, 6 and 7).
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dcr/control.h"
#include "tests/control_store.h"

namespace dcr {

using MakeControlStore = std::unique_ptr<ControlStore> (*)();

class ControlConformanceTest : public ::testing::TestWithParam<MakeControlStore> {
 protected:
  ControlPlane& control() { return store_->client(0); }

  Endpoint enrol(const std::string& name, Role role) {
    const Result<Enrolment> given =
        control().enrol({name, role, role == Role::kReceiver ? "engine" : ""});
    EXPECT_TRUE(given.ok()) << given.status().message();
    return {name, given.ok() ? given->incarnation : 0};
  }
  JoinOutcome join(const Endpoint& endpoint, std::optional<VersionId> restored = {}) {
    const Result<Joined> joined = control().join({endpoint, restored, {7, 8}});
    EXPECT_TRUE(joined.ok()) << joined.status().message();
    return joined.ok() ? joined->outcome : JoinOutcome::kOvertaken;
  }
  Endpoint enrol_and_join(const std::string& name, Role role) {
    const Endpoint endpoint = enrol(name, role);
    const std::optional<VersionId> restored =
        role == Role::kReceiver ? std::optional(read().commit.id) : std::nullopt;
    EXPECT_EQ(join(endpoint, restored), JoinOutcome::kJoined);
    return endpoint;
  }
  ControlRecords read() { return *control().read(); }

  // Claims for a new incarnation of `name`; its token.
  std::uint64_t lead(const std::string& name = "coordinator.0") {
    const Endpoint holder = enrol(name, Role::kCoordinator);
    const Result<ControlRecords> claimed = control().claim(holder, read().leader);
    EXPECT_TRUE(claimed.ok()) << claimed.status().message();
    return claimed->leader.token;
  }

  // A prepare that fits what the store holds, every owner's candidate having this counter.
  PrepareRequest request(AttemptMode mode, std::uint64_t counter) {
    const Membership all = *control().read_members();
    PrepareRequest made;
    made.token = all.records.leader.token;
    made.after = all.records.transition.attempt;
    made.members_revision = all.records.members_revision;
    made.base = all.records.commit.id;
    made.label = "step " + std::to_string(counter);
    made.mode = mode;
    made.digest = {4, 5, 6};
    for (const Member* member : bound_members(all.members, made.base)) {
      if (member->role != Role::kOwner) continue;
      made.candidates.push_back({member->endpoint.name, {member->endpoint.incarnation, counter}});
    }
    return made;
  }
  TransitionRecord prepare(AttemptMode mode = AttemptMode::kMixed, std::uint64_t counter = 1) {
    const Result<TransitionRecord> made = control().prepare(request(mode, counter));
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? *made : TransitionRecord{};
  }
  // Which owners attempt `counter` in this mode has to be dense for, by name.
  std::string dense_owners(AttemptMode mode, std::uint64_t counter) {
    std::string names;
    for (const OwnerBinding& owner : prepare(mode, counter).owners) {
      if (owner.dense) names += owner.endpoint.name + " ";
    }
    return names;
  }

  // Two owners, a node, two receivers, and a leader.
  void set_up_run() {
    owner_ = enrol_and_join("owner.0", Role::kOwner);
    enrol_and_join("owner.1", Role::kOwner);
    node_ = enrol_and_join("node.0", Role::kNode);
    receiver_ = enrol_and_join("receiver.0", Role::kReceiver);
    enrol_and_join("receiver.1", Role::kReceiver);
    token_ = lead();
  }

  // An error of this kind, and nothing changed.
  template <typename Value>
  void expect_refused(const Result<Value>& result, Code code, const std::string& message) {
    EXPECT_EQ(result.status().code(), code) << result.status().message();
    EXPECT_EQ(result.status().message(), message);
  }

  std::unique_ptr<ControlStore> store_ = GetParam()();
  Endpoint owner_, node_, receiver_;
  std::uint64_t token_ = 0;
};

TEST_P(ControlConformanceTest, ANewStoreHoldsItsBase) {
  ControlRecords expected;
  expected.run = kTestRun;
  expected.commit.label = "base";
  EXPECT_EQ(read(), expected);
  EXPECT_EQ(control().read_members()->members, std::vector<Member>());
  EXPECT_EQ(*control().read_member("owner.0"), std::nullopt);
}

TEST_P(ControlConformanceTest, EnrolGivesAscendingIncarnationsAndTheFence) {
  set_up_run();
  prepare();
  const Enrolment first = *control().enrol({"owner.9", Role::kOwner, ""});
  const Enrolment second = *control().enrol({"owner.9", Role::kOwner, ""});
  EXPECT_EQ(first.records.transition.attempt, 1U);
  EXPECT_GT(second.incarnation, first.incarnation);
  EXPECT_GT(second.records.members_revision, first.records.members_revision);
  const Member row = **control().read_member("owner.9");
  EXPECT_EQ(row.endpoint, (Endpoint{"owner.9", second.incarnation}));
  EXPECT_EQ(row.state, MemberState::kEnrolled);
  expect_refused(control().join({{"owner.9", first.incarnation}, {}, {}}), Code::kConflict,
                 "owner.9 (incarnation " + std::to_string(first.incarnation) +
                     ") is barred: incarnation " + std::to_string(second.incarnation) +
                     " has taken its place");
}

TEST_P(ControlConformanceTest, EnrolRefusesWhatIsNoEndpoint) {
  expect_refused(control().enrol({"", Role::kOwner, ""}), Code::kInvalidArgument,
                 "an endpoint has an empty name");
  expect_refused(control().enrol({"a/b", Role::kOwner, ""}), Code::kInvalidArgument,
                 "a name has the byte 47: names are letters, digits, '.', '_' and '-'");
  expect_refused(control().enrol({std::string(65, 'a'), Role::kOwner, ""}), Code::kInvalidArgument,
                 "a name of 65 bytes is longer than the limit of 64");
  expect_refused(control().enrol({"r", Role::kReceiver, ""}), Code::kInvalidArgument,
                 "engine of r: an endpoint has an empty name");
  expect_refused(control().enrol({"o", Role::kOwner, "e"}), Code::kInvalidArgument,
                 "o: an owner has no engine, only receivers have one");
  enrol("o", Role::kOwner);
  expect_refused(control().enrol({"o", Role::kNode, ""}), Code::kMismatch,
                 "o is enrolled as owner, not as node: take another name");
  EXPECT_EQ(control().read_members()->members.size(), 1U);
}

TEST_P(ControlConformanceTest, LeadershipIsTakenFromAStillBeat) {
  const Endpoint first = enrol("a", Role::kCoordinator);
  const Endpoint second = enrol("b", Role::kCoordinator);
  const LeaderRow nobody = read().leader;
  const ControlRecords claimed = *control().claim(first, nobody);
  EXPECT_EQ(claimed.leader, (LeaderRow{first, 1, 0}));
  const LeaderRow seen = claimed.leader;
  EXPECT_EQ(control().beat(1)->beat, 1U);
  expect_refused(control().claim(second, seen), Code::kConflict,
                 "leadership moved on: a (incarnation 1) leads with token 1, beat 1; claim when "
                 "both stand still");
  EXPECT_EQ(control().claim(second, read().leader)->leader, (LeaderRow{second, 2, 0}));
  expect_refused(control().beat(1), Code::kLostLeadership,
                 "leader token 1 is not the current one: b (incarnation 2) leads with token 2; "
                 "stop, and leave gates and records to it");
  EXPECT_EQ(control().claim(first, nobody).status().code(), Code::kConflict);
}

TEST_P(ControlConformanceTest, OnlyALivingCoordinatorClaims) {
  const Endpoint first = enrol("a", Role::kCoordinator);
  const Endpoint owner = enrol("o", Role::kOwner);
  expect_refused(control().claim(owner, {}), Code::kConflict,
                 "o (incarnation 2) is enrolled as owner: only coordinators lead");
  enrol("a", Role::kCoordinator);
  EXPECT_EQ(control().claim(first, {}).status().code(), Code::kConflict);
  EXPECT_EQ(control().beat(1).status().message(),
            "leader token 1 is not the current one: nobody has claimed leadership yet; stop, and "
            "leave gates and records to it");
}

TEST_P(ControlConformanceTest, AClaimMakesTheActiveAttemptObsolete) {
  set_up_run();
  const TransitionRecord active = prepare();
  EXPECT_EQ(active.state, AttemptState::kActive);
  const Endpoint other = enrol("coordinator.1", Role::kCoordinator);
  const LeaderRow seen = read().leader;
  const ControlRecords claimed = *control().claim(other, seen);
  EXPECT_EQ(claimed.transition.attempt, 1U);
  EXPECT_EQ(claimed.transition.state, AttemptState::kObsolete);
  // The reply was lost and the claim repeated: also after a prepare of its own.
  EXPECT_EQ(*control().claim(other, seen), claimed);
  prepare();
  EXPECT_EQ(control().claim(other, seen)->transition.state, AttemptState::kActive);
  expect_refused(control().commit(1), Code::kConflict,
                 "attempt 1 is not active: attempt 2 is the last one and active");
  EXPECT_EQ(control().prepare(request(AttemptMode::kMixed, 1)).status().message(),
            "a prepare while attempt 2 is active: mark it obsolete first");
}

TEST_P(ControlConformanceTest, PrepareBindsWhatIsThere) {
  set_up_run();
  const TransitionRecord made = prepare(AttemptMode::kMixed, 3);
  EXPECT_EQ(made.attempt, 1U);
  EXPECT_EQ(made.leader, token_);
  EXPECT_EQ(made.base, VersionId{});
  EXPECT_EQ(made.label, "step 3");
  EXPECT_EQ(made.digest[0], 4);
  ASSERT_EQ(made.owners.size(), 2U);
  EXPECT_EQ(made.owners[0], (OwnerBinding{owner_, {owner_.incarnation, 3}, false}));
  EXPECT_EQ(made.nodes, std::vector<Endpoint>{node_});
  EXPECT_EQ(made.receivers.size(), 2U);
  EXPECT_FALSE(made.dirty());
  EXPECT_EQ(read().transition, made);
}

TEST_P(ControlConformanceTest, PrepareRefusesAViewThatIsOutOfDate) {
  set_up_run();
  const PrepareRequest good = request(AttemptMode::kMixed, 1);
  const auto refused = [&](void (*change)(PrepareRequest*), Code code, const std::string& message) {
    PrepareRequest wrong = good;
    change(&wrong);
    const ControlRecords before = read();
    expect_refused(control().prepare(wrong), code, message);
    EXPECT_EQ(read(), before);
  };
  refused([](PrepareRequest* wrong) { wrong->token = 2; }, Code::kLostLeadership,
          "leader token 2 is not the current one: coordinator.0 (incarnation 6) leads with token "
          "1; stop, and leave gates and records to it");
  refused([](PrepareRequest* wrong) { wrong->after = 1; }, Code::kConflict,
          "the last attempt is 0, not 1: read the records again");
  refused(
      [](PrepareRequest* wrong) {
        wrong->base = {1, 1};
      },
      Code::kConflict, "committed is version 0 of attempt 0, not version 1 of attempt 1");
  refused([](PrepareRequest* wrong) { wrong->members_revision -= 1; }, Code::kConflict,
          "the membership has changed since revision 10 (it is 11 now): read the members again");
  refused([](PrepareRequest* wrong) { wrong->candidates.pop_back(); }, Code::kConflict,
          "owner owner.1 (incarnation 2) is a member, but the request has no candidate of it in "
          "order of names: read the members again");
  refused(
      [](PrepareRequest* wrong) {
        wrong->candidates.push_back({"owner.2", {1, 1}});
      },
      Code::kConflict,
      "the request has a candidate of owner.2, which is no member that is an owner: read the "
      "members again");
  refused([](PrepareRequest* wrong) { wrong->candidates[0].candidate.incarnation = 5; },
          Code::kConflict, "owner owner.0 (incarnation 1): the candidate is of incarnation 5");
  refused([](PrepareRequest* wrong) { wrong->candidates[0].candidate.counter = ~0ULL; },
          Code::kInvalidArgument, "owner.0: the candidate's counter is above 4611686018427387904");
  refused([](PrepareRequest* wrong) { wrong->label = "a\nb"; }, Code::kInvalidArgument,
          "a label has the control character 10: labels are text");
  refused([](PrepareRequest* wrong) { wrong->label = std::string(257, 'a'); },
          Code::kInvalidArgument, "a label of 257 bytes is longer than the limit of 256");
}

TEST_P(ControlConformanceTest, PrepareNeedsAnOwnerAndAReceiver) {
  lead();
  expect_refused(control().prepare(request(AttemptMode::kMixed, 1)), Code::kConflict,
                 "no owner is a member or waits to become one: there is nobody to refit");
  enrol_and_join("owner.0", Role::kOwner);
  enrol("receiver.0", Role::kReceiver);
  expect_refused(control().prepare(request(AttemptMode::kMixed, 1)), Code::kConflict,
                 "no receiver is a member or waits to become one: there is nobody to refit");
}

TEST_P(ControlConformanceTest, ARepeatedPrepareMakesNoSecondAttempt) {
  set_up_run();
  const PrepareRequest asked = request(AttemptMode::kMixed, 1);
  const TransitionRecord made = *control().prepare(asked);
  EXPECT_EQ(*control().prepare(asked), made);
  ASSERT_TRUE(control().mark_obsolete(1).ok());
  expect_refused(control().prepare(asked), Code::kConflict,
                 "the last attempt is 1, not 0: read the records again");
}

TEST_P(ControlConformanceTest, OpenMakesTheRecordDirty) {
  set_up_run();
  expect_refused(control().open(1), Code::kConflict,
                 "attempt 1 is not active: attempt 0 is the last one and none");
  expect_refused(control().open(0), Code::kInvalidArgument,
                 "attempt 0 is none: attempts count from 1");
  prepare();
  const TransitionRecord opened = *control().open(1);
  EXPECT_TRUE(opened.dirty());
  EXPECT_EQ(*control().open(1), opened);
  ASSERT_TRUE(control().mark_obsolete(1).ok());
  EXPECT_EQ(control().open(1).status().code(), Code::kConflict);
  expect_refused(control().prepare(request(AttemptMode::kMixed, 1)), Code::kConflict,
                 "an earlier attempt may have written to receivers: the next one overwrites or is "
                 "dense, not mixed");
  EXPECT_TRUE(prepare(AttemptMode::kOverwrite).dirty());
  ASSERT_TRUE(control().commit(2).ok());
  EXPECT_FALSE(read().transition.dirty());
  prepare(AttemptMode::kMixed, 2);
}

TEST_P(ControlConformanceTest, AnAttemptThatWasNotOpenedLeavesMixedModeAllowed) {
  set_up_run();
  prepare();
  ASSERT_TRUE(control().mark_obsolete(1).ok());
  EXPECT_EQ(prepare().attempt, 2U);
}

TEST_P(ControlConformanceTest, ARetryOfOtherWeightsIsDense) {
  set_up_run();
  EXPECT_EQ(dense_owners(AttemptMode::kMixed, 1), "");
  ASSERT_TRUE(control().open(1).ok() && control().mark_obsolete(1).ok());
  EXPECT_EQ(dense_owners(AttemptMode::kOverwrite, 1), "");  // the same candidate
  ASSERT_TRUE(control().mark_obsolete(2).ok());
  // Of one owner only.
  PrepareRequest changed = request(AttemptMode::kOverwrite, 1);
  changed.candidates[1].candidate.counter = 2;
  const TransitionRecord third = *control().prepare(changed);
  EXPECT_FALSE(third.owners[0].dense);
  EXPECT_TRUE(third.owners[1].dense);
  ASSERT_TRUE(control().open(3).ok() && control().mark_obsolete(3).ok());
  // The first candidate's words may still lie where the second changed nothing, and back.
  EXPECT_EQ(dense_owners(AttemptMode::kOverwrite, 1), "owner.1 ");
  ASSERT_TRUE(control().mark_obsolete(4).ok());
  EXPECT_EQ(dense_owners(AttemptMode::kDense, 1), "owner.0 owner.1 ");
  ASSERT_TRUE(control().commit(5).ok());
  EXPECT_EQ(dense_owners(AttemptMode::kMixed, 2), "");
}

TEST_P(ControlConformanceTest, ARetryWithOtherOwnersIsDense) {
  set_up_run();
  prepare();
  ASSERT_TRUE(control().open(1).ok() && control().mark_obsolete(1).ok());
  const Endpoint added = enrol_and_join("owner.2", Role::kOwner);
  EXPECT_EQ(dense_owners(AttemptMode::kOverwrite, 1), "owner.0 owner.1 owner.2 ");
  ASSERT_TRUE(control().mark_obsolete(2).ok() && control().bar(token_, {added}).ok());
  EXPECT_EQ(dense_owners(AttemptMode::kOverwrite, 1), "");
  ASSERT_TRUE(control().mark_obsolete(3).ok());
  enrol_and_join("owner.1", Role::kOwner);  // restarted: what it sends is another candidate
  EXPECT_EQ(dense_owners(AttemptMode::kOverwrite, 1), "owner.1 ");
}

TEST_P(ControlConformanceTest, CommitReplacesK) {
  set_up_run();
  expect_refused(control().commit(0), Code::kInvalidArgument,
                 "attempt 0 is none: attempts count from 1");
  prepare(AttemptMode::kMixed, 4);
  ASSERT_TRUE(control().open(1).ok());
  const ControlRecords committed = *control().commit(1);
  EXPECT_EQ(committed.commit, (CommitRecord{{1, 1}, "step 4"}));
  EXPECT_EQ(committed.transition.state, AttemptState::kCommitted);
  EXPECT_EQ(*control().commit(1), committed);  // the reply was lost
  EXPECT_EQ(control().mark_obsolete(1)->transition.state, AttemptState::kCommitted);
  store_->reopen();
  EXPECT_EQ(read(), committed);
}

TEST_P(ControlConformanceTest, AnObsoleteAttemptIsNeverCommitted) {
  set_up_run();
  expect_refused(control().mark_obsolete(1), Code::kInvalidArgument,
                 "attempt 1 was never prepared: the last one is 0");
  prepare();
  const ControlRecords over = *control().mark_obsolete(1);
  EXPECT_EQ(over.transition.state, AttemptState::kObsolete);
  EXPECT_EQ(*control().mark_obsolete(1), over);
  expect_refused(control().commit(1), Code::kConflict,
                 "attempt 1 is not active: attempt 1 is the last one and obsolete");
  prepare();
  EXPECT_EQ(control().mark_obsolete(1)->transition.state, AttemptState::kActive);
}

TEST_P(ControlConformanceTest, ReadCommitDecidesAnUnknownOutcome) {
  set_up_run();
  prepare();
  ASSERT_TRUE(control().commit(1).ok());
  EXPECT_EQ(*control().read_commit(1, {}), AttemptOutcome::kCommitted);
  prepare(AttemptMode::kMixed, 2);
  EXPECT_EQ(*control().read_commit(2, {1, 1}), AttemptOutcome::kNotCommitted);
  prepare(AttemptMode::kMixed, 2);
  ASSERT_TRUE(control().commit(3).ok());
  EXPECT_EQ(*control().read_commit(2, {1, 1}), AttemptOutcome::kConflict);
}

TEST_P(ControlConformanceTest, AfterAnAbortEveryOwnerIsDense) {
  set_up_run();
  prepare();
  expect_refused(control().abort_transition(7), Code::kLostLeadership,
                 "leader token 7 is not the current one: coordinator.0 (incarnation 6) leads with "
                 "token 1; stop, and leave gates and records to it");
  const ControlRecords aborted = *control().abort_transition(token_);
  EXPECT_EQ(aborted.transition.state, AttemptState::kObsolete);
  EXPECT_EQ(*control().abort_transition(token_), aborted);
  EXPECT_EQ(dense_owners(AttemptMode::kOverwrite, 1), "owner.0 owner.1 ");
  ASSERT_TRUE(control().commit(2).ok());
  const ControlRecords committed = read();
  EXPECT_EQ(*control().abort_transition(token_), committed);  // there is nothing to abort
  EXPECT_EQ(dense_owners(AttemptMode::kMixed, 2), "");
}

TEST_P(ControlConformanceTest, EndpointsThatRestartUnderAnAttemptAreBoundByTheNext) {
  set_up_run();
  const TransitionRecord first = prepare();
  const Endpoint successor = enrol("owner.0", Role::kOwner);
  EXPECT_EQ(read().transition, first);
  EXPECT_EQ(join(successor), JoinOutcome::kWaiting);
  ASSERT_TRUE(control().mark_obsolete(1).ok());
  const TransitionRecord second = prepare();
  EXPECT_EQ(second.owners[0].endpoint, successor);
  EXPECT_EQ((**control().read_member("owner.0")).state, MemberState::kMember);
}

// Clients that race: of all claims for one (token, beat), of all prepares after one attempt and of
// a commit and a takeover, one is done, and every client sees the same.
TEST_P(ControlConformanceTest, RacesHaveOneWinner) {
  set_up_run();
  constexpr unsigned kClients = 3;
  std::vector<Endpoint> holders;
  for (unsigned i = 0; i < kClients; ++i) {
    holders.push_back(enrol("racer." + std::to_string(i), Role::kCoordinator));
  }
  for (unsigned i = 0; i <= kClients; ++i) static_cast<void>(store_->client(i));
  for (std::uint64_t round = 0; round < 10; ++round) {
    const ControlRecords before = *control().read();
    const PrepareRequest asked = request(AttemptMode::kMixed, round);
    ASSERT_TRUE(control().prepare(asked).ok());
    std::vector<int> won(kClients, 0);
    bool committed = false;
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < kClients; ++i) {
      threads.emplace_back(
          [&, i] { won[i] = store_->client(i).claim(holders[i], before.leader).ok() ? 1 : 0; });
    }
    committed = store_->client(kClients).commit(asked.after + 1).ok();
    for (std::thread& thread : threads) thread.join();
    const ControlRecords after = *control().read();
    EXPECT_EQ(won[0] + won[1] + won[2], 1);
    EXPECT_EQ(after.leader.token, before.leader.token + 1);
    EXPECT_EQ(after.commit.id.version, before.commit.id.version + (committed ? 1 : 0));
    EXPECT_EQ(after.transition.state,
              committed ? AttemptState::kCommitted : AttemptState::kObsolete);
    for (unsigned i = 0; i <= kClients; ++i) EXPECT_EQ(*store_->client(i).read(), after);
  }
}

}  // namespace dcr
