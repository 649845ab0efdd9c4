#include "protocol/member.h"

#include <gtest/gtest.h>

#include "control/memory_control.h"

namespace dcr {
namespace {

class MemberTest : public ::testing::Test {
 public:
  MemoryControl control{*new_control_state({1}, "base")};
  Waits waits;
  Milliseconds now = 0;

  MemberSession session(const std::string& name, Role role) {
    return MemberSession({name, role, role == Role::kReceiver ? "engine" : "", waits});
  }
  // Makes the calls that are due now, and says which.
  std::string settle(MemberSession* member) {
    std::string made;
    while (const std::optional<CallControl> call = member->next_call(now)) {
      made += (made.empty() ? "" : " ") + std::string(control_request_name(call->request));
      member->answered({call->call, call_control(control, call->request)}, now);
    }
    return made;
  }
  // An attempt that binds who is a member, by a leader of its own.
  std::uint64_t token = 0;
  std::uint64_t prepare() {
    const ControlRecords before = *control.read();
    if (token == 0) {
      const std::uint64_t leader = control.enrol({"leader", Role::kCoordinator, ""})->incarnation;
      token = control.claim({"leader", leader}, before.leader)->leader.token;
    }
    const Membership all = *control.read_members();
    PrepareRequest request{token,
                           before.transition.attempt,
                           all.records.members_revision,
                           before.commit.id,
                           "next",
                           AttemptMode::kDense,
                           {},
                           {}};
    for (const Member* member : bound_members(all.members, before.commit.id)) {
      if (member->role != Role::kOwner) continue;
      request.candidates.push_back({member->endpoint.name, {member->endpoint.incarnation, 1}});
    }
    const Result<TransitionRecord> prepared = control.prepare(request);
    EXPECT_TRUE(prepared.ok()) << prepared.status().message();
    return prepared->attempt;
  }
};

TEST_F(MemberTest, EnrolsJoinsAndThenLooks) {
  MemberSession owner = session("owner-0", Role::kOwner);
  EXPECT_EQ(owner.wake_at(), kNever);
  EXPECT_FALSE(owner.next_call(now));
  owner.start(now);
  EXPECT_EQ(settle(&owner), "enrol");
  EXPECT_EQ(owner.incarnation(), 1U);
  EXPECT_EQ(owner.records()->transition.attempt, 0U);
  owner.join(std::nullopt, {1, 2});
  EXPECT_EQ(owner.wake_at(), 0U);
  EXPECT_EQ(settle(&owner), "join");
  EXPECT_EQ(owner.joined(), JoinOutcome::kJoined);
  EXPECT_EQ(control.read_member("owner-0")->value().needs, (Bytes{1, 2}));
  EXPECT_EQ(owner.wake_at(), waits.look_ms);
  EXPECT_EQ(settle(&owner), "");
  now = waits.look_ms;
  EXPECT_EQ(settle(&owner), "read");
  owner.look();
  EXPECT_EQ(settle(&owner), "read");
  EXPECT_EQ(owner.read_at(), now);
}

TEST_F(MemberTest, AsksAgainWhereTheStoreDoesNotAnswer) {
  for (const Code code : {Code::kUnavailable, Code::kUnknownOutcome}) {
    MemberSession owner = session("owner-0", Role::kOwner);
    owner.start(now);
    for (int i = 0; i < 3; ++i) {
      const CallControl call = *owner.next_call(now);
      // Nothing else while a call is under way.
      owner.look();
      EXPECT_FALSE(owner.next_call(now));
      EXPECT_EQ(owner.wake_at(), kNever);
      if (code == Code::kUnknownOutcome) {
        ASSERT_TRUE(control.enrol({"owner-0", Role::kOwner, ""}).ok());
      }
      owner.answered({call.call + 1, {}}, now);  // not its call
      EXPECT_EQ(owner.wake_at(), kNever);
      owner.answered({call.call, {Status(code, "gone"), {}}}, now);
      EXPECT_EQ(owner.wake_at(), now + waits.repeat_ms);
      EXPECT_FALSE(owner.next_call(now));
      now += waits.repeat_ms;
    }
    EXPECT_EQ(settle(&owner), "enrol");
    EXPECT_EQ(owner.incarnation(), control.read_member("owner-0")->value().endpoint.incarnation);
    EXPECT_FALSE(owner.barred());

    owner.join(std::nullopt, {});
    const CallControl join = *owner.next_call(now);
    if (code == Code::kUnknownOutcome) {
      ASSERT_TRUE(call_control(control, join.request).status.ok());
    }
    owner.answered({join.call, {Status(code, "gone"), {}}}, now);
    EXPECT_EQ(owner.joined(), std::nullopt);
    now += waits.repeat_ms;
    EXPECT_EQ(settle(&owner), "join");
    EXPECT_EQ(owner.joined(), JoinOutcome::kJoined);
  }
}

TEST_F(MemberTest, NoticesThatItIsBarred) {
  MemberSession owner = session("owner-0", Role::kOwner);
  owner.start(now);
  settle(&owner);
  owner.join(std::nullopt, {});
  settle(&owner);
  ASSERT_TRUE(control.enrol({"owner-1", Role::kOwner, ""}).ok());  // another's row
  now += waits.look_ms;
  EXPECT_EQ(settle(&owner), "read read_member");
  EXPECT_FALSE(owner.barred());
  ASSERT_TRUE(control.enrol({"owner-0", Role::kOwner, ""}).ok());
  owner.look();
  EXPECT_EQ(settle(&owner), "read read_member");
  EXPECT_TRUE(owner.barred());
  EXPECT_EQ(owner.wake_at(), kNever);
  EXPECT_TRUE(owner.failure().ok());
}

TEST_F(MemberTest, AJoinThatIsBarredSaysSo) {
  MemberSession owner = session("owner-0", Role::kOwner);
  owner.start(now);
  settle(&owner);
  ASSERT_TRUE(control.enrol({"owner-0", Role::kOwner, ""}).ok());
  owner.join(std::nullopt, {});
  EXPECT_EQ(settle(&owner), "join");
  EXPECT_TRUE(owner.barred());
}

TEST_F(MemberTest, WhatIsForTheOperatorStops) {
  ASSERT_TRUE(control.enrol({"owner-0", Role::kNode, ""}).ok());
  MemberSession owner = session("owner-0", Role::kOwner);
  owner.start(now);
  EXPECT_EQ(settle(&owner), "enrol");
  EXPECT_EQ(owner.failure().code(), Code::kMismatch);
  EXPECT_FALSE(owner.enrolled());
  EXPECT_EQ(owner.wake_at(), kNever);
}

class ReceiverMember : public MemberTest {
 public:
  MemberSession receiver = session("receiver-1", Role::kReceiver);

