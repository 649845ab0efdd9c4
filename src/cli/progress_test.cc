#include "cli/progress.h"

#include <gtest/gtest.h>

#include "cli/test_streams.h"

namespace dcr {
namespace {

using Style = ProgressReporter::Style;

TEST(Progress, LinesComeOncePerTenthAndSecond) {
  MemoryStream out;
  double now = 100;
  ProgressReporter progress(out.file(), Style::kLines, [&] { return now; });
  for (std::uint64_t done = 0; done <= 100; ++done) {  // four reports a second
    progress.update({"diff", done * 1'000'000, 100'000'000});
    now += 0.25;
  }
  progress.finish();
  EXPECT_EQ(out.text(),
            "diff: 10.0 MB of 100 MB (10 %), 4.00 MB/s\n"
            "diff: 20.0 MB of 100 MB (20 %), 4.00 MB/s\n"
            "diff: 30.0 MB of 100 MB (30 %), 4.00 MB/s\n"
            "diff: 40.0 MB of 100 MB (40 %), 4.00 MB/s\n"
            "diff: 50.0 MB of 100 MB (50 %), 4.00 MB/s\n"
            "diff: 60.0 MB of 100 MB (60 %), 4.00 MB/s\n"
            "diff: 70.0 MB of 100 MB (70 %), 4.00 MB/s\n"
            "diff: 80.0 MB of 100 MB (80 %), 4.00 MB/s\n"
            "diff: 90.0 MB of 100 MB (90 %), 4.00 MB/s\n"
            "diff: 100 MB of 100 MB (100 %), 4.00 MB/s\n");
}

TEST(Progress, ShortWorkIsOneLineAStage) {
  MemoryStream out;
  double now = 0;
  ProgressReporter progress(out.file(), Style::kLines, [&] { return now; });
  for (const char* stage : {"check", "apply"}) {
    for (std::uint64_t done = 0; done <= 10; ++done) {
      now += 0.01;
      progress.update({stage, done * 1000, 10'000});
    }
    progress.update({stage, 10'000, 10'000});
  }
  EXPECT_EQ(out.text(),
            "check: 10.0 kB of 10.0 kB (100 %), 90.9 kB/s\n"
            "apply: 10.0 kB of 10.0 kB (100 %), 100 kB/s\n");
  EXPECT_EQ(progress.bytes_done(), 10'000U);
}

TEST(Progress, NothingToDoIsDone) {
  MemoryStream out;
  ProgressReporter progress(out.file(), Style::kLines, [] { return 1.0; });
  progress.update({"verify", 0, 0});
  EXPECT_EQ(out.text(), "verify: 0 bytes of 0 bytes (100 %)\n");
}

TEST(Progress, TerminalRewritesOneLineTenTimesASecond) {
  MemoryStream out;
  double now = 0;
  {
    ProgressReporter progress(out.file(), Style::kTerminal, [&] { return now; });
    now = 1;
    progress.update({"diff", 900, 2'000'000});
    EXPECT_EQ(out.text(), "\rdiff: 900 bytes of 2.00 MB (0 %), 900 bytes/s");
    now = 1.05;
    progress.update({"diff", 1'000'000, 2'000'000});  // too soon
    EXPECT_EQ(out.text(), "\rdiff: 900 bytes of 2.00 MB (0 %), 900 bytes/s");
    now = 2;
    progress.update({"diff", 2'000'000, 2'000'000});
  }
  EXPECT_EQ(out.text(),
            "\rdiff: 900 bytes of 2.00 MB (0 %), 900 bytes/s"
            "\rdiff: 2.00 MB of 2.00 MB (100 %), 1.00 MB/s  "
            "\r                                           \r");
}

TEST(Progress, SilentOnlyCounts) {
  MemoryStream out;
  ProgressReporter progress(out.file(), Style::kSilent, [] { return 1.0; });
  progress.update({"diff", 7, 7});
  EXPECT_EQ(progress.bytes_done(), 7U);
  EXPECT_EQ(out.text(), "");
}

}  // namespace
}  // namespace dcr
