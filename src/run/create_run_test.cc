// How a run is made, once, and whose its folders have to be.
#include <gtest/gtest.h>

#include "control/sqlite_control.h"
#include "run/process_context.h"
#include "run/run_identity.h"
#include "runtime/file.h"
#include "tests/support/temp_directory.h"

namespace dcr {
namespace {

class CreateRunTest : public testing::Test {
 public:
  CreateRunTest() {
    config.directory = join_path(root.path(), "run");
    config.objects = join_path(root.path(), "objects");
    config.work = join_path(root.path(), "work");
    config.coordinators = {{"coordinator-0", "tcp://127.0.0.1:1", ""}};
  }

  RunId run() const {
    SqliteControl::Options options;
    options.directory = config.directory;
    return SqliteControl::open(options).value()->read()->run;
  }
  bool is_there(const std::string& path) const { return posix_file_system().info(path, true).ok(); }
  std::string creation() const { return join_path(config.directory, "creating.run"); }
  std::string mark() const { return join_path(config.objects, "run"); }
  void make(const std::string& path) {
    ASSERT_TRUE(posix_file_system().make_directory(path, 0700).ok());
  }
  static void write(const std::string& path, const std::string& text) {
    ASSERT_TRUE(replace_file(posix_file_system(), path,
                             {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()},
                             0600)
                    .ok());
  }

  const TempDirectory root;
  RunConfig config;
};

TEST_F(CreateRunTest, IsMadeOnce) {
  ASSERT_TRUE(create_run(config).ok());
  const RunId made = run();
  EXPECT_TRUE(check_objects(config, made).ok());
  EXPECT_FALSE(is_there(creation()));
  ASSERT_TRUE(create_run(config).ok());
  EXPECT_EQ(run(), made);
}

TEST_F(CreateRunTest, WhatWasCutShortIsGoneOnWith) {
  make(config.directory);
  make(config.objects);
  const Result<RunId> begun = begin_creation(config);
  ASSERT_TRUE(begun.ok()) << begun.status().message();
  EXPECT_TRUE(is_there(mark()));
  ASSERT_TRUE(create_run(config).ok());
  EXPECT_EQ(run(), *begun);
  EXPECT_FALSE(is_there(creation()));
}

TEST_F(CreateRunTest, BeforeTheMarkToo) {
  make(config.directory);
  write(creation(), std::string(32, 'c') + "\n");
  ASSERT_TRUE(create_run(config).ok());
  RunId wanted;
  wanted.fill(0xcc);
  EXPECT_EQ(run(), wanted);
  EXPECT_TRUE(check_objects(config, wanted).ok());
}

TEST_F(CreateRunTest, AndAfterTheControlPlaneWasThere) {
  ASSERT_TRUE(create_run(config).ok());
  const RunId made = run();
  write(creation(), std::string(32, 'c') + "\n");
  ASSERT_TRUE(create_run(config).ok());
  EXPECT_EQ(run(), made);
  EXPECT_FALSE(is_there(creation()));
}

TEST_F(CreateRunTest, AnotherRunsObjectsAreLeftAlone) {
  ASSERT_TRUE(create_run(config).ok());
  const RunId made = run();
  RunConfig other = config;
  other.directory = join_path(root.path(), "other");
  for (int i = 0; i < 2; ++i) {
    const Status refused = create_run(other);
    EXPECT_EQ(refused.code(), Code::kMismatch);
    EXPECT_EQ(refused.message(),
              mark() +
                  " says that another run's objects lie there: remove that file with all "
                  "that is beside it, or name another directory; where that run is this one, "
                  "\"directory\" has to be the same directory on all machines of the run, on "
                  "a file system that they share");
  }
  EXPECT_TRUE(check_objects(config, made).ok());
}

TEST_F(CreateRunTest, AnIdThatIsNoneIsNamed) {
  make(config.directory);
  for (const char* text :
       {"", "abc\n", "CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC\n", "ccccccccccccccccccccccccccccccc:\n",
        "cccccccccccccccccccccccccccccccc "}) {
    write(creation(), text);
    const Status refused = create_run(config);
    EXPECT_EQ(refused.code(), Code::kCorrupt) << text;
    EXPECT_EQ(refused.message(), creation() + " holds no run's id: remove that file");
  }
}

TEST_F(CreateRunTest, NobodyElseMayWriteToItsFolders) {
  ASSERT_TRUE(create_run(config).ok());
  const auto open = [this] {
    const CancelToken never;
    ProcessOptions options;
    options.cancel = &never;
    options.clock = &monotonic_clock();
    return open_shared_run(config, options).status();
  };
  for (const std::string& path :
       {config.directory, config.work, config.objects, sources_path(config), keys_path(config)}) {
    for (const std::uint32_t permissions : {0770U, 0702U}) {
      ASSERT_TRUE(posix_file_system().set_permissions(path, permissions).ok());
      for (const Status& refused : {create_run(config), open()}) {
        EXPECT_EQ(refused.code(), Code::kInvalidArgument);
        EXPECT_EQ(refused.message(), path +
                                         ": others may write to this directory of a run: chmod "
                                         "go-w it, or name another");
      }
    }
    ASSERT_TRUE(posix_file_system().set_permissions(path, 0755).ok());
  }
  EXPECT_TRUE(create_run(config).ok());
}

TEST_F(CreateRunTest, NothingIsMadeInAFolderThatOthersMayWriteTo) {
  make(config.directory);
  ASSERT_TRUE(posix_file_system().set_permissions(config.directory, 0770).ok());
  EXPECT_EQ(create_run(config).code(), Code::kInvalidArgument);
  EXPECT_FALSE(is_there(sources_path(config)));
  EXPECT_FALSE(is_there(config.objects));
}

}  // namespace
}  // namespace dcr
