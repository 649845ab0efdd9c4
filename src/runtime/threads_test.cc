#include "runtime/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

namespace dcr {
namespace {

using Values = std::vector<std::uint64_t>;

Values first_numbers(std::uint64_t count) {
  Values values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), std::uint64_t{0});
  return values;
}

TEST(ExecutorTest, OneThreadRunsNothingByItself) {
  const auto executor = make_executor(1);
  EXPECT_EQ(executor->threads(), 1U);
  std::vector<int> ran;  // unguarded on purpose: tsan would see a second thread
  for (int i = 0; i < 3; ++i) executor->submit([&ran, i] { ran.push_back(i); });
  EXPECT_TRUE(ran.empty());
  EXPECT_TRUE(executor->run_one());
  EXPECT_EQ(ran, std::vector<int>{0});
  executor->wait([&] { return ran.size() == 2; });
  EXPECT_EQ(ran, (std::vector<int>{0, 1}));
  executor->wait([&] { return ran.size() == 3; });
  EXPECT_FALSE(executor->run_one());
}

TEST(ExecutorTest, DestructionRunsWhatIsQueued) {
  for (const unsigned threads : {1U, 4U}) {
    std::atomic<int> ran{0};
    {
      const auto executor = make_executor(threads);
      Executor& queue = *executor;
      for (int i = 0; i < 100; ++i) {
        queue.submit([&ran, &queue, i] {
          ++ran;
          if (i % 10 == 0) queue.submit([&ran] { ++ran; });
        });
      }
    }
    EXPECT_EQ(ran.load(), 110) << threads << " threads";
  }
}

TEST(ExecutorTest, WaitEndsThroughNotifyFromAnotherThread) {
  const auto executor = make_executor(1);
  std::atomic<bool> ready{false};
  std::thread other([&] {
    ready = true;
    executor->notify();
  });
  executor->wait([&] { return ready.load(); });
  EXPECT_TRUE(ready.load());
  other.join();
}

TEST(ExecutorTest, AllThreadsWorkAtATime) {
  constexpr int kThreads = 4;
  const auto executor = make_executor(kThreads);
  std::atomic<int> inside{0};
  std::atomic<int> finished{0};
  for (int i = 0; i < kThreads; ++i) {
    executor->submit([&] {
      ++inside;
      while (inside.load() < kThreads) std::this_thread::yield();  // ends only if all are here
      ++finished;
    });
  }
  executor->wait([&] { return finished.load() == kThreads; });
  EXPECT_EQ(inside.load(), kThreads);
}

TEST(OrderedMapTest, ConsumesInOrderOnTheCallersThread) {
  for (const unsigned threads : {1U, 2U, 5U}) {
    for (const std::uint64_t window : {1U, 2U, 7U, 1000U}) {
      const auto executor = make_executor(threads);
      Values seen;
      const std::thread::id caller = std::this_thread::get_id();
      const Status status = ordered_map<std::uint64_t>(
          *executor, 100, window, nullptr,
          [](std::uint64_t i) -> Result<std::uint64_t> {
            if (i % 3 == 0) std::this_thread::yield();
            return i * i;
          },
          [&](std::uint64_t i, std::uint64_t&& value) -> Status {
            EXPECT_EQ(std::this_thread::get_id(), caller);
            EXPECT_EQ(value, i * i);
            seen.push_back(i);
            return {};
          });
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(seen, first_numbers(100));
    }
  }
}

TEST(OrderedMapTest, NothingToDo) {
  const auto executor = make_executor(2);
  const Status status = ordered_map<int>(
      *executor, 0, 1, nullptr, [](std::uint64_t) -> Result<int> { return 0; },
      [](std::uint64_t, int&&) -> Status {
        return {Code::kInternal, "not called"};
      });
  EXPECT_TRUE(status.ok());
}

TEST(OrderedMapTest, TakesTypesThatOnlyMove) {
  const auto executor = make_executor(2);
  int sum = 0;
  const Status status = ordered_map<std::unique_ptr<int>>(
      *executor, 10, 3, nullptr,
      [](std::uint64_t i) -> Result<std::unique_ptr<int>> {
        return {std::make_unique<int>(static_cast<int>(i))};
      },
      [&](std::uint64_t, std::unique_ptr<int>&& value) -> Status {
        sum += *value;
        return {};
      });
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(sum, 45);
}

TEST(OrderedMapTest, KeepsWithinItsWindow) {
  constexpr std::int64_t kWindow = 3;
  const auto executor = make_executor(6);
  std::atomic<std::int64_t> held{0};
  std::atomic<std::int64_t> held_most{0};
  const Status status = ordered_map<int>(
      *executor, 500, kWindow, nullptr,
      [&](std::uint64_t) -> Result<int> {
        const std::int64_t now = ++held;
        std::int64_t most = held_most.load();
        while (now > most && !held_most.compare_exchange_weak(most, now)) {
        }
        return 1;
      },
      [&](std::uint64_t, int&&) -> Status {
        --held;
        return {};
      });
  EXPECT_TRUE(status.ok());
  EXPECT_LE(held_most.load(), kWindow);
  EXPECT_GE(held_most.load(), 1);
}

