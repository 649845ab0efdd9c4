#include "runtime/event_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace dcr {
namespace {

TEST(EventQueue, GivesValuesInTheirOrderAndNothingWhenThereIsNone) {
  EventQueue<int> queue;
  EXPECT_EQ(queue.pop(0), std::nullopt);
  queue.push(1);
  queue.push(2);
  EXPECT_EQ(queue.pop(0), 1);
  EXPECT_EQ(queue.pop(1'000'000), 2);
  EXPECT_EQ(queue.pop(1), std::nullopt);
}

TEST(EventQueue, DropsWhatIsAboveTheLimit) {
  EventQueue<int> queue;
  EXPECT_TRUE(queue.try_push(1, 2));
  EXPECT_TRUE(queue.try_push(2, 2));
  EXPECT_FALSE(queue.try_push(3, 2));
  queue.push(4);
  EXPECT_EQ(queue.pop(0), 1);
  EXPECT_EQ(queue.pop(0), 2);
  EXPECT_EQ(queue.pop(0), 4);
}

TEST(EventQueue, WakesWhoWaits) {
  EventQueue<int> queue;
  constexpr int kValues = 10'000;
  std::thread first([&] {
    for (int i = 0; i < kValues; ++i) queue.push(1);
  });
  std::thread second([&] {
    for (int i = 0; i < kValues; ++i) queue.push(1);
  });
  int sum = 0;
  while (sum < 2 * kValues) sum += queue.pop(60'000).value();
  first.join();
  second.join();
  EXPECT_EQ(queue.pop(0), std::nullopt);
}

}  // namespace
}  // namespace dcr
