#include "tests/support/memory_file_system.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace dcr {
namespace {

Bytes filled(std::size_t count, int value) {
  return Bytes(count, static_cast<std::uint8_t>(value));
}

TEST(MemoryFileSystemTest, PutAndGet) {
  MemoryFileSystem disk;
  disk.put("/a/b/c", filled(3, 1), 0600);
  disk.put("a/./b//d", filled(2, 2));
  EXPECT_EQ(disk.get("a/b/c"), filled(3, 1));
  EXPECT_TRUE(disk.exists("a/b/d"));
  EXPECT_FALSE(disk.exists("a/b/e"));
  EXPECT_EQ(disk.info("a/b/c", true)->permissions, 0600U);
  const std::map<std::string, Bytes> all = {{"a/b/c", filled(3, 1)}, {"a/b/d", filled(2, 2)}};
  EXPECT_EQ(disk.all(), all);
  EXPECT_EQ(disk.recover(Unsynced::kNone)->all(), all);
}

TEST(MemoryFileSystemTest, LinksOfBothKinds) {
  MemoryFileSystem disk;
  disk.put("d/a", filled(3, 1));
  disk.put_symlink("d/soft", "a");
  disk.put_symlink("d/loop", "loop");
  disk.put_hard_link("d/hard", "d/a");
  EXPECT_EQ(disk.info("d/soft", false)->kind, FileKind::kSymlink);
  EXPECT_EQ(disk.info("d/soft", true)->kind, FileKind::kRegular);
  EXPECT_EQ(disk.info("d/a", false)->links, 2U);
  EXPECT_EQ(disk.open_read("d/loop").status().code(), Code::kIo);
  const auto after = disk.recover(Unsynced::kNone);
  EXPECT_EQ(after->info("d/hard", false)->links, 2U);
  EXPECT_EQ(after->info("d/soft", false)->kind, FileKind::kSymlink);
  ASSERT_TRUE((*after->open_write("d/soft"))->write(0, filled(1, 9)).ok());
  EXPECT_EQ(after->get("d/hard"), (Bytes{9, 1, 1}));
  ASSERT_TRUE(after->remove("d/a").ok());
  EXPECT_EQ(after->info("d/hard", false)->links, 1U);
}

TEST(MemoryFileSystemTest, AFileThatMayNotBeWritten) {
  MemoryFileSystem disk;
  disk.put("a", filled(1, 1), 0444);
  const Status status = disk.open_write("a").status();
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(status.message().find("Permission denied"), std::string::npos) << status.message();
}

TEST(MemoryFileSystemTest, RenameAcrossDirectoriesIsRefused) {
  MemoryFileSystem disk;
  disk.put("a/f", filled(1, 1));
  disk.put("b/g", filled(1, 1));
  EXPECT_EQ(disk.rename("a/f", "b/f").code(), Code::kUnsupported);
}

TEST(PowerLossTest, SyncedWritesStayAndOthersMayGo) {
  MemoryFileSystem disk;
  disk.put("a", filled(4, 1));
  auto file = disk.open_write("a");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->write(0, filled(2, 2)).ok());
  ASSERT_TRUE((*file)->sync().ok());
  ASSERT_TRUE((*file)->write(3, filled(3, 3)).ok());
  EXPECT_EQ(disk.recover(Unsynced::kNone)->get("a"), (Bytes{2, 2, 1, 1}));
  EXPECT_EQ(disk.recover(Unsynced::kAll)->get("a"), (Bytes{2, 2, 1, 3, 3, 3}));
  EXPECT_EQ(disk.get("a"), (Bytes{2, 2, 1, 3, 3, 3})) << "recover changed the original";
}

TEST(PowerLossTest, ASyncedFileWithoutItsNameIsGone) {
  MemoryFileSystem disk;
  auto file = disk.create("a", 0644);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->write(0, filled(2, 1)).ok());
  ASSERT_TRUE((*file)->sync().ok());
  EXPECT_FALSE(disk.recover(Unsynced::kNone)->exists("a"));
  EXPECT_TRUE(disk.recover(Unsynced::kAll)->exists("a"));
  ASSERT_TRUE(disk.sync_directory(".").ok());
  EXPECT_EQ(disk.recover(Unsynced::kNone)->get("a"), filled(2, 1));
}

TEST(PowerLossTest, ANameWithoutItsContentIsEmpty) {
  MemoryFileSystem disk;
  auto file = disk.create("a", 0644);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->write(0, filled(2, 1)).ok());
  ASSERT_TRUE(disk.sync_directory("/").ok());
  EXPECT_EQ(disk.recover(Unsynced::kNone)->get("a"), Bytes{});
}

TEST(PowerLossTest, ARenameIsWholeOrNotThere) {
  MemoryFileSystem disk;
  disk.put("d/old", filled(1, 1));
  disk.put("d/new", filled(1, 2));
  ASSERT_TRUE(disk.rename("d/new", "d/old").ok());
  const std::map<std::string, Bytes> before = {{"d/old", filled(1, 1)}, {"d/new", filled(1, 2)}};
  const std::map<std::string, Bytes> after = {{"d/old", filled(1, 2)}};
  EXPECT_EQ(disk.recover(Unsynced::kNone)->all(), before);
  EXPECT_EQ(disk.recover(Unsynced::kAll)->all(), after);
  std::set<std::map<std::string, Bytes>> seen;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    seen.insert(disk.recover(Unsynced::kSome, seed)->all());
  }
  EXPECT_EQ(seen, (std::set<std::map<std::string, Bytes>>{before, after}));
  ASSERT_TRUE(disk.sync_directory("d").ok());
  EXPECT_EQ(disk.recover(Unsynced::kNone)->all(), after);
}

