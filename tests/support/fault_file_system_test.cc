#include "tests/support/fault_file_system.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/memory_file_system.h"

namespace dcr {
namespace {

const Bytes kOld = {1, 1, 1, 1};
const Bytes kNew = {2, 2, 2, 2};

// Writes `kNew` under "d/a" the safe way: beside, synced, renamed, directory synced.
Status replace(FileSystem& files) {
  DCR_ASSIGN(const std::unique_ptr<File> file, files.create("d/a.tmp", 0644));
  DCR_TRY(file->write(0, kNew));
  DCR_TRY(file->sync());
  DCR_TRY(files.rename("d/a.tmp", "d/a"));
  return files.sync_directory("d");
}

constexpr std::uint64_t kReplaceOperations = 5;

TEST(FaultFileSystemTest, WithoutAFaultItOnlyCounts) {
  MemoryFileSystem disk;
  disk.put("d/a", kOld);
  FaultFileSystem files(disk);
  ASSERT_TRUE(replace(files).ok());
  EXPECT_EQ(files.operations(), kReplaceOperations);
  EXPECT_EQ(files.trace(),
            (std::vector<std::string>{"create d/a.tmp", "write d/a.tmp 0+4", "sync d/a.tmp",
                                      "rename d/a.tmp d/a", "sync_directory d"}));
  EXPECT_FALSE(files.fired());
  EXPECT_EQ(files.reads(), 0U);
  ASSERT_TRUE(read_file(files, "d/a", 10).ok());
  EXPECT_EQ(files.reads(), 1U);
  EXPECT_EQ(files.operations(), kReplaceOperations);
  ASSERT_TRUE(files.make_directory("e", 0755).ok());
  ASSERT_TRUE(files.set_permissions("e", 0700).ok());
  ASSERT_TRUE(files.remove_directory("e").ok());
  ASSERT_TRUE((*files.open_write("d/a"))->resize(2).ok());
  ASSERT_TRUE(files.remove("d/a").ok());
  EXPECT_EQ(files.operations(), kReplaceOperations + 5);
}

TEST(FaultFileSystemTest, AFailedOperationDoesNothingAndLifeGoesOn) {
  MemoryFileSystem disk;
  disk.put("d/a", kOld);
  FaultFileSystem files(disk);
  files.set_fault({.operation = 1, .kind = Fault::Kind::kFail});
  const Status status = replace(files);
  EXPECT_TRUE(files.fired());
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_EQ(status.message(), "write d/a.tmp 0+4: No space left on device (planned fault)");
  EXPECT_EQ(disk.get("d/a.tmp"), Bytes{});
  EXPECT_TRUE(files.remove("d/a.tmp").ok());
}

TEST(FaultFileSystemTest, AFullDiskMayTakeTheFirstHalf) {
  MemoryFileSystem disk;
  disk.put("d/a", kOld);
  FaultFileSystem files(disk);
  files.set_fault({.operation = 1,
                   .kind = Fault::Kind::kFail,
                   .half_done = true,
                   .status = {Code::kIo, "quota"}});
  EXPECT_EQ(replace(files).message(), "write d/a.tmp 0+4: quota");
  EXPECT_EQ(disk.get("d/a.tmp"), (Bytes{2, 2}));
}

TEST(FaultFileSystemTest, AKillEndsEverything) {
  MemoryFileSystem disk;
  disk.put("d/a", kOld);
  FaultFileSystem files(disk);
  const auto reader = files.open_read("d/a");
  ASSERT_TRUE(reader.ok());
  files.set_fault({.operation = 2});
  EXPECT_FALSE(replace(files).ok());
  EXPECT_TRUE(files.fired());
  EXPECT_EQ(files.operations(), 3U);
  Bytes byte(1);
  EXPECT_FALSE((*reader)->read(0, byte).ok());
  EXPECT_FALSE((*reader)->size().ok());
  EXPECT_FALSE(files.open_read("d/a").ok());
  EXPECT_FALSE(files.open_write("d/a").ok());
  EXPECT_FALSE(files.info("d/a", false).ok());
  EXPECT_FALSE(files.list("d").ok());
  EXPECT_FALSE(files.remove("d/a").ok());
  EXPECT_EQ(files.operations(), 3U) << "calls of a dead process were counted";
  EXPECT_EQ(disk.get("d/a"), kOld);
  EXPECT_EQ(disk.get("d/a.tmp"), kNew) << "what was written before the kill is visible";
}

TEST(FaultFileSystemTest, AKillInTheMiddleOfAnOperation) {
  for (std::uint64_t n = 0; n < kReplaceOperations; ++n) {
    MemoryFileSystem disk;
    disk.put("d/a", kOld);
    FaultFileSystem files(disk);
    files.set_fault({.operation = n, .half_done = true});
    EXPECT_FALSE(replace(files).ok()) << n;
    EXPECT_EQ(disk.get("d/a"), n < 3 ? kOld : kNew) << n;
    if (n < 3) {
      EXPECT_EQ(disk.get("d/a.tmp"), n == 0 ? Bytes{} : n == 1 ? (Bytes{2, 2}) : kNew);
    }
  }
}

// The pattern that all code which replaces files is tested with: it holds for `replace`.
TEST(FaultFileSystemTest, AReplacementSurvivesEveryCrash) {
  std::uint64_t n = 0;
  for (bool more = true; more; ++n) {
    MemoryFileSystem disk;
    disk.put("d/a", kOld);
    FaultFileSystem files(disk);
    files.set_fault({.operation = n});
    const bool done = replace(files).ok();
    more = files.fired();
    EXPECT_EQ(done, !more);
    EXPECT_TRUE(disk.get("d/a") == kOld || disk.get("d/a") == kNew) << n;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const Unsynced unsynced = seed == 0   ? Unsynced::kNone
                                : seed == 1 ? Unsynced::kAll
                                            : Unsynced::kSome;
      const Bytes found = disk.recover(unsynced, seed)->get("d/a");
      EXPECT_TRUE(found == kNew || (!done && found == kOld))
          << "operation " << n << " seed " << seed;
    }
  }
  EXPECT_EQ(n, kReplaceOperations + 1);
}

// And the harness finds what is wrong: without the sync, a power loss can leave an empty file.
TEST(FaultFileSystemTest, AMissingSyncIsFound) {
  MemoryFileSystem disk;
  disk.put("d/a", kOld);
  {
    const auto file = disk.create("d/a.tmp", 0644);
    ASSERT_TRUE((*file)->write(0, kNew).ok());
  }
  ASSERT_TRUE(disk.rename("d/a.tmp", "d/a").ok());
  ASSERT_TRUE(disk.sync_directory("d").ok());
  EXPECT_EQ(disk.recover(Unsynced::kNone)->get("d/a"), Bytes{});
}

TEST(FaultFileSystemTest, AFileThatShrinksWhileItIsRead) {
  MemoryFileSystem disk;
  disk.put("d/a", Bytes(100, 1));
  FaultFileSystem files(disk);
  files.before_read(1, [&]() -> Status {
    DCR_ASSIGN(const std::unique_ptr<File> file, disk.open_write("d/a"));
    return file->resize(30);
  });
  const auto file = files.open_read("d/a");
  ASSERT_TRUE(file.ok());
  Bytes part(50);
  EXPECT_TRUE((*file)->read(0, part).ok());
  const Status status = (*file)->read(50, part);
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(status.message().find("d/a"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("shrank"), std::string::npos) << status.message();
}

TEST(FaultFileSystemTest, AReadThatFails) {
  MemoryFileSystem disk;
  disk.put("d/a", Bytes(100, 1));
  FaultFileSystem files(disk);
  files.before_read(0, [] { return Status(Code::kIo, "bad sector"); });
  EXPECT_EQ(read_file(files, "d/a", 100).status().message(), "bad sector");
  EXPECT_TRUE(read_file(files, "d/a", 100).ok());
}

}  // namespace
}  // namespace dcr
