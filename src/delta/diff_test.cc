#include "delta/diff.h"

#include <gtest/gtest.h>

#include "tests/support/delta_disk.h"
#include "tests/support/fault_file_system.h"

namespace dcr {
namespace {

class DiffTest : public DeltaDiskTest {
 protected:
  // Two steps of a checkpoint with tensors of several pieces; with `more` of 40 MiB, of two
  // buckets.
  void put_large(std::uint64_t more = kMiB) {
    Prng prng(11);
    TestCheckpoint before;
    before.tensors["big"] = {Dtype::kBF16, {9 * kMiB}, Bytes(18 * kMiB, 1), 0};
    before.tensors["big.8"] = {Dtype::kU8, {9 * kMiB + 5}, Bytes(9 * kMiB + 5, 2), 0};
    before.tensors["gone"] = {Dtype::kF32, {kMiB / 2}, Bytes(2 * kMiB, 3), 0};
    TestCheckpoint after = before;
    change_words(prng, &after.tensors["big"], 50'000);
    change_words(prng, &after.tensors["big.8"], 3'000);
    after.tensors["big.8"].bytes.back() ^= 1;
    after.tensors.erase("gone");
    after.tensors["more"] = {Dtype::kF64, {more / 8}, Bytes(static_cast<std::size_t>(more), 4), 0};
    change_words(prng, &after.tensors["more"], 50'000);
    put("old", before);
    put("new", after);
  }

  void put_small() {
    Prng prng(12);
    TestCheckpoint before;
    before.tensors["a"] = {Dtype::kBF16, {500}, random_bytes(prng, 1000), 0};
    before.tensors["b"] = {Dtype::kF32, {}, random_bytes(prng, 4), 0};
    before.others = {{"config.json", "{}"}};
    TestCheckpoint after = before;
    change_words(prng, &after.tensors["a"], 30);
    after.others["config.json"] = "{\"v\":2}";
    put("old", before);
    put("new", after);
  }

  void expect_error(const Status& status, Code code, const std::string& words) {
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  }
};

TEST_F(DiffTest, NoChangeIsADeltaWithoutPayloads) {
  put_small();
  const Result<DiffReport> report = write_diff(work(), "old", "old", "d.dcr");
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_TRUE(report->footer.payloads.empty());
  EXPECT_EQ(report->footer.changed, 0U);
  EXPECT_EQ(report->footer.base_identity, report->footer.target_identity);
  EXPECT_EQ(report->delta_bytes, disk_.get("d.dcr").size());
}

TEST_F(DiffTest, CountsCommonTensorsOnly) {
  TestCheckpoint before, after;
  before.tensors["kept"] = {Dtype::kU8, {4}, {1, 2, 3, 4}, 0};
  before.tensors["retyped"] = {Dtype::kU8, {4}, {1, 2, 3, 4}, 0};
  after.tensors["kept"] = {Dtype::kU8, {4}, {1, 0, 0, 4}, 0};
  after.tensors["retyped"] = {Dtype::kI8, {4}, {1, 2, 3, 4}, 0};
  after.tensors["added"] = {Dtype::kU8, {4}, {1, 2, 3, 4}, 0};
  put("old", before);
  put("new", after);
  const Result<DiffReport> report = write_diff(work(), "old", "new", "d.dcr");
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->footer.changed, 2U);
  EXPECT_EQ(report->pipeline.items, 3U);
}

TEST_F(DiffTest, BytesDoNotDependOnThreadsOrMemory) {
  put_large(40 * kMiB);
  struct Case {
    unsigned threads;
    std::uint64_t memory;
  };
  Bytes first;
  for (const Case& c :
       {Case{1, 256 * kMiB}, Case{2, kGiB}, Case{4, 256 * kMiB}, Case{4, 8 * kGiB}}) {
    executor_ = make_executor(c.threads);
    Work work = forced();
    work.memory_bytes_max = c.memory;
    const Result<DiffReport> report = write_diff(work, "old", "new", "d.dcr");
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(report->footer.payloads.size(), 2U);
    const Bytes bytes = disk_.get("d.dcr");
    if (first.empty()) first = bytes;
    ASSERT_TRUE(bytes == first) << c.threads << " threads, " << c.memory << " bytes";
  }
}

TEST_F(DiffTest, NamesOfSingleFilesDoNotMatter) {
  Prng prng(13);
  TestCheckpoint before, after;
  before.directory = after.directory = false;
  before.tensors["a"] = {Dtype::kU8, {40}, random_bytes(prng, 40), 0};
  after.tensors["a"] = {Dtype::kU8, {40}, random_bytes(prng, 40), 0};
  put("x.safetensors", before);
  put("y.safetensors", after);
  const Result<DiffReport> report = write_diff(work(), "x.safetensors", "y.safetensors", "d.dcr");
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->footer.files.size(), 1U);
  EXPECT_EQ(report->footer.files[0].name, "model.safetensors");
  EXPECT_TRUE(report->footer.files[0].same_as_base);
}

TEST_F(DiffTest, ReadsEachByteOnce) {
  put_large();
  FaultFileSystem counting(disk_);
  ASSERT_TRUE(write_diff(work_on(counting), "old", "new", "d.dcr").ok());
  // One read for each leaf of each side, and two for each header.
  const std::uint64_t leaves = (18 + 10 + 2) + (18 + 10 + 1);
  EXPECT_EQ(counting.reads(), leaves + 2 * 2);
}

TEST_F(DiffTest, AnExistingOutputNeedsForce) {
  put_small();
  disk_.put("d.dcr", Bytes{1});
  expect_error(write_diff(work(), "old", "new", "d.dcr").status(), Code::kExists, "\"d.dcr\"");
  EXPECT_EQ(disk_.get("d.dcr"), Bytes{1});
  EXPECT_TRUE(write_diff(forced(), "old", "new", "d.dcr").ok());
  EXPECT_GT(disk_.get("d.dcr").size(), 1U);
}

TEST_F(DiffTest, AnOutputThatIsAnInputIsRefused) {
  put_small();
  const auto before = disk_.all();
  for (const char* output :
       {"old/model.safetensors", "new/config.json", "new/../old/config.json"}) {
    expect_error(write_diff(forced(), "old", "new", output).status(), Code::kInvalidArgument,
                 "is the input");
  }
  expect_error(write_diff(forced(), "old", "new", "old").status(), Code::kInvalidArgument,
               "is the input \"old\"");
  EXPECT_EQ(disk_.all(), before);
}

TEST_F(DiffTest, MissingPlacesAreSaid) {
  put_small();
  expect_error(write_diff(work(), "old", "none", "d.dcr").status(), Code::kNotFound, "none");
  expect_error(write_diff(work(), "old", "new", "none/d.dcr").status(), Code::kNotFound, "none");
}

TEST_F(DiffTest, AnUnfinishedOutputOfAnotherRunIsLeftAlone) {
  put_small();
  disk_.put("d.dcr.dcr-partial", Bytes{9});
  ASSERT_TRUE(write_diff(work(), "old", "new", "d.dcr").ok());
  EXPECT_EQ(disk_.get("d.dcr.dcr-partial"), Bytes{9});
  EXPECT_FALSE(disk_.exists("d.dcr.dcr-partial.1"));
}

TEST_F(DiffTest, AFailureAnywhereLeavesNothingBehind) {
  put_small();
  const auto before = disk_.all();
  for (std::uint64_t n = 0;; ++n) {
    FaultFileSystem files(disk_);
    files.set_fault({.operation = n, .kind = Fault::Kind::kFail});
    const Status status = write_diff(work_on(files), "old", "new", "d.dcr").status();
    if (!files.fired()) break;
    expect_error(status, Code::kIo, "No space left on device");
    if (disk_.exists("d.dcr")) {
      // Only the last step, the directory's sync, comes after the rename.
      EXPECT_EQ(n + 1, files.operations());
      ASSERT_TRUE(disk_.remove("d.dcr").ok());
    }
    EXPECT_EQ(disk_.all(), before) << "operation " << n;
  }
}

TEST_F(DiffTest, PowerLossLeavesAllOrNothing) {
  put_small();
  ASSERT_TRUE(write_diff(work(), "old", "new", "whole.dcr").ok());
  const Bytes whole = disk_.get("whole.dcr");
  for (std::uint64_t n = 0;; ++n) {
    FaultFileSystem files(disk_);
    files.set_fault({.operation = n, .kind = Fault::Kind::kKill});
    const Status status = write_diff(work_on(files), "old", "new", "d.dcr").status();
    if (!files.fired()) break;
    for (const Unsynced unsynced : {Unsynced::kNone, Unsynced::kAll, Unsynced::kSome}) {
      const auto after = disk_.recover(unsynced, n);
      if (!after->exists("d.dcr")) continue;
      EXPECT_EQ(after->get("d.dcr"), whole) << "operation " << n;
    }
    clear("d.dcr");
    clear("d.dcr.dcr-partial");
  }
}

TEST_F(DiffTest, AFileThatShrinksIsAnErrorAndLeavesNothing) {
  put_large();
  const auto names = [this] {
    std::vector<std::string> found;
    for (const auto& [name, bytes] : disk_.all()) found.push_back(name);
    return found;
  };
  const std::vector<std::string> before = names();
  FaultFileSystem files(disk_);
  files.before_read(20, [this]() -> Status {
    DCR_ASSIGN(const std::unique_ptr<File> file, disk_.open_write("new/model.safetensors"));
    return file->resize(kMiB);
  });
  expect_error(write_diff(work_on(files), "old", "new", "d.dcr").status(), Code::kIo, "shrank");
  EXPECT_EQ(names(), before);
}

TEST_F(DiffTest, CancellingLeavesNothing) {
  put_large();
  CancelToken cancel;
  Work work = this->work();
  work.cancel = &cancel;
  unsigned calls = 0;
  work.progress = [&](const char*, std::uint64_t, std::uint64_t) {
    if (++calls == 2) cancel.cancel();
  };
  expect_error(write_diff(work, "old", "new", "d.dcr").status(), Code::kCancelled, "cancelled");
  EXPECT_EQ(calls, 2U);
  for (const auto& [name, bytes] : disk_.all()) EXPECT_FALSE(name.starts_with("d.dcr")) << name;
}

TEST_F(DiffTest, ProgressEndsAtAll) {
  put_large();
  Work work = this->work();
  std::uint64_t done = 0, total = 0;
  work.progress = [&](const char* stage, std::uint64_t now, std::uint64_t all) {
    EXPECT_STREQ(stage, "diff");
    EXPECT_GE(now, done);
    done = now;
    total = all;
  };
  ASSERT_TRUE(write_diff(work, "old", "new", "d.dcr").ok());
  EXPECT_EQ(done, total);
  EXPECT_EQ(total, (18 + 9 + 1 + 2) * kMiB + 5);
}

TEST_F(DiffTest, ThePlanKeepsTheMemoryBound) {
  struct Case {
    std::uint64_t memory;
    unsigned threads;
    std::uint64_t window, sealing;
  };
  for (const Case& c : {Case{0, 8, 1, 1}, Case{256 * kMiB, 8, 1, 1}, Case{384 * kMiB, 8, 1, 1},
                        Case{385 * kMiB, 8, 1, 2}, Case{kGiB, 1, 2, 2}, Case{kGiB, 2, 4, 2},
                        Case{kGiB, 64, 7, 2}, Case{64 * kGiB, 64, 128, 2}}) {
    const DiffPlan plan = plan_diff(c.memory, c.threads);
    EXPECT_EQ(plan.window, c.window) << c.memory << " bytes, " << c.threads << " threads";
    EXPECT_EQ(plan.sealing, c.sealing) << c.memory << " bytes, " << c.threads << " threads";
  }
}

}  // namespace
}  // namespace dcr