TEST(PowerLossTest, ARemovalComesBackUntilItsDirectoryIsSynced) {
  MemoryFileSystem disk;
  disk.put("d/a", filled(1, 1));
  ASSERT_TRUE(disk.remove("d/a").ok());
  EXPECT_FALSE(disk.exists("d/a"));
  EXPECT_EQ(disk.recover(Unsynced::kNone)->get("d/a"), filled(1, 1));
  ASSERT_TRUE(disk.sync_directory("d").ok());
  EXPECT_FALSE(disk.recover(Unsynced::kNone)->exists("d/a"));
}

TEST(PowerLossTest, DirectoryOperationsSurviveInTheirOrder) {
  MemoryFileSystem disk;
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(disk.create(name, 0644).ok());
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto after = disk.recover(Unsynced::kSome, seed);
    std::string names;
    for (const auto& [name, bytes] : after->all()) names += name;
    seen.insert(names);
  }
  EXPECT_EQ(seen, (std::set<std::string>{"", "a", "ab", "abc"}));
}

// One write over three sectors (the first and the last in part): each survives or not by itself.
TEST(PowerLossTest, AWriteSurvivesBySectors) {
  MemoryFileSystem disk;
  disk.put("a", filled(2048, 0));
  auto file = disk.open_write("a");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->write(500, filled(600, 7)).ok());
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Bytes bytes = disk.recover(Unsynced::kSome, seed)->get("a");
    ASSERT_EQ(bytes.size(), 2048U);
    std::string kept;
    for (const auto& [begin, end] : {std::pair{0, 500}, std::pair{500, 512}, std::pair{512, 1024},
                                     std::pair{1024, 1100}, std::pair{1100, 2048}}) {
      const std::uint8_t first = bytes[static_cast<std::size_t>(begin)];
      ASSERT_TRUE(std::all_of(bytes.begin() + begin, bytes.begin() + end,
                              [&](std::uint8_t byte) { return byte == first; }))
          << "seed " << seed << ": [" << begin << ", " << end << ") was torn within a sector";
      kept += first == 0 ? '.' : 'x';
    }
    seen.insert(kept);
  }
  EXPECT_EQ(seen, (std::set<std::string>{".....", ".x...", "..x..", "...x.", ".xx..", ".x.x.",
                                         "..xx.", ".xxx."}));
}

TEST(PowerLossTest, AnAppendMayLeaveOnlyItsLength) {
  MemoryFileSystem disk;
  disk.put("a", filled(512, 1));
  auto file = disk.open_write("a");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->write(512, filled(512, 2)).ok());
  std::set<Bytes> seen;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    seen.insert(disk.recover(Unsynced::kSome, seed)->get("a"));
  }
  Bytes with_data = filled(512, 1);
  with_data.resize(1024, 2);
  Bytes with_length = filled(512, 1);
  with_length.resize(1024, 0);
  EXPECT_EQ(seen, (std::set<Bytes>{filled(512, 1), with_data, with_length}));
}

TEST(PowerLossTest, AResizeSurvivesOrNot) {
  MemoryFileSystem disk;
  disk.put("a", filled(10, 1));
  ASSERT_TRUE((*disk.open_write("a"))->resize(4).ok());
  ASSERT_TRUE(disk.set_permissions("a", 0600).ok());
  std::set<std::pair<std::size_t, std::uint32_t>> seen;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto after = disk.recover(Unsynced::kSome, seed);
    seen.emplace(after->get("a").size(), after->info("a", false)->permissions);
  }
  EXPECT_EQ(seen, (std::set<std::pair<std::size_t, std::uint32_t>>{
                      {4, 0600}, {4, 0644}, {10, 0600}, {10, 0644}}));
}

TEST(PowerLossTest, TheSameSeedGivesTheSameState) {
  MemoryFileSystem disk;
  auto file = disk.create("a", 0644);
  ASSERT_TRUE(file.ok());
  for (std::uint64_t i = 0; i < 20; ++i) {
    ASSERT_TRUE((*file)->write(i * 700, filled(1000, static_cast<int>(i))).ok());
  }
  ASSERT_TRUE(disk.sync_directory("/").ok());
  EXPECT_EQ(disk.recover(Unsynced::kSome, 5)->all(), disk.recover(Unsynced::kSome, 5)->all());
  EXPECT_NE(disk.recover(Unsynced::kSome, 5)->all(), disk.recover(Unsynced::kSome, 6)->all());
}

TEST(PowerLossTest, WhatSurvivedIsDurable) {
  MemoryFileSystem disk;
  auto file = disk.create("a", 0644);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->write(0, filled(5, 1)).ok());
  const auto after = disk.recover(Unsynced::kAll);
  EXPECT_EQ(after->recover(Unsynced::kNone)->get("a"), filled(5, 1));
  ASSERT_TRUE((*file)->write(0, filled(5, 2)).ok());
  EXPECT_EQ(after->get("a"), filled(5, 1)) << "the two share state";
}

}  // namespace
}  // namespace dcr
