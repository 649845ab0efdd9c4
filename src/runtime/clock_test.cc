#include "runtime/clock.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace dcr {
namespace {

class CountingClock final : public Clock {
 public:
  std::uint64_t nanoseconds() override { return ++now_; }
  std::uint64_t thread_nanoseconds() override { return busy_ += 10; }

 private:
  std::uint64_t now_ = 0;
  std::uint64_t busy_ = 0;
};

TEST(Clock, TheSystemsNeverGoesBack) {
  std::uint64_t last = monotonic_clock().nanoseconds();
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t now = monotonic_clock().nanoseconds();
    EXPECT_GE(now, last);
    last = now;
  }
}

TEST(Clock, ProcessorTimesAreThoseOfWork) {
  Clock& clock = monotonic_clock();
  const std::uint64_t process = clock.process_nanoseconds();
  const std::uint64_t thread = clock.thread_nanoseconds();
  std::uint64_t word = 1;
  while (clock.thread_nanoseconds() < thread + 1'000'000) word = word * 3 + 1;
  EXPECT_NE(word, 1u);
  EXPECT_GE(clock.process_nanoseconds(), process + 1'000'000);
}

TEST(Clock, OneThatKnowsNoProcessorTimeGivesItsOwn) {
  struct Fixed final : Clock {
    std::uint64_t nanoseconds() override { return 7; }
  } clock;
  EXPECT_EQ(clock.thread_nanoseconds(), 7u);
  EXPECT_EQ(clock.process_nanoseconds(), 7u);
}

TEST(Spans, AreRecordedInTheOrderOfTheirEnds) {
  CountingClock clock;
  SpanRecorder recorder(&clock);
  {
    const SpanTimer outer(&recorder, "scan", 3);
    const SpanTimer inner(&recorder, "send", 4);
  }
  const std::vector<Span> spans = recorder.take();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(std::string(spans[0].stage), "send");
  EXPECT_EQ(spans[0].endpoint, 4u);
  EXPECT_EQ(spans[0].begin_ns, 2u);
  EXPECT_EQ(spans[0].end_ns, 3u);
  EXPECT_EQ(spans[0].busy_ns, 10u);
  EXPECT_EQ(std::string(spans[1].stage), "scan");
  EXPECT_EQ(spans[1].begin_ns, 1u);
  EXPECT_EQ(spans[1].end_ns, 4u);
  EXPECT_EQ(spans[1].busy_ns, 30u);
  EXPECT_TRUE(recorder.take().empty());
}

TEST(Spans, WithoutAClockThereAreNone) {
  SpanRecorder recorder;
  { const SpanTimer timer(&recorder, "scan", 0); }
  { const SpanTimer timer(nullptr, "scan", 0); }
  EXPECT_TRUE(recorder.take().empty());
}

TEST(Spans, FromManyThreads) {
  SpanRecorder recorder(&monotonic_clock());
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&recorder, t] {
      for (int i = 0; i < 200; ++i) const SpanTimer timer(&recorder, "scan", t);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(recorder.take().size(), 800u);
}

}  // namespace
}  // namespace dcr