  // A run with an owner and another receiver, in which this one has enrolled.
  void SetUp() override {
    const std::uint64_t owner = control.enrol({"owner-0", Role::kOwner, ""})->incarnation;
    ASSERT_TRUE(control.join({{"owner-0", owner}, {}, {}}).ok());
    const std::uint64_t other = control.enrol({"receiver-0", Role::kReceiver, "e"})->incarnation;
    ASSERT_TRUE(control.join({{"receiver-0", other}, VersionId{}, {}}).ok());
    receiver.start(now);
    EXPECT_EQ(settle(&receiver), "enrol");
  }
};

TEST_F(ReceiverMember, WaitsForTheNextPrepareWhileAnAttemptIsActive) {
  const std::uint64_t first = prepare();
  receiver.join(VersionId{}, {});
  EXPECT_EQ(settle(&receiver), "join");
  EXPECT_EQ(receiver.joined(), JoinOutcome::kWaiting);
  now += waits.look_ms;
  EXPECT_EQ(settle(&receiver), "join");  // asked again, in place of a look
  ASSERT_TRUE(control.mark_obsolete(first).ok());
  const std::uint64_t second = prepare();
  receiver.look();
  EXPECT_EQ(settle(&receiver), "join");
  EXPECT_EQ(receiver.joined(), JoinOutcome::kAdmitted);
  receiver.look();
  EXPECT_EQ(settle(&receiver), "read");
  EXPECT_EQ(receiver.joined(), JoinOutcome::kAdmitted);
  // The attempt ends, and what was restored is still what is committed.
  ASSERT_TRUE(control.mark_obsolete(second).ok());
  receiver.look();
  settle(&receiver);
  EXPECT_EQ(receiver.joined(), JoinOutcome::kJoined);
}

TEST_F(ReceiverMember, AdmittedStaysSoWhenTheAttemptIsCommitted) {
  const std::uint64_t first = prepare();
  receiver.join(VersionId{}, {});
  settle(&receiver);
  ASSERT_TRUE(control.mark_obsolete(first).ok());
  const std::uint64_t second = prepare();
  receiver.look();
  settle(&receiver);
  ASSERT_TRUE(control.commit(second).ok());
  receiver.look();
  settle(&receiver);
  EXPECT_EQ(receiver.joined(), JoinOutcome::kAdmitted);
}

TEST_F(ReceiverMember, IsOvertakenByACommit) {
  const std::uint64_t first = prepare();
  receiver.join(VersionId{}, {});
  settle(&receiver);
  ASSERT_TRUE(control.commit(first).ok());
  receiver.look();
  EXPECT_EQ(settle(&receiver), "join");
  EXPECT_EQ(receiver.joined(), JoinOutcome::kOvertaken);
  EXPECT_EQ(receiver.records()->commit.id, (VersionId{1, first}));
  now += waits.look_ms;
  EXPECT_EQ(settle(&receiver), "read");  // not again with the same proof
  receiver.join(VersionId{1, first}, {});
  EXPECT_EQ(settle(&receiver), "join");
  EXPECT_EQ(receiver.joined(), JoinOutcome::kJoined);
}

TEST_F(ReceiverMember, AVoidProofIsNotWaitedFor) {
  prepare();
  receiver.join(VersionId{}, {});
  const CallControl call = *receiver.next_call(now);
  receiver.leave_waiting();
  receiver.answered({call.call, call_control(control, call.request)}, now);
  EXPECT_EQ(receiver.joined(), std::nullopt);
  EXPECT_EQ(settle(&receiver), "");
  now += waits.look_ms;
  EXPECT_EQ(settle(&receiver), "read");
  EXPECT_EQ(receiver.joined(), std::nullopt);
}

}  // namespace
}  // namespace dcr
