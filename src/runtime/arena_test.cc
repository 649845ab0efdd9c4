#include "runtime/arena.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "tests/support/temp_directory.h"

namespace dcr {
namespace {

// Bytes of this process in memory because of files it maps, and all.
std::uint64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  std::uint64_t size = 0;
  std::uint64_t resident = 0;
  in >> size >> resident;
  return resident * 4096;
}

TEST(Arena, AnonymousIsZeroedAndMoves) {
  Result<Arena> made = Arena::anonymous(10'000'000);
  ASSERT_TRUE(made.ok()) << made.status().message();
  Arena arena = std::move(made).value();
  ASSERT_EQ(arena.bytes().size(), 10'000'000u);
  EXPECT_FALSE(arena.in_file());
  EXPECT_TRUE(std::all_of(arena.bytes().begin(), arena.bytes().end(),
                          [](std::uint8_t byte) { return byte == 0; }));
  arena.bytes()[9'999'999] = 7;
  arena.release(0, 10'000'000);
  Arena moved = std::move(arena);
  EXPECT_EQ(moved.bytes()[9'999'999], 7);
  Arena assigned;
  EXPECT_TRUE(assigned.bytes().empty());
  assigned = std::move(moved);
  EXPECT_EQ(assigned.bytes()[9'999'999], 7);
}

TEST(Arena, OfNoBytes) {
  const TempDirectory directory;
  for (const Result<Arena>& made :
       {Arena::anonymous(0), Arena::mapped(directory.path() + "/arena", 0)}) {
    ASSERT_TRUE(made.ok());
    EXPECT_TRUE(made->bytes().empty());
    made->release(0, 0);
  }
}

TEST(Arena, InAFileWithoutAName) {
  const TempDirectory directory;
  const std::string path = directory.path() + "/arena";
  Result<Arena> made = Arena::mapped(path, 1'000'001);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_TRUE(made->in_file());
  struct stat info = {};
  EXPECT_NE(::stat(path.c_str(), &info), 0);
  EXPECT_TRUE(std::all_of(made->bytes().begin(), made->bytes().end(),
                          [](std::uint8_t byte) { return byte == 0; }));
  for (std::size_t i = 0; i < made->bytes().size(); ++i) {
    made->bytes()[i] = static_cast<std::uint8_t>(i * 7);
  }
  made->release(5, 999'000);
  made->release(0, 1'000'001);
  for (std::size_t i = 0; i < made->bytes().size(); ++i) {
    ASSERT_EQ(made->bytes()[i], static_cast<std::uint8_t>(i * 7)) << i;
  }
}

TEST(Arena, ReleasedPagesOfAFileLeaveTheProcess) {
  const TempDirectory directory;
  constexpr std::uint64_t kBytes = 64 << 20;
  const Result<Arena> made = Arena::mapped(directory.path() + "/arena", kBytes);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const std::uint64_t before = resident_bytes();
  std::uint64_t most = 0;
  for (std::uint64_t at = 0; at < kBytes; at += 1 << 20) {
    std::fill_n(made->bytes().data() + at, 1 << 20, std::uint8_t{1});
    made->release(at, 1 << 20);
    most = std::max(most, resident_bytes());
  }
  EXPECT_LT(most, before + (8 << 20));
  EXPECT_EQ(made->bytes()[kBytes - 1], 1);
}

TEST(Arena, Errors) {
  const TempDirectory directory;
  const std::string path = directory.path() + "/there";
  std::ofstream(path) << "x";
  const Result<Arena> exists = Arena::mapped(path, 100);
  EXPECT_EQ(exists.status().code(), Code::kExists);
  EXPECT_EQ(exists.status().message(),
            "cannot make an arena of 100 bytes in " + path + ": File exists");
  const Result<Arena> nowhere = Arena::mapped(directory.path() + "/none/arena", 100);
  EXPECT_EQ(nowhere.status().code(), Code::kIo);
  const std::string full_path = directory.path() + "/full";
  EXPECT_EQ(Arena::mapped(full_path, std::uint64_t{1} << 46).status().code(), Code::kIo);
  struct stat info = {};
  EXPECT_NE(::stat(full_path.c_str(), &info), 0);
  const Result<Arena> huge = Arena::anonymous(~std::uint64_t{0});
  EXPECT_EQ(huge.status().code(), Code::kIo);
  EXPECT_EQ(huge.status().message(),
            "cannot make an arena of 18446744073709551615 bytes: Cannot allocate memory");
}

}  // namespace
}  // namespace dcr
