// What every control plane does alike, continued: who joins, waits, is admitted and barred
// (docs/PROTOCOL.md rule 6).
#pragma once

#include "tests/control_conformance.h"

namespace dcr {

TEST_P(ControlConformanceTest, JoinsAtOnceWhileNoAttemptIsActive) {
  const Endpoint receiver = enrol("receiver.0", Role::kReceiver);
  EXPECT_EQ(join(receiver, VersionId{}), JoinOutcome::kJoined);
  const Member row = **control().read_member("receiver.0");
  EXPECT_EQ(row.state, MemberState::kMember);
  EXPECT_EQ(row.engine, "engine");
  EXPECT_EQ(row.restored, VersionId{});
  EXPECT_EQ(row.needs, (std::vector<std::uint8_t>{7, 8}));
  const std::uint64_t revision = read().members_revision;
  EXPECT_EQ(join(receiver, VersionId{}), JoinOutcome::kJoined);
  EXPECT_EQ(read().members_revision, revision);
}

TEST_P(ControlConformanceTest, JoinWantsAProofOfReceiversOnly) {
  const Endpoint owner = enrol("o", Role::kOwner);
  const Endpoint receiver = enrol("r", Role::kReceiver);
  expect_refused(control().join({owner, VersionId{}, {}}), Code::kInvalidArgument,
                 "o (incarnation 1) is no receiver and restores nothing");
  expect_refused(control().join({receiver, VersionId{2, 1}, {}}), Code::kInvalidArgument,
                 "r (incarnation 2) says that it has restored version 2 of attempt 1, which cannot "
                 "be");
  expect_refused(control().join({{"x", 1}, {}, {}}), Code::kConflict,
                 "x (incarnation 1) is barred, or was never enrolled: enrol again and restore "
                 "before joining");
  std::vector<std::uint8_t> needs(kNeedsBytesMax);
  EXPECT_TRUE(control().join({receiver, VersionId{}, needs}).ok());
  EXPECT_EQ((**control().read_member("r")).needs.size(), kNeedsBytesMax);
  needs.push_back(0);
  expect_refused(control().join({receiver, VersionId{}, needs}), Code::kInvalidArgument,
                 "r: needs of 1048577 bytes are more than the limit of 1048576");
}

TEST_P(ControlConformanceTest, AGateIsEnrolledButNeverJoins) {
  set_up_run();
  const Endpoint gate = enrol("engine", Role::kGate);
  EXPECT_EQ((**control().read_member("engine")).role, Role::kGate);
  expect_refused(control().join({gate, {}, {}}), Code::kInvalidArgument,
                 "engine (incarnation 7) is a gate: the receivers of its engine join, it does not");
  expect_refused(control().enrol({"engine", Role::kReceiver, "engine"}), Code::kMismatch,
                 "engine is enrolled as gate, not as receiver: take another name");
  expect_refused(control().enrol({"receiver.0", Role::kGate, ""}), Code::kMismatch,
                 "receiver.0 is enrolled as receiver, not as gate: take another name");
  expect_refused(control().enrol({"g", Role::kGate, "engine"}), Code::kInvalidArgument,
                 "g: a gate has no engine, only receivers have one");
  const TransitionRecord made = prepare();
  EXPECT_EQ(made.owners.size() + made.nodes.size() + made.receivers.size(), 5U);
  // It restarts without harm to the attempt, and its successor is the one that is there.
  const Endpoint successor = enrol("engine", Role::kGate);
  store_->reopen();
  EXPECT_EQ((**control().read_member("engine")).endpoint, successor);
  EXPECT_TRUE(control().commit(1).ok());
  EXPECT_TRUE(control().bar(token_, {successor}).ok());
  EXPECT_EQ(*control().read_member("engine"), std::nullopt);
}

TEST_P(ControlConformanceTest, AReceiverThatJoinsInMidAttemptIsAdmittedByTheNext) {
  set_up_run();
  EXPECT_EQ(prepare().receivers.size(), 2U);
  const Endpoint late = enrol("receiver.2", Role::kReceiver);
  EXPECT_EQ(join(late, VersionId{}), JoinOutcome::kWaiting);
  EXPECT_EQ(join(late, VersionId{}), JoinOutcome::kWaiting);
  ASSERT_TRUE(control().mark_obsolete(1).ok());
  const TransitionRecord second = prepare();
  ASSERT_EQ(second.receivers.size(), 3U);
  EXPECT_EQ(second.receivers[2], late);
  // Its gate stays closed until that attempt's commit, although its version is K's.
  EXPECT_EQ(join(late, VersionId{}), JoinOutcome::kAdmitted);
  ASSERT_TRUE(control().commit(2).ok());
  EXPECT_EQ(join(late, VersionId{}), JoinOutcome::kAdmitted);
}

TEST_P(ControlConformanceTest, ARestoreThatACommitOvertookIsCountedOnce) {
  set_up_run();
  prepare();
  const Endpoint late = enrol("receiver.2", Role::kReceiver);
  EXPECT_EQ(join(late, VersionId{}), JoinOutcome::kWaiting);
  ASSERT_TRUE(control().commit(1).ok());
  EXPECT_EQ(prepare(AttemptMode::kMixed, 2).receivers.size(), 2U);
  EXPECT_EQ(join(late, VersionId{}), JoinOutcome::kOvertaken);
  EXPECT_EQ(join(late, VersionId{}), JoinOutcome::kOvertaken);
  EXPECT_EQ((**control().read_member("receiver.2")).overtaken, 1U);
  const Endpoint again = enrol("receiver.2", Role::kReceiver);
  EXPECT_EQ((**control().read_member("receiver.2")).overtaken, 1U);
  EXPECT_EQ(join(again, VersionId{1, 1}), JoinOutcome::kWaiting);
  ASSERT_TRUE(control().mark_obsolete(2).ok());
  EXPECT_EQ(join(again, VersionId{1, 1}), JoinOutcome::kJoined);
  EXPECT_EQ((**control().read_member("receiver.2")).overtaken, 0U);
}

TEST_P(ControlConformanceTest, AReceiverWithoutAVersionWaitsWhileAnyOtherIsBound) {
  set_up_run();
  const Endpoint empty = enrol("receiver.2", Role::kReceiver);
  EXPECT_EQ(join(empty, std::nullopt), JoinOutcome::kWaiting);
  EXPECT_EQ(prepare().receivers.size(), 2U);
  EXPECT_EQ(join(empty, std::nullopt), JoinOutcome::kWaiting);
  ASSERT_TRUE(control().commit(1).ok());
  // It may have found the committed version meanwhile.
  EXPECT_EQ(join(empty, VersionId{1, 1}), JoinOutcome::kJoined);
  EXPECT_EQ((**control().read_member("receiver.2")).restored, (VersionId{1, 1}));
}

TEST_P(ControlConformanceTest, ReceiversWithoutAVersionAreBoundByDenseAttemptsOnly) {
  set_up_run();
  const Endpoint other = (**control().read_member("receiver.1")).endpoint;
  ASSERT_TRUE(control().bar(token_, {receiver_, other}).ok());
  const Endpoint empty = enrol("receiver.0", Role::kReceiver);
  EXPECT_EQ(join(empty, std::nullopt), JoinOutcome::kWaiting);
  for (const AttemptMode mode : {AttemptMode::kMixed, AttemptMode::kOverwrite}) {
    expect_refused(control().prepare(request(mode, 1)), Code::kConflict,
                   "receiver.0 (incarnation 7) has restored no version: the next attempt is dense, "
                   "or binds receivers that have");
  }
  EXPECT_EQ(prepare(AttemptMode::kDense).receivers, std::vector<Endpoint>{empty});
  EXPECT_EQ(join(empty, std::nullopt), JoinOutcome::kAdmitted);
  // A member it is from now on, but as long as nothing is committed it holds nothing, whoever else
  // there is.
  ASSERT_TRUE(control().mark_obsolete(1).ok());
  EXPECT_EQ(join(empty, std::nullopt), JoinOutcome::kAdmitted);
  enrol_and_join("receiver.1", Role::kReceiver);
  EXPECT_FALSE(control().prepare(request(AttemptMode::kOverwrite, 1)).ok());
  EXPECT_EQ(prepare(AttemptMode::kDense).receivers.size(), 2U);
  EXPECT_FALSE(has_version(**control().read_member("receiver.0"), read().commit.id));
  EXPECT_TRUE(has_version(**control().read_member("receiver.1"), read().commit.id));
  ASSERT_TRUE(control().commit(2).ok());
  EXPECT_TRUE(has_version(**control().read_member("receiver.0"), read().commit.id));
  EXPECT_EQ(prepare(AttemptMode::kMixed, 2).receivers.size(), 2U);
}

TEST_P(ControlConformanceTest, ACommitSaysNothingOfALaterLifeWithoutAVersion) {
  set_up_run();
  prepare();
  const Endpoint successor = enrol("receiver.0", Role::kReceiver);
  EXPECT_EQ(join(successor, std::nullopt), JoinOutcome::kWaiting);
  ASSERT_TRUE(control().commit(1).ok());
  EXPECT_EQ((**control().read_member("receiver.0")).restored, std::nullopt);
}

TEST_P(ControlConformanceTest, BarringEndsIncarnationsBetweenAttemptsOnly) {
  set_up_run();
  expect_refused(control().bar(0, {receiver_}), Code::kInvalidArgument,
                 "leader token 0 is none: claim leadership first");
  expect_refused(control().bar(9, {receiver_}), Code::kLostLeadership,
                 "leader token 9 is not the current one: coordinator.0 (incarnation 6) leads with "
                 "token 1; stop, and leave gates and records to it");
  expect_refused(control().bar(token_, {receiver_, {"x", 7}}), Code::kInvalidArgument,
                 "x (incarnation 7): no such incarnation was given");
  prepare();
  expect_refused(control().bar(token_, {receiver_}), Code::kConflict,
                 "incarnations cannot be barred while attempt 1 is active: mark it obsolete first");
  ASSERT_TRUE(control().mark_obsolete(1).ok());
  const ControlRecords barred = *control().bar(token_, {receiver_, node_});
  EXPECT_EQ(*control().read_member("receiver.0"), std::nullopt);
  EXPECT_EQ(control().bar(token_, {receiver_, node_})->members_revision, barred.members_revision);
  EXPECT_EQ(control().join({receiver_, VersionId{}, {}}).status().code(), Code::kConflict);
  const TransitionRecord next = prepare();
  EXPECT_EQ(next.receivers.size(), 1U);
  EXPECT_TRUE(next.nodes.empty());
}

TEST_P(ControlConformanceTest, BarringPassesOverALaterIncarnation) {
  set_up_run();
  const Endpoint successor = enrol_and_join("receiver.0", Role::kReceiver);
  ASSERT_TRUE(control().bar(token_, {receiver_}).ok());
  EXPECT_EQ((**control().read_member("receiver.0")).endpoint, successor);
}

}  // namespace dcr
