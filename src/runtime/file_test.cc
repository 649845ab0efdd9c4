#include "runtime/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <numeric>

namespace dcr {
namespace {

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "dcr_file_test_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string at(const std::string& name) const { return join_path(directory_, name); }

  void put(const std::string& name, const Bytes& bytes) {
    auto file = files_.create(at(name), 0644);
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_TRUE((*file)->write(0, bytes).ok());
  }

  FileSystem& files_ = posix_file_system();
  std::string directory_;
};

void expect_error(const Status& status, Code code, const std::string& path,
                  const std::string& text) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
  EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
}

TEST_F(FileTest, WritesAtPositionsAndReadsThemBack) {
  auto file = files_.create(at("a"), 0600);
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

TEST_F(FileTest, OpenWriteKeepsTheContent) {
  put("a", {1, 2, 3});
  auto file = files_.open_write(at("a"));
  ASSERT_TRUE(file.ok());
  const Bytes nine = {9};
  ASSERT_TRUE((*file)->write(1, nine).ok());
  EXPECT_EQ(*read_file(files_, at("a"), 3), (Bytes{1, 9, 3}));
}

TEST_F(FileTest, ReadPastTheEndSaysThatTheFileShrank) {
  put("a", Bytes(10, 1));
  auto file = files_.open_read(at("a"));
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(::truncate(at("a").c_str(), 4), 0);
  Bytes out(6);
  const Status status = (*file)->read(2, out);
  expect_error(status, Code::kIo, at("a"), "shrank");
  expect_error(status, Code::kIo, at("a"), "ends at byte 4 but 8 are needed");
}

TEST_F(FileTest, PositionsBeyondTheSystemsAreErrors) {
  auto file = files_.create(at("a"), 0644);
  ASSERT_TRUE(file.ok());
  Bytes byte(1);
  const std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
  expect_error((*file)->read(last, byte), Code::kIo, at("a"), "cannot read");
  expect_error((*file)->write(last, byte), Code::kIo, at("a"), "File too large");
  expect_error((*file)->write(last / 2, byte), Code::kIo, at("a"), "File too large");
  expect_error((*file)->resize(last), Code::kIo, at("a"), "File too large");
}

TEST_F(FileTest, WriteToAFileOpenedForReadingIsAnError) {
  put("a", {1});
  auto file = files_.open_read(at("a"));
  ASSERT_TRUE(file.ok());
  expect_error((*file)->write(0, Bytes{2}), Code::kIo, at("a"), "cannot write");
  expect_error((*file)->resize(0), Code::kIo, at("a"), "cannot resize");
}

// A full disk, as a process can have it without a mount: a limit on the size of files. The write
// stops short there and the rest is refused.
TEST_F(FileTest, AWriteThatStopsShortIsAnError) {
  auto file = files_.create(at("a"), 0644);
  ASSERT_TRUE(file.ok());
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = (*file)->write(0, Bytes(10000, 5));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  expect_error(status, Code::kIo, at("a"), "File too large");
  EXPECT_EQ(*(*file)->size(), 4096U);
}

TEST_F(FileTest, ResizeCutsAndExtends) {
  put("a", {1, 2, 3});
  auto file = files_.open_write(at("a"));
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->resize(1).ok());
  ASSERT_TRUE((*file)->resize(3).ok());
  EXPECT_EQ(*read_file(files_, at("a"), 3), (Bytes{1, 0, 0}));
}

TEST_F(FileTest, OpeningNamesWhatIsMissing) {
  expect_error(files_.open_read(at("none")).status(), Code::kNotFound, at("none"), "No such file");
  expect_error(files_.open_write(at("none")).status(), Code::kNotFound, at("none"), "No such file");
  expect_error(files_.info(at("none"), true).status(), Code::kNotFound, at("none"), "No such file");
  put("file", {1});
  expect_error(files_.open_read(at("file/below")).status(), Code::kNotFound, at("file/below"),
               "Not a directory");
}

TEST_F(FileTest, OnlyRegularFilesAreOpened) {
  expect_error(files_.open_read(directory_).status(), Code::kIo, directory_, "is a directory");
  ASSERT_EQ(::mkfifo(at("fifo").c_str(), 0600), 0);
  expect_error(files_.open_read(at("fifo")).status(), Code::kIo, at("fifo"), "not a regular file");
}

TEST_F(FileTest, CreateRefusesWhatExistsAndSetsPermissions) {
  put("a", {1});
  expect_error(files_.create(at("a"), 0644).status(), Code::kExists, at("a"), "File exists");
  ASSERT_TRUE(files_.create(at("b"), 0600).ok());
  EXPECT_EQ(files_.info(at("b"), false)->permissions, 0600U);
  ASSERT_TRUE(files_.set_permissions(at("b"), 0754).ok());
  EXPECT_EQ(files_.info(at("b"), false)->permissions, 0754U);
}

