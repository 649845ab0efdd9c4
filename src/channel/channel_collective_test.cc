#include "channel/channel_collective.h"

#include <gtest/gtest.h>

#include "channel/test_collective.h"

namespace dcr {
namespace {

// Two ranks, or rank 0 and a peer that the test plays.
class ChannelCollectiveTest : public testing::Test {
 protected:
  static constexpr Meeting kFirst = {0, false};
  static constexpr Meeting kPrepare = {7, false};
  static constexpr Meeting kCommit = {7, true};

  static std::uint64_t ordinal(const Meeting& meeting) {
    return 2 * meeting.attempt + (meeting.commit ? 1 : 0);
  }
  // All reduce a flag, the last rank's being 1.
  void expect_reduced() {
    ranks_.on_all([this](std::uint32_t rank) {
      std::uint8_t flag = rank + 1 == ranks_.count() ? 1 : 0;
      const Status status = ranks_.reduce(rank, &flag);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(flag, 1);
    });
  }
  static void expect_status(const Status& status, Code code, const std::string& message) {
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_EQ(status.message(), message);
  }

  // The peer that the test plays: rank 1.
  void say(const CollectiveMessage& message, std::uint64_t life = 200, std::uint64_t to_life = 0) {
    const Envelope envelope{{7}, {"owner-1", life}, {"owner-0", to_life}};
    EXPECT_TRUE(peer_->send(ranks_.address(0), envelope, encode_collective(message)).ok());
  }
  // What rank 0 says to it next, of this kind.
  template <typename Kind>
  Kind hear() {
    for (int i = 0; i < 600; ++i) {
      const std::optional<ReceivedMessage> received = peer_->receive(100);
      if (!received) continue;
      const Result<CollectiveMessage> message = decode_collective(received->body, 0);
      EXPECT_TRUE(message.ok());
      if (const auto* const kind = std::get_if<Kind>(&message->what)) return *kind;
    }
    ADD_FAILURE() << "nothing came";
    return {};
  }
  void play_peer() {
    peer_ = ranks_.take_channel(1);
    ranks_.start(0, 100);
  }

