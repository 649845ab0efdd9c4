#include "runtime/process_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/assert.h"
#include "tests/support/temp_directory.h"

namespace dcr {
namespace {

// A child process that takes the lock and is then stopped, or sleeps.
class Child {
 public:
  Child(const std::string& path, bool stopped) {
    int ends[2];
    DCR_ASSERT(::pipe(ends) == 0);
    pid_ = ::fork();
    DCR_ASSERT(pid_ >= 0);
    if (pid_ == 0) {
      auto lock = ProcessLock::open(path);
      const bool taken = lock.ok() && (*lock)->lock(1000).ok();
      const char byte = taken ? 'y' : 'n';
      DCR_ASSERT(::write(ends[1], &byte, 1) == 1);
      if (stopped) ::raise(SIGSTOP);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    char byte = 0;
    DCR_ASSERT(::read(ends[0], &byte, 1) == 1);
    DCR_ASSERT(byte == 'y');
    ::close(ends[0]);
    int state = 0;
    if (stopped) DCR_ASSERT(::waitpid(pid_, &state, WUNTRACED) == pid_ && WIFSTOPPED(state));
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  ::pid_t pid() const { return pid_; }
  // Kills it, if it is there, and returns the signal that ended it.
  int end() {
    if (pid_ == 0) return 0;
    ::kill(pid_, SIGKILL);
    int state = 0;
    DCR_ASSERT(::waitpid(pid_, &state, 0) == pid_);
    pid_ = 0;
    return WTERMSIG(state);
  }

 private:
  ::pid_t pid_ = 0;
};

class ProcessLockTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = ProcessLock::open(path_);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    lock_ = std::move(opened).value();
  }

  TempDirectory directory_;
  const std::string path_ = directory_.at("lock");
  std::unique_ptr<ProcessLock> lock_;
};

TEST_F(ProcessLockTest, AWaitIsCancelled) {
  const Child child(path_, false);
  CancelToken cancel;
  cancel.cancel();
  const Status status = lock_->lock(100'000'000, &cancel);
  EXPECT_EQ(status.code(), Code::kCancelled);
  EXPECT_EQ(status.message(), "the wait for " + path_ + " was cancelled");
  EXPECT_FALSE(lock_->stuck().has_value());
}

TEST_F(ProcessLockTest, IsFreeAgainWhenItsProcessDies) {
  {
    Child child(path_, false);
    const Status status = lock_->lock(5);
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_EQ(status.message(), path_ + " was locked by process " + std::to_string(child.pid()) +
                                    " for longer than 5 ms");
    EXPECT_EQ(child.end(), SIGKILL);
  }
  EXPECT_TRUE(lock_->lock(5).ok());
  EXPECT_FALSE(lock_->stuck().has_value());
  lock_->unlock();
}

TEST_F(ProcessLockTest, KillsTheStoppedProcessThatHoldsIt) {
  Child child(path_, true);
  ASSERT_EQ(lock_->lock(5).code(), Code::kUnavailable);
  ASSERT_TRUE(lock_->stuck().has_value());
  EXPECT_EQ(lock_->stuck()->pid, child.pid());
  EXPECT_EQ(lock_->stuck()->start_time, *process_start_time(child.pid()));
  const Result<bool> killed = lock_->kill_stuck();
  ASSERT_TRUE(killed.ok()) << killed.status().message();
  EXPECT_TRUE(*killed);
  EXPECT_EQ(child.end(), SIGKILL);
  EXPECT_TRUE(lock_->lock(0).ok());
}

TEST_F(ProcessLockTest, KillsNobodyElse) {
  EXPECT_FALSE(*lock_->kill_stuck());  // nobody was waited for
  {
    Child stopped(path_, true);
    ASSERT_EQ(lock_->lock(5).code(), Code::kUnavailable);
  }
  EXPECT_FALSE(*lock_->kill_stuck());  // gone
  Child other(path_, true);
  EXPECT_FALSE(*lock_->kill_stuck());  // another process, in another turn
  EXPECT_TRUE(process_start_time(other.pid()).ok());
}

TEST_F(ProcessLockTest, TheStartTimeIsThatOfTheKernel) {
  EXPECT_TRUE(process_start_time(::getpid()).ok());
  EXPECT_EQ(*process_start_time(::getpid()), *process_start_time(::getpid()));
  EXPECT_EQ(process_start_time(std::int64_t{1} << 30).status().code(), Code::kNotFound);
}

TEST_F(ProcessLockTest, OnlyARegularFileCanBeLocked) {
  EXPECT_EQ(ProcessLock::open(directory_.path()).status().code(), Code::kIo);
  EXPECT_EQ(ProcessLock::open(directory_.at("none/lock")).status().code(), Code::kNotFound);
}

TEST(NetworkFileSystem, IsKnownByItsNumber) {
  EXPECT_EQ(network_file_system_name(0x6969), "nfs");
  EXPECT_EQ(network_file_system_name(0xffffffffff534d42), "cifs");
  EXPECT_EQ(network_file_system_name(0xef53), "");
  EXPECT_EQ(network_file_system_name(0x01021994), "");  // tmpfs
  const TempDirectory directory;
  EXPECT_EQ(*network_file_system(directory.path()), "");
  EXPECT_EQ(network_file_system(directory.at("none")).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace dcr