TEST(OrderedMapTest, OneThreadProducesOneAtATimeInOrder) {
  const auto executor = make_executor(1);
  Values produced;  // unguarded on purpose
  Values consumed;
  const Status status = ordered_map<std::uint64_t>(
      *executor, 20, 4, nullptr,
      [&](std::uint64_t i) -> Result<std::uint64_t> {
        produced.push_back(i);
        return i;
      },
      [&](std::uint64_t i, std::uint64_t&&) -> Status {
        // With nobody else to run them, tasks run only as their values are asked for.
        EXPECT_EQ(produced.size(), i + 1);
        consumed.push_back(i);
        return {};
      });
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(produced, first_numbers(20));
  EXPECT_EQ(consumed, first_numbers(20));
}

TEST(OrderedMapTest, ReturnsTheFirstErrorInOrder) {
  for (const unsigned threads : {1U, 4U}) {
    const auto executor = make_executor(threads);
    Values consumed;
    std::atomic<int> running{0};
    const Status status = ordered_map<std::uint64_t>(
        *executor, 100, 8, nullptr,
        [&](std::uint64_t i) -> Result<std::uint64_t> {
          ++running;
          // The later error is usually ready before the earlier one.
          if (i == 10) std::this_thread::sleep_for(std::chrono::milliseconds(20));
          --running;
          if (i >= 10) return Status(Code::kCorrupt, "item " + std::to_string(i));
          return i;
        },
        [&](std::uint64_t i, std::uint64_t&&) -> Status {
          consumed.push_back(i);
          return {};
        });
    EXPECT_EQ(running.load(), 0) << "a task outlived the call";
    EXPECT_EQ(status.code(), Code::kCorrupt);
    EXPECT_EQ(status.message(), "item 10");
    EXPECT_EQ(consumed, first_numbers(10));
  }
}

TEST(OrderedMapTest, AnErrorOfTheConsumerWaitsForWhatRuns) {
  const auto executor = make_executor(4);
  std::atomic<int> begun{0};
  std::atomic<int> ended{0};
  const Status status = ordered_map<int>(
      *executor, 1000, 16, nullptr,
      [&](std::uint64_t) -> Result<int> {
        ++begun;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ++ended;
        return 0;
      },
      [](std::uint64_t i, int&&) -> Status {
        if (i == 5) return {Code::kIo, "sink is full"};
        return {};
      });
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_EQ(status.message(), "sink is full");
  EXPECT_EQ(begun.load(), ended.load());
  EXPECT_LE(begun.load(), 5 + 16);  // values 0..4 made room for five more than the first window
}

TEST(OrderedMapTest, CancelEndsIt) {
  for (const unsigned threads : {1U, 4U}) {
    const auto executor = make_executor(threads);
    CancelToken cancel;
    Values consumed;
    const Status status = ordered_map<std::uint64_t>(
        *executor, 1000, 4, &cancel, [](std::uint64_t i) -> Result<std::uint64_t> { return i; },
        [&](std::uint64_t i, std::uint64_t&&) -> Status {
          consumed.push_back(i);
          if (i == 6) cancel.cancel();
          return {};
        });
    EXPECT_EQ(status.code(), Code::kCancelled);
    EXPECT_EQ(consumed, first_numbers(7));
  }
}

TEST(OrderedMapTest, CancelledBeforeItStarts) {
  const auto executor = make_executor(1);
  CancelToken cancel;
  cancel.cancel();
  int produced = 0;
  const Status status = ordered_map<int>(
      *executor, 10, 4, &cancel, [&](std::uint64_t) -> Result<int> { return ++produced; },
      [](std::uint64_t, int&&) -> Status {
        return {Code::kInternal, "not called"};
      });
  EXPECT_EQ(status.code(), Code::kCancelled);
  EXPECT_EQ(produced, 0);
}

TEST(OrderedMapTest, ManyShortMapsOnOneExecutor) {
  const auto executor = make_executor(4);
  std::uint64_t total = 0;
  for (std::uint64_t round = 0; round < 2000; ++round) {
    const std::uint64_t fails_at = round % 7 == 0 ? 5 : 100;
    const Status status = ordered_map<Values>(
        *executor, 20, 1 + round % 5, nullptr,
        [&](std::uint64_t i) -> Result<Values> {
          if (i == fails_at) return Status(Code::kIo, "planned");
          return Values{round, i};
        },
        [&](std::uint64_t i, Values&& value) -> Status {
          EXPECT_EQ(value, (Values{round, i}));
          ++total;
          return {};
        });
    ASSERT_EQ(status.ok(), fails_at == 100);
  }
  EXPECT_EQ(total, 286U * 5 + 1714U * 20);
}

TEST(OrderedMapTest, SeveralCallersShareAnExecutor) {
  const auto executor = make_executor(3);
  std::vector<std::thread> callers;
  callers.reserve(4);
  std::atomic<std::uint64_t> total{0};
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      std::uint64_t expected = 0;
      const Status status = ordered_map<std::uint64_t>(
          *executor, 500, 3, nullptr, [](std::uint64_t i) -> Result<std::uint64_t> { return i; },
          [&](std::uint64_t i, std::uint64_t&& value) -> Status {
            EXPECT_EQ(i, expected++);
            total += value;
            return {};
          });
      EXPECT_TRUE(status.ok());
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total.load(), 4U * (500U * 499U / 2));
}

}  // namespace
}  // namespace dcr
