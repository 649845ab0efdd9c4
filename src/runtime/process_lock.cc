#include "runtime/process_lock.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/cancelled.h"
#include "runtime/file.h"

namespace dcr {
namespace {

constexpr std::uint64_t kSleepMsMax = 20;
constexpr int kDeathMsMax = 10'000;
constexpr std::uint64_t kStatBytesMax = 4096;

Status lock_error(const std::string& what, const std::string& path, int error) {
  return {error == ENOENT ? Code::kNotFound : Code::kIo,
          "cannot " + what + " " + path + ": " + std::generic_category().message(error)};
}

struct flock whole_file(short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

// A descriptor of a process that closes itself.
class ProcessDescriptor {
 public:
  explicit ProcessDescriptor(std::int64_t pid)
      : fd_(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0))) {}
  ~ProcessDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  ProcessDescriptor(const ProcessDescriptor&) = delete;
  ProcessDescriptor& operator=(const ProcessDescriptor&) = delete;

  int fd() const { return fd_; }
  bool kill() const { return ::syscall(SYS_pidfd_send_signal, fd_, SIGKILL, nullptr, 0) == 0; }
  bool gone_within(int milliseconds) const {
    struct pollfd wanted = {fd_, POLLIN, 0};
    return ::poll(&wanted, 1, milliseconds) == 1;
  }

 private:
  const int fd_;
};

}  // namespace

Result<std::uint64_t> process_start_time(std::int64_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return lock_error("open", path, errno);
  char buffer[kStatBytesMax];
  const ssize_t size = ::read(fd, buffer, sizeof(buffer));
  const int error = errno;
  ::close(fd);
  if (size < 0) return lock_error("read", path, error == ESRCH ? ENOENT : error);
  std::string_view text(buffer, static_cast<std::size_t>(size));
  // The second field is the program's name in parentheses, and may hold anything; the start time is
  // the 22nd, which is the 20th after it.
  text.remove_prefix(std::min(text.size(), text.rfind(')') + 1));
  for (int field = 0; field < 20; ++field) {
    text.remove_prefix(std::min(text.size(), text.find(' ') + 1));
  }
  std::uint64_t start_time = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), start_time).ec != std::errc()) {
    return Status(Code::kIo, path + " has no start time");
  }
  return start_time;
}

Result<std::unique_ptr<ProcessLock>> ProcessLock::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return lock_error("open", path, errno);
  struct stat info = {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return Status(Code::kIo, "cannot lock " + path + ": it is not a regular file");
  }
  struct Made : ProcessLock {
    Made(std::string name, int descriptor) : ProcessLock(std::move(name), descriptor) {}
  };
  return std::unique_ptr<ProcessLock>(std::make_unique<Made>(path, fd));
}

ProcessLock::~ProcessLock() { ::close(fd_); }

std::uint64_t ProcessLock::read_turn() const {
  std::uint8_t bytes[8] = {};
  if (::pread(fd_, bytes, sizeof(bytes), 0) != static_cast<ssize_t>(sizeof(bytes))) return 0;
  return load_little<std::uint64_t>(bytes);
}

Result<std::optional<LockHolder>> ProcessLock::holder() const {
  struct flock lock = whole_file(F_WRLCK);
  if (::fcntl(fd_, F_GETLK, &lock) != 0) return lock_error("examine the lock of", path_, errno);
  // A pid of 0 or -1 belongs to a process that this one cannot see.
  if (lock.l_type == F_UNLCK || lock.l_pid <= 0) return std::optional<LockHolder>();
  const Result<std::uint64_t> start_time = process_start_time(lock.l_pid);
  if (!start_time.ok()) return std::optional<LockHolder>();
  return std::optional<LockHolder>({lock.l_pid, *start_time, read_turn()});
}

Result<bool> ProcessLock::is_locked() const {
  struct flock lock = whole_file(F_WRLCK);
  if (::fcntl(fd_, F_GETLK, &lock) != 0) return lock_error("examine the lock of", path_, errno);
  return lock.l_type != F_UNLCK;
}

