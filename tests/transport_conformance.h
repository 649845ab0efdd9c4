// What every transport does alike, case by case. A transport passes by running these.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "dcr/transport.h"

namespace dcr {

// What lies between owners and nodes, and the ends of it, each as if in a process of its own.
class TransportWorld {
 public:
  static constexpr std::uint32_t kOwners = 2;

  virtual ~TransportWorld() = default;
  // A new life of an owner.
  virtual std::unique_ptr<OwnerTransport> owner(std::uint32_t number) = 0;
  virtual std::unique_ptr<NodeTransport> node() = 0;
  // The same with another run.
  virtual std::unique_ptr<OwnerTransport> owner_of_other_run() = 0;
  // How many objects lie in between.
  virtual std::size_t objects() = 0;
};

using MakeTransportWorld = std::unique_ptr<TransportWorld> (*)();

class TransportConformanceTest : public ::testing::TestWithParam<MakeTransportWorld> {
 protected:
  static Bytes bytes_of(std::uint8_t seed) { return Bytes(100 + seed, seed); }
  static Status send(OwnerTransport& owner, std::uint64_t attempt, std::uint64_t number,
                     std::uint8_t seed) {
    const Bytes bytes = bytes_of(seed);
    return owner.send(attempt, number, bytes, blake2b(bytes));
  }
  static PayloadEntry entry(std::uint8_t seed) {
    return {bytes_of(seed).size(), blake2b(bytes_of(seed))};
  }
  std::optional<Bytes> received(std::uint64_t attempt, std::uint32_t owner, std::uint64_t number) {
    auto bytes = node_->receive(attempt, owner, number, 1000);
    EXPECT_TRUE(bytes.ok()) << bytes.status().message();
    return bytes.ok() ? *bytes : std::nullopt;
  }
  static void expect_conflict(const Status& status, const std::string& message) {
    EXPECT_EQ(status.code(), Code::kConflict) << status.message();
    EXPECT_EQ(status.message(), message);
  }

