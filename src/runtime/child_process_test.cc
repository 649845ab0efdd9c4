#include "runtime/child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "tests/support/temp_directory.h"

namespace dcr {
namespace {

using State = ChildProcess::State;

void wait_for(ChildProcess& child, State state) {
  for (int i = 0; i < 60'000 && child.poll() != state; ++i) ::usleep(1000);
  ASSERT_EQ(child.poll(), state);
}

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(ChildProcess, RunsAProgramWhoseOutputGoesToTheLog) {
  const TempDirectory directory;
  const std::string log = directory.path() + "/log";
  for (int i = 0; i < 2; ++i) {
    auto child = ChildProcess::start({"/bin/sh", "-c", "echo out; echo error >&2; exit 3"}, log);
    ASSERT_TRUE(child.ok()) << child.status().message();
    wait_for(**child, State::kExited);
    EXPECT_EQ((*child)->code(), 3);
  }
  EXPECT_EQ(text_of(log), "out\nerror\nout\nerror\n");
}

TEST(DetachedProcess, HasASessionAndNoFileOfThisOne) {
  const TempDirectory directory;
  const std::string log = directory.path() + "/log";
  const int inherited = ::open(directory.path().c_str(), O_RDONLY);  // without O_CLOEXEC
  ASSERT_GE(inherited, 0);
  const auto pid = start_detached(
      {"/bin/sh", "-c", "ls /proc/self/fd | tr '\\n' ' '; ps -o sid= -p $$; echo >&2 error"}, log);
  ::close(inherited);
  ASSERT_TRUE(pid.ok()) << pid.status().message();
  for (int i = 0; i < 60'000 && !collect_detached(*pid); ++i) ::usleep(1000);
  EXPECT_TRUE(collect_detached(*pid));  // nothing is left of it
  std::string text = text_of(log);
  // 3 is what ls reads the folder by.
  EXPECT_TRUE(text.starts_with("0 1 2 3 ")) << text;
  text.erase(0, 8);
  text.erase(0, text.find_first_not_of(' '));
  EXPECT_EQ(text, std::to_string(*pid) + "\nerror\n");
}

TEST(DetachedProcess, SaysThatAProgramCannotBeRun) {
  const TempDirectory directory;
  const auto pid = start_detached({directory.path() + "/none"}, directory.path() + "/log");
  EXPECT_EQ(pid.status().message(),
            "cannot run " + directory.path() + "/none: No such file or directory");
}

TEST(ChildProcess, SaysThatAProgramCannotBeRun) {
  const TempDirectory directory;
  const auto child = ChildProcess::start({directory.path() + "/none"}, directory.path() + "/log");
  ASSERT_FALSE(child.ok());
  EXPECT_EQ(child.status().code(), Code::kIo);
  EXPECT_EQ(child.status().message(),
            "cannot run " + directory.path() + "/none: No such file or directory");
}

TEST(ChildProcess, IsPausedResumedAndKilled) {
  const TempDirectory directory;
  auto child = ChildProcess::start({"/bin/sleep", "1000"}, directory.path() + "/log");
  ASSERT_TRUE(child.ok()) << child.status().message();
  EXPECT_EQ((*child)->poll(), State::kRuns);
  (*child)->pause();
  wait_for(**child, State::kStopped);
  (*child)->resume();
  wait_for(**child, State::kRuns);
  EXPECT_GT((*child)->processor_nanoseconds(), 0U);
  (*child)->terminate();
  wait_for(**child, State::kKilled);
  EXPECT_EQ((*child)->code(), SIGTERM);
  EXPECT_EQ((*child)->processor_nanoseconds(), 0U);
}

TEST(ChildProcess, EndsWithItsObject) {
  const TempDirectory directory;
  std::int64_t pid = 0;
  {
    auto child = ChildProcess::start({"/bin/sleep", "1000"}, directory.path() + "/log");
    ASSERT_TRUE(child.ok()) << child.status().message();
    pid = (*child)->pid();
    EXPECT_EQ(::kill(static_cast<pid_t>(pid), 0), 0);
  }
  EXPECT_NE(::kill(static_cast<pid_t>(pid), 0), 0);
}

TEST(ChildProcess, KillsAndPausesItself) {
  const TempDirectory directory;
  // The shell stands for a process that does so: the signals are the same.
  EXPECT_EXIT(kill_this_process(), testing::KilledBySignal(SIGKILL), "");
  auto child =
      ChildProcess::start({"/bin/sh", "-c", "kill -STOP $$; exit 0"}, directory.path() + "/log");
  ASSERT_TRUE(child.ok()) << child.status().message();
  wait_for(**child, State::kStopped);
  (*child)->resume();
  wait_for(**child, State::kExited);
}

}  // namespace
}  // namespace dcr