  CollectiveRanks ranks_{2};
  std::unique_ptr<Channel> peer_;
};

TEST_F(ChannelCollectiveTest, MeetingsFollowEachOther) {
  ranks_.start_all();
  for (const Meeting& meeting : {kFirst, kPrepare, kCommit, Meeting{8, false}}) {
    ranks_.begin_all(meeting);
    for (int i = 0; i < 10; ++i) expect_reduced();
    ranks_.end_all();
  }
  expect_status(ranks_.begin(0, kCommit), Code::kConflict,
                "this owner is at the meeting of attempt 8 already, or past it");
  std::uint8_t flag = 0;
  expect_status(ranks_.reduce(0, &flag), Code::kInternal, "owners have begun no meeting");
}

// The others need not be there yet.
TEST_F(ChannelCollectiveTest, WhoComesLateIsWaitedFor) {
  ranks_.start(0, 100);
  ASSERT_TRUE(ranks_.begin(0, kPrepare).ok());
  ranks_.on_all([this](std::uint32_t rank) {
    if (rank == 1) {
      EventQueue<bool> nothing;
      nothing.pop(5 * CollectiveRanks::kRepeatMs);
      ranks_.start(1, 101);
      EXPECT_TRUE(ranks_.begin(1, kPrepare).ok());
    }
    std::uint8_t flag = 0;
    EXPECT_TRUE(ranks_.reduce(rank, &flag).ok());
  });
}

// A lost or slow peer ends in a named error, and every later call of the meeting says so at once.
TEST_F(ChannelCollectiveTest, WhoDoesNotComeIsNamed) {
  play_peer();
  ASSERT_TRUE(ranks_.begin(0, kPrepare, 50).ok());
  std::uint8_t flag = 0;
  const std::string message = "owner-1 did not come to the meeting of attempt 7 within 50 ms";
  expect_status(ranks_.reduce(0, &flag), Code::kUnavailable, message);
  expect_status(ranks_.reduce(0, &flag), Code::kUnavailable, message);
  const Bytes bytes(10);
  expect_status(ranks_.ranks[0]->send_part(1, {7, 0, 1, 2, 3}, bytes), Code::kUnavailable, message);
  // One that came once, and takes no part.
  ranks_.ranks[0]->end(Status(Code::kUnavailable, message));
  ASSERT_TRUE(ranks_.begin(0, {8, false}, 1000).ok());
  say({16, CollectiveFlags{0, {0}}});
  EXPECT_TRUE(ranks_.reduce(0, &flag).ok());
  expect_status(ranks_.ranks[0]->send_part(1, {8, 0, 1, 2, 3}, bytes), Code::kUnavailable,
                "owner-1 did not come to the meeting of attempt 8 within 1000 ms");
}

TEST_F(ChannelCollectiveTest, AWaitEndsWhenTheOwnerIsAskedToStop) {
  ranks_.start(0, 100);
  ASSERT_TRUE(ranks_.begin(0, kPrepare).ok());
  std::thread stopper([this] {
    EventQueue<bool> nothing;
    nothing.pop(30);
    ranks_.cancel.cancel();
  });
  std::uint8_t flag = 0;
  expect_status(ranks_.reduce(0, &flag), Code::kCancelled, "the owner was asked to stop");
  stopper.join();
}

TEST_F(ChannelCollectiveTest, WhoLeavesSaysWhy) {
  ranks_.start_all();
  ranks_.begin_all(kPrepare);
  expect_reduced();
  ranks_.ranks[1]->end(Status(Code::kIo, "converter \"scale\": no\nmemory"));
  std::uint8_t flag = 0;
  expect_status(ranks_.reduce(0, &flag), Code::kUnavailable,
                "owner-1 has left the meeting of attempt 7: converter \"scale\": no memory");
  ranks_.ranks[0]->end(Status(Code::kUnavailable, "x"));
  // The next attempt is another matter.
  ranks_.begin_all({8, false});
  expect_reduced();
}

// One that went on to the next attempt does not come back.
TEST_F(ChannelCollectiveTest, WhoIsAtALaterMeetingSaysSo) {
  ranks_.start_all();
  ASSERT_TRUE(ranks_.begin(1, {8, false}).ok());
  ASSERT_TRUE(ranks_.begin(0, kPrepare).ok());
  std::uint8_t flag = 0;
  expect_status(ranks_.reduce(0, &flag), Code::kConflict,
                "owner-1 has left the meeting of attempt 7: it is at a later meeting, the meeting "
                "of attempt 8");
}

// What an attempt that failed left on its way is not taken in the next.
TEST_F(ChannelCollectiveTest, StaleMessagesAreOfNoMeetingUnderWay) {
  play_peer();
  ASSERT_TRUE(ranks_.begin(0, kPrepare, 20).ok());
  std::uint8_t flag = 0;
  EXPECT_FALSE(ranks_.reduce(0, &flag).ok());
  ranks_.ranks[0]->end(Status(Code::kUnavailable, "it took too long"));
  ASSERT_TRUE(ranks_.begin(0, {8, false}).ok());
  say({ordinal(kPrepare), CollectiveFlags{0, {1}}});
  say({ordinal(kPrepare), CollectivePart{1, {7, 1, 2, 3, 4}, 1, 0, {9}}});
  say({ordinal(kPrepare), CollectiveLeft{false, "late"}});
  say({ordinal(kPrepare), CollectiveTaken{1, {}}});
  say({16, CollectiveFlags{0, {0}}});
  EXPECT_TRUE(ranks_.reduce(0, &flag).ok());
  EXPECT_EQ(flag, 0);
  EXPECT_TRUE(ranks_.sinks[0].parts.empty());
  // It hears that they are late.
  EXPECT_EQ(hear<CollectiveLeft>(), (CollectiveLeft{false, "it took too long"}));
  EXPECT_EQ(hear<CollectiveLeft>(),
            (CollectiveLeft{true, "it is at a later meeting, the meeting of attempt 8"}));
}

// The answer to flags or to a part was lost: it is given again, and nothing is taken twice.
TEST_F(ChannelCollectiveTest, LostMessagesAreAnsweredAgain) {
  play_peer();
  ASSERT_TRUE(ranks_.begin(0, kPrepare).ok());
  const std::uint64_t meeting = ordinal(kPrepare);
  std::thread peer([&] {
    hear<CollectiveFlags>();
    for (int i = 0; i < 3; ++i) say({meeting, CollectiveFlags{0, {0}}});
    const CollectivePart first{1, {7, 1, 2, 3, 4}, 2, 0, {5}};
    const CollectivePart second{1, {7, 1, 2, 3, 4}, 2, 1, {6}};
    // Parts that are cut, or go on from nowhere, are none.
    say({meeting, second});
    say({meeting, CollectivePart{1, {7, 1, 2, 3, 4}, 3, 0, {8, 8}}});
    for (int i = 0; i < 3; ++i) {
      say({meeting, first});
      say({meeting, second});
      EXPECT_TRUE(hear<CollectiveTaken>().status.ok());
    }
    say({meeting, CollectiveFlags{1, {1}}});
  });
  std::uint8_t flag = 1;
  EXPECT_TRUE(ranks_.reduce(0, &flag).ok());
  EXPECT_TRUE(ranks_.reduce(0, &flag).ok());
  peer.join();
  ASSERT_EQ(ranks_.sinks[0].parts.size(), 1U);
  EXPECT_EQ(ranks_.sinks[0].parts[0], (Bytes{5, 6}));
  ranks_.ranks[0]->end({});
  // Also when the meeting is over here.
  while (peer_->receive(0)) {
  }
  say({meeting, CollectiveFlags{1, {1}}});
  EXPECT_EQ(hear<CollectiveFlags>(), (CollectiveFlags{1, {1}}));
}

// In the update of the baseline nobody waits for an owner that died after the commit.
TEST_F(ChannelCollectiveTest, APeerThatRestartedIsNoticedAtOnce) {
  ranks_.start_all();
  ranks_.begin_all(kPrepare);
  expect_reduced();
  ranks_.end_all();
  ranks_.ranks[1].reset();
  ranks_.start(1, 102);
  ASSERT_TRUE(ranks_.begin(0, kCommit).ok());
  std::uint8_t flag = 0;
  expect_status(ranks_.reduce(0, &flag), Code::kUnavailable,
                "owner-1 has left the baseline update of attempt 7: it has restarted");
}

TEST_F(ChannelCollectiveTest, AnotherLifeDoesNotGoOnWithAMeeting) {
  play_peer();
  ASSERT_TRUE(ranks_.begin(0, kPrepare).ok());
  say({ordinal(kPrepare), CollectiveFlags{0, {0}}}, 200);
  std::uint8_t flag = 0;
  EXPECT_TRUE(ranks_.reduce(0, &flag).ok());
  say({ordinal(kPrepare), CollectiveFlags{1, {0}}}, 201);
  expect_status(ranks_.reduce(0, &flag), Code::kUnavailable,
                "owner-1 has left the meeting of attempt 7: it has restarted");
  EXPECT_EQ(hear<CollectiveLeft>(), (CollectiveLeft{false, "it has met an earlier life"}));
}

TEST_F(ChannelCollectiveTest, WhatIsForAnotherLifeIsToldSo) {
  play_peer();
  say({ordinal(kPrepare), CollectiveFlags{0, {0}}}, 200, 99);
  EXPECT_EQ(hear<CollectiveLeft>(), (CollectiveLeft{false, "it has restarted"}));
}

// First baselines: whoever failed begins again, and the others wait for it or begin again too.
TEST_F(ChannelCollectiveTest, FirstBaselinesBeginAgainTogether) {
  ranks_.start_all();
  ranks_.begin_all(kFirst);
  expect_reduced();
  ranks_.ranks[1].reset();
  ranks_.start(1, 102);
  ASSERT_TRUE(ranks_.begin(1, kFirst).ok());
  ranks_.on_all([this](std::uint32_t rank) {
    std::uint8_t flag = 0;
    Status status = ranks_.reduce(rank, &flag);
    if (rank == 0) {
      expect_status(status, Code::kUnavailable,
                    "owner-1 has left the meeting of first baselines: it has restarted");
      ranks_.ranks[0]->end(status);
      ranks_.ranks[0]->restart(103);
      EXPECT_TRUE(ranks_.begin(0, kFirst).ok());
      status = ranks_.reduce(rank, &flag);
    }
    EXPECT_TRUE(status.ok()) << status.message();
  });
  ranks_.end_all();
}

// One that restarts later than that finds them made, and goes without.
TEST_F(ChannelCollectiveTest, FirstBaselinesAreMadeOnce) {
  ranks_.start_all();
  ranks_.begin_all(kFirst);
  expect_reduced();
  ranks_.end_all();
  ranks_.ranks[1].reset();
  ranks_.start(1, 102);
  ASSERT_TRUE(ranks_.begin(1, kFirst).ok());
  std::uint8_t flag = 0;
  EXPECT_EQ(ranks_.reduce(1, &flag).code(), Code::kConflict);
}

TEST_F(ChannelCollectiveTest, RanksThatCountDifferentlyAreNamed) {
  play_peer();
  ASSERT_TRUE(ranks_.begin(0, kPrepare).ok());
  say({ordinal(kPrepare), CollectiveFlags{0, {0, 0, 0}}});
  std::uint8_t flag = 0;
  expect_status(ranks_.reduce(0, &flag), Code::kMismatch,
                "owner-1 counts 3 flags and this owner 1: their layouts differ");
}

}  // namespace
}  // namespace dcr