  std::unique_ptr<TransportWorld> world_ = GetParam()();
  std::unique_ptr<OwnerTransport> owner_ = world_->owner(0);
  std::unique_ptr<OwnerTransport> other_ = world_->owner(1);
  std::unique_ptr<NodeTransport> node_ = world_->node();
};

TEST_P(TransportConformanceTest, PayloadsAreThereUnderTheirKeyAndNoOther) {
  ASSERT_TRUE(owner_->begin(3).ok());
  EXPECT_EQ(received(3, 0, 0), std::nullopt);
  ASSERT_TRUE(send(*owner_, 3, 0, 1).ok());
  ASSERT_TRUE(send(*owner_, 3, 1, 2).ok());
  EXPECT_EQ(received(3, 0, 0), bytes_of(1));
  EXPECT_EQ(received(3, 0, 1), bytes_of(2));
  EXPECT_EQ(received(3, 0, 0), bytes_of(1));  // as often as wanted
  EXPECT_EQ(received(3, 0, 2), std::nullopt);
  EXPECT_EQ(received(3, 1, 0), std::nullopt);
  EXPECT_EQ(received(2, 0, 0), std::nullopt);
  EXPECT_EQ(received(4, 0, 0), std::nullopt);
}

TEST_P(TransportConformanceTest, TheEndCountsEverything) {
  ASSERT_TRUE(owner_->begin(1).ok() && other_->begin(1).ok());
  ASSERT_TRUE(send(*owner_, 1, 0, 1).ok() && send(*owner_, 1, 1, 2).ok());
  EXPECT_EQ(*node_->receive_end(1, 0), std::nullopt);
  ASSERT_TRUE(owner_->end(1).ok());
  ASSERT_TRUE(owner_->end(1).ok());
  EXPECT_EQ(**node_->receive_end(1, 0), (AttemptEnd{{entry(1), entry(2)}}));
  EXPECT_EQ(*node_->receive_end(1, 1), std::nullopt);
  ASSERT_TRUE(other_->end(1).ok());  // it had nothing to send
  EXPECT_EQ(**node_->receive_end(1, 1), AttemptEnd{});
  expect_conflict(send(*owner_, 1, 2, 3), "owner 0 has ended attempt 1 and cannot send payload 2");
  EXPECT_TRUE(send(*owner_, 1, 1, 2).ok());
}

TEST_P(TransportConformanceTest, ANumberIsSentOnce) {
  ASSERT_TRUE(owner_->begin(1).ok());
  ASSERT_TRUE(send(*owner_, 1, 0, 1).ok());
  EXPECT_TRUE(send(*owner_, 1, 0, 1).ok());
  expect_conflict(send(*owner_, 1, 0, 2), "payload 0 of owner 0 was sent with digest " +
                                              digest_text(entry(1).digest) +
                                              " and 101 bytes; now it has digest " +
                                              digest_text(entry(2).digest) + " and 102 bytes");
  EXPECT_EQ(received(1, 0, 0), bytes_of(1));
  const Status skipped = send(*owner_, 1, 2, 3);
  EXPECT_EQ(skipped.code(), Code::kInvalidArgument);
  EXPECT_EQ(skipped.message(),
            "payload 2 of owner 0 is not the next one, 1, or more than the limit of 65536");
}

TEST_P(TransportConformanceTest, OnlyTheCurrentAttemptSends) {
  expect_conflict(send(*owner_, 1, 0, 1),
                  "owner 0 cannot send in attempt 1: no attempt is current");
  ASSERT_TRUE(owner_->begin(2).ok());
  ASSERT_TRUE(owner_->begin(2).ok());
  expect_conflict(owner_->begin(1),
                  "owner 0 cannot begin attempt 1: attempt 2 was begun or stopped");
  expect_conflict(owner_->begin(0),
                  "owner 0 cannot begin attempt 0: attempt 2 was begun or stopped");
  expect_conflict(send(*owner_, 1, 0, 1),
                  "owner 0 cannot send in attempt 1: attempt 2 is the current one");
  expect_conflict(owner_->end(3), "owner 0 cannot send in attempt 3: attempt 2 is the current one");
  ASSERT_TRUE(owner_->begin(3).ok());
  expect_conflict(send(*owner_, 2, 0, 1),
                  "owner 0 cannot send in attempt 2: attempt 3 is the current one");
  EXPECT_TRUE(send(*owner_, 3, 0, 1).ok());
  EXPECT_EQ(received(2, 0, 0), std::nullopt);
}

TEST_P(TransportConformanceTest, AStoppedAttemptSendsNothing) {
  ASSERT_TRUE(owner_->begin(1).ok());
  ASSERT_TRUE(send(*owner_, 1, 0, 1).ok());
  ASSERT_TRUE(owner_->stop_and_wait(1).ok());
  ASSERT_TRUE(owner_->stop_and_wait(1).ok());
  expect_conflict(send(*owner_, 1, 1, 2),
                  "owner 0 cannot send in attempt 1: no attempt is current");
  EXPECT_EQ(owner_->end(1).code(), Code::kConflict);
  // A stop may come before the attempt that it stops.
  ASSERT_TRUE(owner_->stop_and_wait(5).ok());
  expect_conflict(owner_->begin(5),
                  "owner 0 cannot begin attempt 5: attempt 5 was begun or stopped");
  ASSERT_TRUE(owner_->begin(6).ok());
  ASSERT_TRUE(owner_->stop_and_wait(4).ok());  // an earlier one: nothing happens
  EXPECT_TRUE(send(*owner_, 6, 0, 1).ok());
}

TEST_P(TransportConformanceTest, ANewAttemptBeginsAtZero) {
  ASSERT_TRUE(owner_->begin(1).ok());
  ASSERT_TRUE(send(*owner_, 1, 0, 1).ok() && owner_->end(1).ok());
  ASSERT_TRUE(owner_->begin(2).ok());
  ASSERT_TRUE(send(*owner_, 2, 0, 4).ok() && owner_->end(2).ok());
  EXPECT_EQ(**node_->receive_end(2, 0), AttemptEnd{{entry(4)}});
  EXPECT_EQ(**node_->receive_end(1, 0), AttemptEnd{{entry(1)}});
}

TEST_P(TransportConformanceTest, CleanupLeavesNothingOfFinishedAttempts) {
  ASSERT_TRUE(owner_->begin(1).ok() && other_->begin(1).ok());
  ASSERT_TRUE(send(*owner_, 1, 0, 1).ok() && send(*other_, 1, 0, 2).ok());
  ASSERT_TRUE(owner_->begin(2).ok() && other_->begin(2).ok());
  ASSERT_TRUE(send(*owner_, 2, 0, 1).ok() && owner_->end(2).ok() && other_->end(2).ok());
  ASSERT_TRUE(owner_->begin(3).ok() && send(*owner_, 3, 0, 3).ok());
  EXPECT_EQ(world_->objects(), 6U);
  ASSERT_TRUE(owner_->cleanup(2).ok());
  EXPECT_EQ(world_->objects(), 1U);
  EXPECT_EQ(received(3, 0, 0), bytes_of(3));
  EXPECT_TRUE(send(*owner_, 3, 1, 4).ok());
  ASSERT_TRUE(owner_->cleanup(3).ok());
  ASSERT_TRUE(owner_->cleanup(3).ok());
  ASSERT_TRUE(other_->cleanup(3).ok());
  EXPECT_EQ(world_->objects(), 0U);
  EXPECT_EQ(send(*owner_, 3, 2, 5).code(), Code::kConflict);
  EXPECT_EQ(owner_->begin(3).code(), Code::kConflict);
}

TEST_P(TransportConformanceTest, CleanupReachesWhatADeadOwnerLeft) {
  ASSERT_TRUE(owner_->begin(1).ok() && send(*owner_, 1, 0, 1).ok());
  owner_ = world_->owner(0);
  ASSERT_TRUE(owner_->begin(2).ok() && send(*owner_, 2, 0, 2).ok());
  EXPECT_EQ(received(1, 0, 0), bytes_of(1));
  ASSERT_TRUE(other_->cleanup(2).ok());
  EXPECT_EQ(world_->objects(), 0U);
}

// One that was paused while others finished and cleaned up.
TEST_P(TransportConformanceTest, AnOwnerThatSleptThroughTheCleanupLeavesNothing) {
  ASSERT_TRUE(owner_->begin(1).ok() && send(*owner_, 1, 0, 1).ok());
  ASSERT_TRUE(other_->cleanup(1).ok());
  EXPECT_EQ(send(*owner_, 1, 1, 2).code(), Code::kConflict);
  EXPECT_EQ(owner_->end(1).code(), Code::kConflict);
  EXPECT_EQ(world_->objects(), 0U);
}

TEST_P(TransportConformanceTest, RunsDoNotMeet) {
  const auto stranger = world_->owner_of_other_run();
  ASSERT_TRUE(owner_->begin(1).ok() && stranger->begin(1).ok());
  ASSERT_TRUE(send(*owner_, 1, 0, 1).ok() && send(*stranger, 1, 0, 2).ok());
  EXPECT_EQ(received(1, 0, 0), bytes_of(1));
  ASSERT_TRUE(stranger->cleanup(1).ok());
  EXPECT_EQ(received(1, 0, 0), bytes_of(1));
  ASSERT_TRUE(stranger->begin(2).ok() && send(*stranger, 2, 0, 2).ok());
  ASSERT_TRUE(owner_->cleanup(5).ok());
  EXPECT_EQ(world_->objects(), 1U);
}

TEST_P(TransportConformanceTest, ANodeTakesNoMoreThanItWants) {
  ASSERT_TRUE(owner_->begin(1).ok() && send(*owner_, 1, 0, 1).ok());
  EXPECT_TRUE(node_->receive(1, 0, 0, 101).ok());
  const Status status = node_->receive(1, 0, 0, 100).status();
  EXPECT_EQ(status.code(), Code::kTooLarge);
  EXPECT_NE(status.message().find("101 bytes, more than the limit of 100"), std::string::npos)
      << status.message();
  EXPECT_EQ(node_->receive(1, 2, 0, 100).status().message(), "there is no owner 2 among 2");
  EXPECT_EQ(node_->receive_end(1, 2).status().code(), Code::kInvalidArgument);
}

TEST_P(TransportConformanceTest, AnEmptyPayloadIsAPayload) {
  ASSERT_TRUE(owner_->begin(1).ok() && owner_->send(1, 0, {}, Digest{}).ok());
  ASSERT_TRUE(owner_->end(1).ok());
  EXPECT_EQ(received(1, 0, 0), Bytes());
  EXPECT_EQ((**node_->receive_end(1, 0)).payloads.size(), 1U);
}

}  // namespace dcr
