// What a receiver holds is compared with a sample of the owners' (docs/PROTOCOL.md "Receiver").
#include "protocol/test_receiver.h"

namespace dcr {
namespace {

// A member that holds version 1, which was restored.
class SampleTest : public ReceiverTest {
 public:
  void SetUp() override {
    start();
    stream = {true, 1};
    done(Kind::kBeginStream);
    gate_closes(1);
    end_without_payloads();
    EXPECT_EQ(done(Kind::kFinishStream), "engine: gate_proof 2 version 0\n");
    from_gate(GateState{true, {}, "", 2});
  }
  // Lets so much time pass, and returns who is asked.
  std::string asked(Milliseconds time) {
    asked_for_samples.clear();
    pass(time);
    std::string names;
    for (const std::string& name : asked_for_samples) names += name;
    return names;
  }
  Endpoint other(const std::string& name) const {
    return owners[0].name == name ? owners[1] : owners[0];
  }
  // In an attempt whose first payload may be applied; what follows from that.
  std::string apply() {
    become_prepared();
    hand_over(0, 0);
    ingested(0, 0);
    return close_gate_and_open(stream.number, 3);
  }
  std::string compared(std::uint64_t different, Status status = {}) {
    ReceiverWorkDone work;
    work.kind = Kind::kCompareSample;
    work.status = std::move(status);
    work.counts.different = different;
    return step(work);
  }
};

TEST_F(SampleTest, OneOwnerAfterTheOtherIsAskedUntilOneAnswers) {
  EXPECT_EQ(asked(options.waits.look_ms - 1), "");
  const std::string first = asked(1);
  EXPECT_TRUE(first == "owner-0" || first == "owner-1");
  EXPECT_EQ(asked(options.waits.look_ms), other(first).name);
  EXPECT_EQ(asked(options.waits.look_ms), first);
  hear({"owner-9", 77}, Sample{{}, {1}});
  hear(owners[0], Sample{{1, 1}, {1}});
  hear(owners[0], Sample{{}, {}});
  EXPECT_EQ(asked(options.waits.look_ms), other(first).name);
  hear(owners[0], Sample{{}, {1}});
  EXPECT_EQ(asked(10 * options.waits.look_ms), "");
}

TEST_F(SampleTest, ItIsComparedOnceBeforeTheNextAttemptWrites) {
  asked(options.waits.look_ms);
  EXPECT_EQ(hear(owners[1], Sample{{}, {1}}), "");
  EXPECT_EQ(apply(), "engine: gate_close 3\nleader: gate_closed 1\ncompare\n");
  EXPECT_EQ(machine->status().held, VersionId{});
  EXPECT_EQ(compared(0), "apply\n");
  EXPECT_EQ(machine->status().held, std::nullopt);
  EXPECT_EQ(hand_over(1, 0), "");
  EXPECT_EQ(applied_payloads(1), "ingest 1/0\n");
  EXPECT_TRUE(ingested(1, 0).starts_with("apply\n"));
}

TEST_F(SampleTest, OneThatCannotBeComparedStopsNothing) {
  asked(options.waits.look_ms);
  hear(owners[1], Sample{{}, {1}});
  apply();
  EXPECT_EQ(compared(0, {Code::kCorrupt, "cut short"}), "apply\n");
}

// What it holds is nobody's: it gets the version whole, audited, as another incarnation.
TEST_F(SampleTest, OtherWordsFailTheAttemptAndAreRestored) {
  asked(options.waits.look_ms);
  hear(owners[1], Sample{{}, {1}});
  apply();
  const std::uint64_t before = machine->incarnation();
  const std::string lines = compared(1, {Code::kMismatch, "tensor \"a\" differs", "a"});
  EXPECT_TRUE(lines.starts_with("stop\nleader: attempt_failed 1: tensor \"a\" differs\n")) << lines;
  done(Kind::kStopApplying);
  EXPECT_GT(machine->incarnation(), before);
  EXPECT_EQ(why, "it does not hold version 0 of attempt 0: tensor \"a\" differs");
  EXPECT_EQ(machine->status().state, "restoring");
  stream = {true, 1};
  done(Kind::kBeginStream);
  gate_closes(1);
  end_without_payloads();
  EXPECT_EQ(done(Kind::kFinishStream), "begin restore 1 overwrite audit\n");
}

// The verdict is about what lies there, whatever became of the attempt.
TEST_F(SampleTest, AStopDoesNotHideADifference) {
  asked(options.waits.look_ms);
  hear(owners[1], Sample{{}, {1}});
  apply();
  const std::uint64_t before = machine->incarnation();
  EXPECT_EQ(from_leader(StopAndWait{1}), "stop\n");
  EXPECT_EQ(done(Kind::kStopApplying), "");
  const std::string lines = compared(1, {Code::kMismatch, "tensor \"a\" differs", "a"});
  EXPECT_NE(lines.find("leader: stopped 1\n"), std::string::npos) << lines;
  EXPECT_EQ(lines.find("attempt_failed"), std::string::npos) << lines;
  EXPECT_GT(machine->incarnation(), before);
  EXPECT_EQ(why, "it does not hold version 0 of attempt 0: tensor \"a\" differs");
}

TEST_F(SampleTest, WhatAStopKeepsFromBeingComparedIsComparedInTheNextAttempt) {
  asked(options.waits.look_ms);
  hear(owners[1], Sample{{}, {1}});
  become_prepared();
  hand_over(0, 0);
  close_gate_and_open(1, 3);  // the comparison waits for the payload to be ingested
  from_leader(StopAndWait{1});
  ingested(0, 0);
  EXPECT_EQ(done(Kind::kStopApplying), "leader: stopped 1\n");
  ASSERT_TRUE(control.mark_obsolete(1).ok());
  become_prepared(AttemptMode::kOverwrite);
  hand_over(0, 0);
  ingested(0, 0);
  const std::string lines = close_gate_and_open(2, 4);
  EXPECT_TRUE(lines.ends_with("compare\n")) << lines;
}

TEST_F(SampleTest, AnAttemptWithoutPayloadsComparesToo) {
  asked(options.waits.look_ms);
  hear(owners[1], Sample{{}, {1}});
  become_prepared();
  close_gate_and_open(1, 3);
  end_without_payloads();
  EXPECT_EQ(from_leader(Flush{1}), "compare\n");
  EXPECT_EQ(compared(0), "finish\n");
}

TEST_F(SampleTest, WhatAnAttemptBringsWholeIsNotCompared) {
  asked(options.waits.look_ms);
  hear(owners[1], Sample{{}, {1}});
  become_prepared(AttemptMode::kDense);
  close_gate_and_open(1, 3);
  end_without_payloads();
  EXPECT_EQ(from_leader(Flush{1}), "finish\n");
}

TEST_F(SampleTest, AnAsynchronousAttemptComparesWhenItIsOpened) {
  asked(options.waits.look_ms);
  become_prepared(AttemptMode::kMixed, true);
  EXPECT_EQ(hear(owners[1], Sample{{}, {1}}), "");  // it may come so late
  const std::string lines = close_gate_and_open(1, 3);
  EXPECT_EQ(lines.find("compare"), std::string::npos) << lines;
  hand_over(0, 0);
  EXPECT_TRUE(ingested(0, 0).starts_with("compare\n"));
}

TEST_F(SampleTest, WhatComesAfterWritingBeganIsLate) {
  asked(options.waits.look_ms);
  EXPECT_TRUE(apply().ends_with("apply\n"));
  EXPECT_EQ(hear(owners[1], Sample{{}, {1}}), "");
  hand_over(1, 0);
  EXPECT_EQ(applied_payloads(1), "ingest 1/0\n");
  EXPECT_TRUE(ingested(1, 0).starts_with("apply\n"));
}

TEST_F(SampleTest, NobodyHasToAskForOneThatIsNotWanted) {
  hear(owners[0], Sample{{}, {1}});  // before it was asked for, it may have been so before
  EXPECT_TRUE(apply().ends_with("compare\n"));
}

// A base that was proven by what was loaded, not by what lies there.
TEST_F(ReceiverTest, ABaseThatIsNotThereAnyMoreIsRestored) {
  become_member();
  pass(options.waits.look_ms);
  hear(owners[0], Sample{{}, {1}});
  become_prepared();
  hand_over(0, 0);
  ingested(0, 0);
  EXPECT_TRUE(close_gate_and_open(1, 3).ends_with("compare\n"));
  ReceiverWorkDone work;
  work.kind = Kind::kCompareSample;
  work.status = {Code::kMismatch, "tensor \"a\" differs", "a"};
  work.counts.different = 1;
  step(work);
  const std::string lines = done(Kind::kStopApplying);
  EXPECT_NE(lines.find("begin restore 1 overwrite"), std::string::npos) << lines;
}

TEST_F(SampleTest, NobodyIsAskedWhileAnAttemptIsOn) {
  become_prepared();
  EXPECT_EQ(asked(10 * options.waits.look_ms), "");
}

}  // namespace
}  // namespace dcr
