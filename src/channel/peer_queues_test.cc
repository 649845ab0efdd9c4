#include "channel/peer_queues.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/prng.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

constexpr std::uint64_t kOverhead = kQueuedMessageOverheadBytes;

TEST(PeerQueues, PeersTakeTurnsAndEachKeepsItsOrder) {
  PeerQueues<int> queues({10'000, 10, 10'000});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(queues.push("a", i, 1), 0U);
  EXPECT_EQ(queues.push("b", 10, 1), 0U);
  EXPECT_EQ(queues.push("c", 20, 1), 0U);
  EXPECT_EQ(queues.push("c", 21, 1), 0U);
  for (const int next : {0, 10, 20, 1, 21, 2}) EXPECT_EQ(queues.pop(), next);
  EXPECT_EQ(queues.pop(), std::nullopt);
  EXPECT_TRUE(queues.empty());
}

TEST(PeerQueues, APeersOldestGiveWay) {
  PeerQueues<int> queues({10 * (kOverhead + 100), 3, 1'000'000});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(queues.push("a", i, 100), 0U);
  EXPECT_EQ(queues.push("a", 3, 100), 1U);
  EXPECT_EQ(queues.push("b", 10, 100), 0U);
  EXPECT_EQ(queues.push("a", 4, 9 * (kOverhead + 100) - kOverhead),
            2U);  // leaves room for one other
  EXPECT_EQ(queues.pop_of("a"), 3);
  EXPECT_EQ(queues.pop_of("a"), 4);
  EXPECT_EQ(queues.pop_of("a"), std::nullopt);
  EXPECT_EQ(queues.pop_of("b"), 10);
}

TEST(PeerQueues, WhoTakesTheMostRoomGivesWayToOthers) {
  const std::uint64_t one = kOverhead + 100;
  PeerQueues<int> queues({8 * one, 100, 10 * one});
  for (int i = 0; i < 8; ++i) EXPECT_EQ(queues.push("flood", i, 100), 0U);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(queues.push("small", i, 100), i < 2 ? 0U : 1U);
  EXPECT_EQ(queues.bytes(), 10 * one);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(queues.pop_of("small"), i);
  EXPECT_EQ(queues.pop_of("flood"), 2);
}

TEST(PeerQueues, WhatIsPutBackComesFirstOrIsDropped) {
  PeerQueues<int> queues({3 * (kOverhead + 1), 2, 3 * (kOverhead + 1)});
  queues.push("a", 0, 1);
  queues.push("a", 1, 1);
  EXPECT_EQ(queues.pop_of("a"), 0);
  EXPECT_EQ(queues.restore("a", 0, 1), 0U);
  EXPECT_EQ(queues.pop_of("a"), 0);
  queues.push("a", 2, 1);
  EXPECT_EQ(queues.restore("a", 0, 1), 1U);
  EXPECT_EQ(queues.clear("a"), 2U);
  EXPECT_FALSE(queues.holds("a"));
  EXPECT_TRUE(queues.empty());
}

// Nothing is lost without being counted, nothing overtakes.
TEST(PeerQueues, NeverHoldMoreThanTheirLimits) {
  for (std::uint64_t seed = 0; seed < campaign_cases(300); ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    const QueueLimits limits{2000 + prng.below(3000), 1 + prng.below(6), 5000 + prng.below(5000)};
    PeerQueues<std::pair<std::uint64_t, std::uint64_t>> queues(limits);
    std::uint64_t pushed = 0, popped = 0, dropped = 0;
    for (std::uint64_t number = 0; number < 200; ++number) {
      const std::string peer(1, static_cast<char>('a' + prng.below(5)));
      if (prng.below(3) != 0) {
        const std::uint64_t bytes = prng.below(limits.peer_bytes_max - kOverhead + 1);
        dropped += queues.push(peer, {number, bytes}, bytes);
        ++pushed;
      } else if (const auto message = queues.pop_of(peer)) {
        ++popped;
        if (prng.below(2) == 0) {
          const std::uint64_t lost = queues.restore(peer, *message, message->second);
          EXPECT_EQ(lost, 0U);  // nothing came in between
          --popped;
        }
      }
      ASSERT_LE(queues.bytes(), limits.bytes_max);
    }
    std::map<std::string, std::uint64_t> counts;
    std::uint64_t last = 0, left = 0;
    queues.for_each_peer([&](const std::string& peer) { counts[peer] = 0; });
    for (auto& [peer, count] : counts) {
      last = 0;
      while (const auto message = queues.pop_of(peer)) {
        EXPECT_TRUE(count == 0 || message->first > last) << "out of order";
        last = message->first;
        ++count;
      }
      EXPECT_LE(count, limits.peer_messages_max);
      left += count;
    }
    EXPECT_EQ(pushed, popped + dropped + left);
    EXPECT_TRUE(queues.empty());
  }
}

}  // namespace
}  // namespace dcr
