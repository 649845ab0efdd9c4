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

TEST_F(FileTest, OnlyRegularFilesAreOpened) {
  expect_error(files_.open_read(directory_).status(), Code::kIo, directory_, "is a directory");
  ASSERT_EQ(::mkfifo(at("fifo").c_str(), 0600), 0);
  expect_error(files_.open_read(at("fifo")).status(), Code::kIo, at("fifo"), "not a regular file");
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
