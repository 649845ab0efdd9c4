#include "runtime/bounded_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace dcr {
namespace {

TEST(BoundedQueueTest, ValuesLeaveInTheirOrder) {
  BoundedQueue<int> queue(3);
  EXPECT_TRUE(queue.push(1));
  EXPECT_TRUE(queue.push(2));
  EXPECT_TRUE(queue.push(3));
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.pop(), 2);
  EXPECT_TRUE(queue.push(4));
  EXPECT_EQ(queue.pop(), 3);
  EXPECT_EQ(queue.pop(), 4);
}

TEST(BoundedQueueTest, ACloseLetsOutWhatIsInside) {
  BoundedQueue<std::unique_ptr<int>> queue(2);
  EXPECT_TRUE(queue.push(std::make_unique<int>(7)));
  queue.close();
  queue.close();
  EXPECT_FALSE(queue.push(std::make_unique<int>(8)));
  const auto value = queue.pop();
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(**value, 7);
  EXPECT_EQ(queue.pop(), std::nullopt);
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(BoundedQueueTest, AFullQueueHoldsItsProducer) {
  BoundedQueue<int> queue(2);
  std::atomic<int> pushed{0};
  std::thread producer([&] {
    for (int i = 0; i < 10; ++i) {
      EXPECT_TRUE(queue.push(i));
      ++pushed;
    }
  });
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(queue.pop(), i);
    EXPECT_LE(pushed.load(), i + 1 + 2);
  }
  producer.join();
}

TEST(BoundedQueueTest, ACloseWakesWhoWaits) {
  BoundedQueue<int> full(1);
  BoundedQueue<int> empty(1);
  ASSERT_TRUE(full.push(1));
  std::thread producer([&] { EXPECT_FALSE(full.push(2)); });
  std::thread consumer([&] { EXPECT_EQ(empty.pop(), std::nullopt); });
  full.close();
  empty.close();
  producer.join();
  consumer.join();
}

TEST(BoundedQueueTest, EveryValueArrivesOnce) {
  constexpr std::uint64_t kProducers = 3;
  constexpr std::uint64_t kConsumers = 3;
  constexpr std::uint64_t kEach = 5000;
  BoundedQueue<std::uint64_t> queue(4);
  std::vector<std::atomic<int>> arrived(kProducers * kEach);
  std::vector<std::thread> producers;
  std::vector<std::thread> consumers;
  for (std::uint64_t p = 0; p < kProducers; ++p) {
    producers.emplace_back([&, p] {
      for (std::uint64_t i = 0; i < kEach; ++i) EXPECT_TRUE(queue.push(p * kEach + i));
    });
  }
  for (std::uint64_t c = 0; c < kConsumers; ++c) {
    consumers.emplace_back([&] {
      std::vector<std::uint64_t> last(kProducers, 0);
      while (const auto value = queue.pop()) {
        ++arrived[*value];
        // One consumer sees one producer's values in their order.
        EXPECT_GE(*value % kEach + 1, last[*value / kEach] + 1);
        last[*value / kEach] = *value % kEach;
      }
    });
  }
  for (std::thread& producer : producers) producer.join();
  queue.close();
  for (std::thread& consumer : consumers) consumer.join();
  for (const std::atomic<int>& count : arrived) ASSERT_EQ(count.load(), 1);
}

}  // namespace
}  // namespace dcr