Result<bool> ProcessLock::try_lock() {
  struct flock lock = whole_file(F_WRLCK);
  if (::fcntl(fd_, F_SETLK, &lock) != 0) {
    if (errno == EACCES || errno == EAGAIN || errno == EINTR) return false;
    return lock_error("lock", path_, errno);
  }
  std::uint8_t bytes[8];
  store_little<std::uint64_t>(bytes, read_turn() + 1);
  if (::pwrite(fd_, bytes, sizeof(bytes), 0) != static_cast<ssize_t>(sizeof(bytes))) {
    const int error = errno;
    unlock();
    return lock_error("write", path_, error);
  }
  return true;
}

Status ProcessLock::lock(std::uint64_t deadline_ms, const CancelToken* cancel) {
  stuck_.reset();
  DCR_ASSIGN(bool taken, try_lock());
  if (taken) return {};
  DCR_ASSIGN(const std::optional<LockHolder> first, holder());
  std::uint64_t slept_ms = 0, sleep_ms = 1;
  while (!taken && slept_ms < deadline_ms) {
    if (!check_cancelled(cancel).ok()) {
      return {Code::kCancelled, "the wait for " + path_ + " was cancelled"};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(sleep_ms));
    slept_ms += sleep_ms;
    sleep_ms = std::min(sleep_ms * 2, kSleepMsMax);
    DCR_ASSIGN(taken, try_lock());
  }
  if (taken) return {};
  DCR_ASSIGN(const std::optional<LockHolder> last, holder());
  if (first && first == last) stuck_ = last;
  return {Code::kUnavailable, path_ + " was locked by " +
                                  (last ? "process " + std::to_string(last->pid)
                                        : std::string("a process out of sight")) +
                                  " for longer than " + std::to_string(deadline_ms) + " ms"};
}

void ProcessLock::unlock() {
  struct flock lock = whole_file(F_UNLCK);
  static_cast<void>(::fcntl(fd_, F_SETLK, &lock));
}

Result<bool> ProcessLock::kill_stuck() {
  if (!stuck_) return false;
  // The descriptor names one process for good; if that still holds the lock, it is the right one.
  const ProcessDescriptor process(stuck_->pid);
  if (process.fd() < 0) {
    if (errno == ESRCH) return false;
    return lock_error("name the process that locks", path_, errno);
  }
  DCR_ASSIGN(const std::optional<LockHolder> now, holder());
  if (now != stuck_) return false;
  if (!process.kill()) {
    if (errno == ESRCH) return false;
    return lock_error("kill the process that locks", path_, errno);
  }
  if (!process.gone_within(kDeathMsMax)) {
    return Status(Code::kUnavailable, "process " + std::to_string(stuck_->pid) + ", which locks " +
                                          path_ + ", was killed but does not end");
  }
  stuck_.reset();
  return true;
}

Result<std::string> network_file_system(const std::string& path) {
  struct statfs info = {};
  if (::statfs(path.c_str(), &info) != 0) return lock_error("examine", path, errno);
  return network_file_system_name(static_cast<std::uint64_t>(info.f_type));
}

std::string network_file_system_name(std::uint64_t magic) {
  struct Type {
    std::uint64_t magic;
    const char* name;
  };
  static constexpr Type kTypes[] = {
      {0x6969, "nfs"},       {0x517b, "smb"},       {0xfe534d42, "smb2"},   {0xff534d42, "cifs"},
      {0x73757245, "coda"},  {0x5346414f, "afs"},   {0x6b414653, "afs"},    {0x564c, "ncp"},
      {0x01021997, "9p"},    {0x00c36400, "ceph"},  {0x0bd00bd0, "lustre"}, {0x47504653, "gpfs"},
      {0x7461636f, "ocfs2"}, {0x01161970, "gfs2"},  {0x19830326, "beegfs"}, {0x65735546, "fuse"},
      {0xaad7aaea, "panfs"}, {0x013111a8, "ibrix"}, {0x786f4256, "vboxsf"}, {0xbacbacbc, "vmhgfs"}};
  // 32 bits count: some systems extend the sign.
  for (const Type& type : kTypes) {
    if (type.magic == (magic & 0xffffffff)) return type.name;
  }
  return "";
}

}  // namespace dcr
