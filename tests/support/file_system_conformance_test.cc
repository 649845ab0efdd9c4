// What every FileSystem does alike, run on each: the operating system's, the one in memory, and
// the latter inside the decorator that injects faults (with none).
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>

#include "runtime/file.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/memory_file_system.h"

namespace dcr {
namespace {

enum class Kind : std::uint8_t { kPosix, kMemory, kFaulty };

class FileSystemTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == Kind::kPosix) {
      std::string pattern = ::testing::TempDir() + "dcr_file_system_test_XXXXXX";
      ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
      directory_ = pattern;
      files_ = &posix_file_system();
      return;
    }
    directory_ = "/disk";
    ASSERT_TRUE(memory_.make_directory(directory_, 0755).ok());
    files_ = GetParam() == Kind::kMemory ? static_cast<FileSystem*>(&memory_) : &faulty_;
  }
  void TearDown() override {
    if (GetParam() == Kind::kPosix) std::filesystem::remove_all(directory_);
  }

  FileSystem& files() { return *files_; }
  std::string at(const std::string& name) const { return join_path(directory_, name); }

  void put(const std::string& name, const Bytes& bytes) {
    auto file = files().create(at(name), 0644);
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_TRUE((*file)->write(0, bytes).ok());
  }

  MemoryFileSystem memory_;
  FaultFileSystem faulty_{memory_};
  FileSystem* files_ = nullptr;
  std::string directory_;
};

void expect_error(const Status& status, Code code, const std::string& path,
                  const std::string& text) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
  EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
}

TEST_P(FileSystemTest, WritesAtPositionsAndReadsThemBack) {
  auto file = files().create(at("a"), 0600);
  ASSERT_TRUE(file.ok());
  const Bytes tail = {7, 8, 9};
  ASSERT_TRUE((*file)->write(5, tail).ok());
  const Bytes head = {1, 2};
  ASSERT_TRUE((*file)->write(0, head).ok());
  ASSERT_TRUE((*file)->sync().ok());
  EXPECT_EQ(*(*file)->size(), 8U);
  Bytes all(8);
  ASSERT_TRUE((*file)->read(0, all).ok());
  EXPECT_EQ(all, (Bytes{1, 2, 0, 0, 0, 7, 8, 9}));
  Bytes nothing;
  EXPECT_TRUE((*file)->read(8, nothing).ok());
}

TEST_P(FileSystemTest, OpenWriteKeepsTheContent) {
  put("a", {1, 2, 3});
  auto file = files().open_write(at("a"));
  ASSERT_TRUE(file.ok());
  const Bytes nine = {9};
  ASSERT_TRUE((*file)->write(1, nine).ok());
  EXPECT_EQ(*read_file(files(), at("a"), 3), (Bytes{1, 9, 3}));
}

TEST_P(FileSystemTest, PositionsBeyondTheSystemsAreErrors) {
  auto file = files().create(at("a"), 0644);
  ASSERT_TRUE(file.ok());
  Bytes byte(1);
  const std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
  expect_error((*file)->read(last, byte), Code::kIo, at("a"), "cannot read");
  expect_error((*file)->write(last, byte), Code::kIo, at("a"), "File too large");
  expect_error((*file)->write(last / 2, byte), Code::kIo, at("a"), "File too large");
  expect_error((*file)->resize(last), Code::kIo, at("a"), "File too large");
}

TEST_P(FileSystemTest, WriteToAFileOpenedForReadingIsAnError) {
  put("a", {1});
  auto file = files().open_read(at("a"));
  ASSERT_TRUE(file.ok());
  expect_error((*file)->write(0, Bytes{2}), Code::kIo, at("a"), "cannot write");
  expect_error((*file)->resize(0), Code::kIo, at("a"), "cannot resize");
}

TEST_P(FileSystemTest, ResizeCutsAndExtends) {
  put("a", {1, 2, 3});
  auto file = files().open_write(at("a"));
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->resize(1).ok());
  ASSERT_TRUE((*file)->resize(3).ok());
  EXPECT_EQ(*read_file(files(), at("a"), 3), (Bytes{1, 0, 0}));
}

TEST_P(FileSystemTest, OpeningNamesWhatIsMissing) {
  expect_error(files().open_read(at("none")).status(), Code::kNotFound, at("none"), "No such file");
  expect_error(files().open_write(at("none")).status(), Code::kNotFound, at("none"),
               "No such file");
  expect_error(files().info(at("none"), true).status(), Code::kNotFound, at("none"),
               "No such file");
  put("file", {1});
  expect_error(files().open_read(at("file/below")).status(), Code::kNotFound, at("file/below"),
               "Not a directory");
}

TEST_P(FileSystemTest, CreateRefusesWhatExistsAndSetsPermissions) {
  put("a", {1});
  expect_error(files().create(at("a"), 0644).status(), Code::kExists, at("a"), "File exists");
  ASSERT_TRUE(files().create(at("b"), 0600).ok());
  EXPECT_EQ(files().info(at("b"), false)->permissions, 0600U);
  ASSERT_TRUE(files().set_permissions(at("b"), 0754).ok());
  EXPECT_EQ(files().info(at("b"), false)->permissions, 0754U);
}

