#include "protocol/gate_link.h"

#include <gtest/gtest.h>

namespace dcr {
namespace {

constexpr Endpoint gate(std::uint64_t incarnation) { return {"engine", incarnation}; }

class GateLinkTest : public ::testing::Test {
 public:
  // What is sent at this moment: "close 1", "prove 2 to 5", or nothing.
  std::string sent(Milliseconds now) {
    const std::optional<SendMessage> message = link.due(now);
    if (!message) return "";
    EXPECT_EQ(message->to, "engine");
    if (const auto* close = std::get_if<GateClose>(&message->message)) {
      EXPECT_EQ(message->incarnation, 0U);
      EXPECT_EQ(close->engine_instance, 7U);
      return "close " + std::to_string(close->sequence);
    }
    const auto& proof = std::get<GateProof>(message->message);
    EXPECT_EQ(proof.resident, (VersionId{1, 2}));
    EXPECT_EQ(proof.engine_instance, 7U);
    return "prove " + std::to_string(proof.sequence) + " to " +
           std::to_string(message->incarnation);
  }

  static GateState state(bool open, VersionId serving, const char* reason, std::uint64_t sequence) {
    return {open, serving, reason, sequence, 7};
  }

  GateLink link{"engine", 7, 200};
};

TEST_F(GateLinkTest, ClosesAtTheStartAndRepeatsUntilItIsAnswered) {
  EXPECT_EQ(link.wake_at(), kNever);
  EXPECT_EQ(sent(0), "");
  link.start(10);
  EXPECT_EQ(sent(10), "close 1");
  EXPECT_EQ(sent(209), "");
  EXPECT_EQ(sent(210), "close 1");
  EXPECT_FALSE(link.closed());
  link.closed_by({"other", 5}, {1});
  link.closed_by(gate(5), {2});
  EXPECT_FALSE(link.closed());
  link.closed_by(gate(5), {1});
  EXPECT_TRUE(link.closed());
  EXPECT_EQ(link.wake_at(), kNever);
  link.close(300);  // it is
  EXPECT_EQ(sent(300), "");
}

TEST_F(GateLinkTest, ProvesToTheIncarnationThatItKnows) {
  link.start(0);
  link.closed_by(gate(5), {1});
  link.prove({1, 2}, 0);
  EXPECT_FALSE(link.closed());
  EXPECT_EQ(sent(0), "prove 2 to 5");
  link.state_of(gate(5), state(false, {}, "reads", 1), 10);
  EXPECT_EQ(link.reason(), "reads");
  EXPECT_EQ(sent(200), "prove 2 to 5");
  link.state_of(gate(5), state(true, {1, 2}, "", 2), 210);
  EXPECT_TRUE(link.open());
  EXPECT_EQ(link.wake_at(), kNever);
  // A late answer to the close says nothing any more.
  link.closed_by(gate(5), {1});
  EXPECT_FALSE(link.closed());
}

TEST_F(GateLinkTest, AGateThatStartedAnewHearsTheProofUnderAnotherSequence) {
  link.start(0);
  link.closed_by(gate(5), {1});
  link.prove({1, 2}, 0);
  EXPECT_EQ(sent(0), "prove 2 to 5");
  link.state_of(gate(5), state(true, {1, 2}, "", 2), 10);
  link.state_of(gate(8), state(false, {}, "new", 0), 20);
  EXPECT_EQ(sent(20), "prove 3 to 8");
  link.state_of(gate(5), state(true, {1, 2}, "", 9), 30);  // one that was replaced
  EXPECT_EQ(sent(220), "prove 3 to 8");
  link.state_of(gate(8), state(false, {}, "reads", 3), 30);
  EXPECT_EQ(link.wake_at(), kNever);
}

// Another engine of its name was started, and this one goes on.
TEST_F(GateLinkTest, AGateOfAnotherInstanceOfTheEngineIsNone) {
  link.start(0);
  link.closed_by(gate(5), {1});
  link.prove({1, 2}, 0);
  EXPECT_EQ(sent(0), "prove 2 to 5");
  link.state_of(gate(8), {true, {1, 2}, "", 2, 9}, 10);
  EXPECT_FALSE(link.open());
  EXPECT_EQ(sent(200), "prove 2 to 5");
  link.state_of(gate(5), state(true, {1, 2}, "", 2), 210);  // which still is its gate
  EXPECT_TRUE(link.open());
  EXPECT_EQ(link.wake_at(), kNever);
}

TEST_F(GateLinkTest, ANewIncarnationOfTheReceiverBeginsAgain) {
  link.start(0);
  link.closed_by(gate(5), {1});
  link.prove({1, 2}, 0);
  link.start(50);
  EXPECT_FALSE(link.closed());
  EXPECT_EQ(sent(50), "close 1");
  link.closed_by(gate(4), {1});  // of before
  EXPECT_FALSE(link.closed());
  link.closed_by(gate(6), {1});
  EXPECT_TRUE(link.closed());
}

}  // namespace
}  // namespace dcr