TEST_F(FileTest, APathWithANulIsRefused) {
  const std::string path = at("a") + std::string(1, '\0') + "b";
  expect_error(files_.create(path, 0644).status(), Code::kInvalidArgument, at("a"), "NUL");
  expect_error(files_.remove(path), Code::kInvalidArgument, at("a"), "NUL");
  EXPECT_FALSE(std::filesystem::exists(at("a")));
}

TEST_F(FileTest, InfoTellsLinksFromFiles) {
  put("a", {1, 2, 3});
  std::filesystem::create_symlink("a", at("soft"));
  std::filesystem::create_hard_link(at("a"), at("hard"));
  EXPECT_EQ(files_.info(at("soft"), false)->kind, FileKind::kSymlink);
  const auto followed = files_.info(at("soft"), true);
  ASSERT_TRUE(followed.ok());
  EXPECT_EQ(followed->kind, FileKind::kRegular);
  EXPECT_EQ(followed->size, 3U);
  EXPECT_EQ(followed->links, 2U);
  const auto hard = files_.info(at("hard"), false);
  EXPECT_EQ(hard->inode, followed->inode);
  EXPECT_EQ(hard->device, followed->device);
  EXPECT_NE(files_.info(at("soft"), false)->inode, followed->inode);
  EXPECT_EQ(files_.info(directory_, false)->kind, FileKind::kDirectory);
}

TEST_F(FileTest, ListIsSortedAndTellsKinds) {
  put("b", {});
  put("a", {});
  ASSERT_TRUE(files_.make_directory(at("c"), 0755).ok());
  std::filesystem::create_symlink("nowhere", at("d"));
  ASSERT_EQ(::mkfifo(at("e").c_str(), 0600), 0);
  const auto entries = files_.list(directory_);
  ASSERT_TRUE(entries.ok());
  std::vector<std::pair<std::string, FileKind>> found;
  for (const DirectoryEntry& entry : *entries) found.emplace_back(entry.name, entry.kind);
  const std::vector<std::pair<std::string, FileKind>> expected = {{"a", FileKind::kRegular},
                                                                  {"b", FileKind::kRegular},
                                                                  {"c", FileKind::kDirectory},
                                                                  {"d", FileKind::kSymlink},
                                                                  {"e", FileKind::kOther}};
  EXPECT_EQ(found, expected);
  expect_error(files_.list(at("none")).status(), Code::kNotFound, at("none"), "No such file");
}

TEST_F(FileTest, RenameReplacesAndRemoveRemoves) {
  put("from", {1});
  put("to", {2});
  ASSERT_TRUE(files_.rename(at("from"), at("to")).ok());
  ASSERT_TRUE(files_.sync_directory(directory_).ok());
  EXPECT_EQ(*read_file(files_, at("to"), 1), Bytes{1});
  expect_error(files_.rename(at("from"), at("to")), Code::kNotFound, at("from"), "cannot rename");
  ASSERT_TRUE(files_.remove(at("to")).ok());
  expect_error(files_.remove(at("to")), Code::kNotFound, at("to"), "cannot remove");
}

TEST_F(FileTest, DirectoriesAreMadeAndRemovedWhenEmpty) {
  ASSERT_TRUE(files_.make_directory(at("d"), 0755).ok());
  expect_error(files_.make_directory(at("d"), 0755), Code::kExists, at("d"), "File exists");
  put("d/a", {});
  expect_error(files_.remove_directory(at("d")), Code::kIo, at("d"), "not empty");
  ASSERT_TRUE(files_.remove(at("d/a")).ok());
  ASSERT_TRUE(files_.remove_directory(at("d")).ok());
  expect_error(files_.remove_directory(at("d")), Code::kNotFound, at("d"), "No such file");
  expect_error(files_.sync_directory(at("d")), Code::kNotFound, at("d"), "cannot sync directory");
}

TEST_F(FileTest, ReadFileKeepsItsLimit) {
  put("a", Bytes(100, 3));
  EXPECT_EQ(*read_file(files_, at("a"), 100), Bytes(100, 3));
  const Status status = read_file(files_, at("a"), 99).status();
  expect_error(status, Code::kTooLarge, at("a"), "100 bytes");
  expect_error(status, Code::kTooLarge, at("a"), "limit of 99");
}

TEST(PathTest, PartsOfPaths) {
  struct Case {
    const char* path;
    const char* parent;
    const char* base;
  };
  for (const Case& c : {Case{"a", ".", "a"}, Case{"a/b", "a", "b"}, Case{"/a", "/", "a"},
                        Case{"/a/b", "/a", "b"}, Case{"a/b/", "a", "b"}, Case{"a//b", "a", "b"},
                        Case{"/", "/", "/"}, Case{"//a", "/", "a"}, Case{"", ".", ""}}) {
    EXPECT_EQ(parent_path(c.path), c.parent) << c.path;
    EXPECT_EQ(base_name(c.path), c.base) << c.path;
  }
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("/", "b"), "/b");
  EXPECT_EQ(join_path("", "b"), "b");
}

}  // namespace
}  // namespace dcr