TEST_P(FileSystemTest, RenameReplacesAndRemoveRemoves) {
  put("from", {1});
  put("to", {2});
  ASSERT_TRUE(files().rename(at("from"), at("to")).ok());
  ASSERT_TRUE(files().sync_directory(directory_).ok());
  EXPECT_EQ(*read_file(files(), at("to"), 1), Bytes{1});
  expect_error(files().rename(at("from"), at("to")), Code::kNotFound, at("from"), "cannot rename");
  ASSERT_TRUE(files().remove(at("to")).ok());
  expect_error(files().remove(at("to")), Code::kNotFound, at("to"), "cannot remove");
}

TEST_P(FileSystemTest, DirectoriesAreMadeAndRemovedWhenEmpty) {
  ASSERT_TRUE(files().make_directory(at("d"), 0755).ok());
  expect_error(files().make_directory(at("d"), 0755), Code::kExists, at("d"), "File exists");
  put("d/a", {});
  expect_error(files().remove_directory(at("d")), Code::kIo, at("d"), "not empty");
  ASSERT_TRUE(files().remove(at("d/a")).ok());
  ASSERT_TRUE(files().remove_directory(at("d")).ok());
  expect_error(files().remove_directory(at("d")), Code::kNotFound, at("d"), "No such file");
  expect_error(files().sync_directory(at("d")), Code::kNotFound, at("d"), "cannot sync directory");
}

TEST_P(FileSystemTest, ReadFileKeepsItsLimit) {
  put("a", Bytes(100, 3));
  EXPECT_EQ(*read_file(files(), at("a"), 100), Bytes(100, 3));
  const Status status = read_file(files(), at("a"), 99).status();
  expect_error(status, Code::kTooLarge, at("a"), "100 bytes");
  expect_error(status, Code::kTooLarge, at("a"), "limit of 99");
}

TEST_P(FileSystemTest, ReadPastTheEndSaysThatTheFileShrank) {
  put("a", Bytes(10, 1));
  auto reader = files().open_read(at("a"));
  auto writer = files().open_write(at("a"));
  ASSERT_TRUE(reader.ok() && writer.ok());
  ASSERT_TRUE((*writer)->resize(4).ok());
  Bytes out(6);
  const Status status = (*reader)->read(2, out);
  expect_error(status, Code::kIo, at("a"), "shrank");
  expect_error(status, Code::kIo, at("a"), "ends at byte 4 but 8 are needed");
}

TEST_P(FileSystemTest, AnOpenFileOutlivesItsName) {
  put("a", {1, 2});
  auto file = files().open_read(at("a"));
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(files().remove(at("a")).ok());
  Bytes out(2);
  ASSERT_TRUE((*file)->read(0, out).ok());
  EXPECT_EQ(out, (Bytes{1, 2}));
}

TEST_P(FileSystemTest, ListIsSorted) {
  put("b", {});
  put("a", {});
  ASSERT_TRUE(files().make_directory(at("c"), 0755).ok());
  const auto entries = files().list(directory_);
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries->size(), 3U);
  EXPECT_EQ((*entries)[0].name, "a");
  EXPECT_EQ((*entries)[1].name, "b");
  EXPECT_EQ((*entries)[2].name, "c");
  EXPECT_EQ((*entries)[2].kind, FileKind::kDirectory);
  expect_error(files().list(at("none")).status(), Code::kNotFound, at("none"), "No such file");
}

TEST_P(FileSystemTest, DirectoriesAreRenamedWithWhatIsInside) {
  ASSERT_TRUE(files().make_directory(at("d"), 0755).ok());
  put("d/a", {5});
  ASSERT_TRUE(files().rename(at("d"), at("e")).ok());
  EXPECT_EQ(*read_file(files(), at("e/a"), 1), Bytes{5});
  EXPECT_EQ(files().info(at("d"), false).status().code(), Code::kNotFound);
}

TEST_P(FileSystemTest, InfoTellsOneFileFromAnother) {
  put("a", {1});
  put("b", {1});
  ASSERT_TRUE(files().make_directory(at("c"), 0755).ok());
  const auto a = files().info(at("a"), true), b = files().info(at("b"), true);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(a->inode, b->inode);
  EXPECT_EQ(a->owner, ::geteuid());
  EXPECT_EQ(files().info(at("c/../a"), true)->inode, a->inode);
  EXPECT_EQ(files().info(at("c/.."), true)->inode, files().info(directory_, true)->inode);
  ASSERT_TRUE(files().rename(at("a"), at("b")).ok());
  EXPECT_EQ(files().info(at("b"), true)->inode, a->inode);
}

INSTANTIATE_TEST_SUITE_P(Each, FileSystemTest,
                         ::testing::Values(Kind::kPosix, Kind::kMemory, Kind::kFaulty),
                         [](const ::testing::TestParamInfo<Kind>& kind) {
                           return kind.param == Kind::kPosix    ? "Posix"
                                  : kind.param == Kind::kMemory ? "Memory"
                                                                : "Faulty";
                         });

}  // namespace
}  // namespace dcr
