// In-place application ended at every operation: by SIGKILL, by power loss, by a full disk; once
// and twice. A run after it must make the target of it, file for file, and leave nothing behind.
#include <gtest/gtest.h>

#include "delta/in_place.h"
#include "tests/support/campaign.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/in_place_scenario.h"
#include "tests/support/memory_file_system.h"

namespace dcr {
namespace {

constexpr std::uint64_t kBatches[] = {1, 3000, std::uint64_t{1} << 20};

// What a crash leaves. Seed 0: SIGKILL; 1: power loss without anything unsynced; else power loss.
std::unique_ptr<MemoryFileSystem> after_crash(const MemoryFileSystem& disk, std::uint64_t seed) {
  if (seed == 0) return disk.recover(Unsynced::kAll);
  return seed == 1 ? disk.recover(Unsynced::kNone) : disk.recover(Unsynced::kSome, seed);
}

// Kills a run of the scenario on `disk` at operation n. False if it had ended before.
bool run_until(MemoryFileSystem& disk, const Scenario& scenario, std::uint64_t n, bool half_done,
               std::uint64_t batch_bytes) {
  FaultFileSystem files(disk);
  files.set_fault({.operation = n, .kind = Fault::Kind::kKill, .half_done = half_done});
  const Status status = run_in_place(files, scenario.deltas, batch_bytes).status();
  EXPECT_EQ(status.ok(), !files.fired()) << status.message();
  return files.fired();
}

// Completes what a crash left, with any batch size.
void expect_completed(MemoryFileSystem& disk, const Scenario& scenario, std::uint64_t batch_bytes) {
  const Result<InPlaceResult> result = run_in_place(disk, scenario.deltas, batch_bytes);
  ASSERT_TRUE(result.ok()) << result.status().message();
  ASSERT_EQ(checkpoint_files(disk), scenario.versions.back());
}

// Every operation, each with SIGKILL and power losses, whole and half done (in turns if `thin`).
void crash_everywhere(const Scenario& scenario, std::uint64_t batch_bytes, std::uint64_t seeds,
                      bool thin = false) {
  bool fired = true;
  for (std::uint64_t n = 0; fired; ++n) {
    for (const bool half_done : {false, true}) {
      if (thin && half_done == (n % 2 == 0)) continue;
      const auto disk = scenario.disk->recover(Unsynced::kAll);
      fired = run_until(*disk, scenario, n, half_done, batch_bytes);
      for (std::uint64_t seed = 0; seed < seeds; ++seed) {
        SCOPED_TRACE("operation " + std::to_string(n) + (half_done ? " half done" : "") +
                     ", crash seed " + std::to_string(seed));
        const auto survivor = after_crash(*disk, seed);
        expect_completed(*survivor, scenario, kBatches[(n + seed) % std::size(kBatches)]);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(InPlaceCrashTest, EveryOperationOfRandomSteps) {
  for (std::uint64_t seed = 0; seed < campaign_cases(30); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    crash_everywhere(random_scenario(seed, 1), kBatches[seed % 2], 6);
    if (HasFatalFailure()) return;
  }
}

TEST(InPlaceCrashTest, EveryOperationOfAChain) {
  for (std::uint64_t seed = 1000; seed < 1000 + campaign_cases(5); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    crash_everywhere(random_scenario(seed, 3), 1, 4, DCR_CAMPAIGN > 1);
    if (HasFatalFailure()) return;
  }
}

TEST(InPlaceCrashTest, EveryOperationOfABusyStep) {
  crash_everywhere(busy_scenario(), 1, DCR_CAMPAIGN > 1 ? 8 : 40, DCR_CAMPAIGN > 1);
}

// The run that completes an interrupted one is interrupted as well, at each of its operations.
void crash_twice(const Scenario& scenario, std::uint64_t stride) {
  bool fired = true;
  for (std::uint64_t n = 0; fired; n += stride) {
    const auto disk = scenario.disk->recover(Unsynced::kAll);
    fired = run_until(*disk, scenario, n, n % 2 == 0, 1);
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      bool fired_again = true;
      for (std::uint64_t m = 0; fired_again; ++m) {
        SCOPED_TRACE("operations " + std::to_string(n) + " and " + std::to_string(m) + ", seed " +
                     std::to_string(seed));
        const auto survivor = after_crash(*disk, seed);
        fired_again = run_until(*survivor, scenario, m, m % 2 == 0, kBatches[m % 2]);
        expect_completed(*after_crash(*survivor, (n + m) % 4), scenario, 1);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(InPlaceCrashTest, TwoCrashesOfAPlainStep) {
  crash_twice(make_scenario({plain_checkpoint(), changed_checkpoint()}), DCR_CAMPAIGN > 1 ? 3 : 1);
}

TEST(InPlaceCrashTest, TwoCrashesOfABusyStep) {
  crash_twice(busy_scenario(), DCR_CAMPAIGN > 1 ? 11 : 1);
}

// A run that fails and lives on: before the first journal it leaves what it found.
TEST(InPlaceCrashTest, AFullDiskAtEveryOperation) {
  const Scenario scenario = busy_scenario();
  bool fired = true, seen_journal = false;
  for (std::uint64_t n = 0; fired; ++n) {
    SCOPED_TRACE("operation " + std::to_string(n));
    const auto disk = scenario.disk->recover(Unsynced::kAll);
    FaultFileSystem files(*disk);
    files.set_fault({.operation = n, .kind = Fault::Kind::kFail});
    const Status status = run_in_place(files, scenario.deltas, 1).status();
    fired = files.fired();
    EXPECT_EQ(status.ok(), !fired);
    if (fired) {
      EXPECT_EQ(status.code(), Code::kIo);
      const bool journal = disk->exists("w/ckpt.dcr-journal");
      seen_journal = seen_journal || journal;
      EXPECT_EQ(status.message().find("run the same command again") != std::string::npos, journal)
          << status.message();
      if (!seen_journal) {
        EXPECT_EQ(checkpoint_files(*disk), scenario.versions.front());
      }
    }
    expect_completed(*disk, scenario, 1);
  }
  EXPECT_TRUE(seen_journal);
}

// A tensor of several pieces, so that items of one tensor are done, journalled and still to come.
TEST(InPlaceCrashTest, ATensorOfSeveralItems) {
  TestCheckpoint old_one;
  old_one.directory = false;
  const std::uint64_t words = 2 * piece_words(1) + 5;
  old_one.tensors["big"] = {Dtype::kI8, {words}, Bytes(words, 3), 0};
  TestCheckpoint new_one = old_one;
  Bytes& bytes = new_one.tensors["big"].bytes;
  for (std::size_t at = 0; at < bytes.size(); at += bytes.size() / 7) bytes[at] = 9;
  bytes.back() = 8;
  crash_everywhere(make_scenario({old_one, new_one}), 1, 2, true);
}

}  // namespace
}  // namespace dcr
