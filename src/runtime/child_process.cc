#include "runtime/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace dcr {
namespace {

Status failed(const std::string& what) {
  return {Code::kIo, what + ": " + std::generic_category().message(errno)};
}

// In the child, between fork and exec: only what is safe there.
[[noreturn]] void become(char* const* arguments, int log, int report) {
  if (dup2(log, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);  // NOLINT(concurrency-mt-unsafe): one thread
    execv(arguments[0], arguments);
  }
  const int error = errno;
  static_cast<void>(!write(report, &error, sizeof error));
  _exit(127);
}

[[noreturn]] void become_child(char* const* arguments, int log, int report, pid_t parent) {
  // The end of the parent is the end of the child, unless it ended before this line.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  become(arguments, log, report);
}

std::vector<char*> pointers_to(std::vector<std::string>* arguments) {
  std::vector<char*> pointers;
  pointers.reserve(arguments->size() + 1);
  for (std::string& argument : *arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  return pointers;
}

// What a process is spawned with: no signal blocked, a session of its own, and of files only these.
class SpawnPlan {
 public:
  explicit SpawnPlan(const std::string& log) {
    posix_spawnattr_init(&attributes_);
    posix_spawn_file_actions_init(&actions_);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&actions_, STDOUT_FILENO, STDERR_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&actions_, STDERR_FILENO + 1);
  }
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  const posix_spawnattr_t* attributes() const { return &attributes_; }
  const posix_spawn_file_actions_t* actions() const { return &actions_; }

 private:
  posix_spawnattr_t attributes_{};
  posix_spawn_file_actions_t actions_{};
};

}  // namespace

Result<std::string> this_program() {
  std::array<char, 4096> path{};
  const ssize_t bytes = readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (bytes < 0) return failed("cannot find the program's own file");
  return std::string(path.data(), static_cast<std::size_t>(bytes));
}

std::int64_t this_process() { return ::getpid(); }

void kill_this_process() {
  while (true) ::kill(getpid(), SIGKILL);
}

void pause_this_process() { ::kill(getpid(), SIGSTOP); }

// The memory of a large process is not copied, not even its tables, as a fork would.
Result<std::int64_t> start_detached(const std::vector<std::string>& arguments,
                                    const std::string& log) {
  std::vector<std::string> copies = arguments;
  const std::vector<char*> pointers = pointers_to(&copies);
  const SpawnPlan plan(log);
  pid_t pid = 0;
  errno =
      posix_spawn(&pid, pointers[0], plan.actions(), plan.attributes(), pointers.data(), environ);
  if (errno != 0) return failed("cannot run " + arguments[0]);
  return std::int64_t{pid};
}

bool collect_detached(std::int64_t pid) {
  const pid_t found = waitpid(static_cast<pid_t>(pid), nullptr, WNOHANG);
  return found != 0;  // it has ended, or somebody else has collected it
}

Result<std::unique_ptr<ChildProcess>> ChildProcess::start(const std::vector<std::string>& arguments,
                                                          const std::string& log) {
  std::vector<std::string> copies = arguments;
  const std::vector<char*> pointers = pointers_to(&copies);
  const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return failed("cannot open " + log);
  std::array<int, 2> report{};
  if (pipe2(report.data(), O_CLOEXEC) != 0) {
    const Status status = failed("cannot make a pipe");
    close(file);
    return status;
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) become_child(pointers.data(), file, report[1], parent);
  const Status forked = pid < 0 ? failed("cannot start " + arguments[0]) : Status();
  close(file);
  close(report[1]);
  int error = 0;
  const bool reported = pid > 0 && read(report[0], &error, sizeof error) > 0;
  close(report[0]);
  DCR_TRY(forked);
  if (reported) {
    waitpid(pid, nullptr, 0);
    errno = error;
    return failed("cannot run " + arguments[0]);
  }
  return std::make_unique<ChildProcess>(pid);
}

ChildProcess::~ChildProcess() {
  if (poll() == State::kExited || state_ == State::kKilled) return;
  kill();
  waitpid(static_cast<pid_t>(pid_), nullptr, 0);
}

std::uint64_t ChildProcess::processor_nanoseconds() const {
  // Once it was waited for, its number may be another's.
  if (!is_there()) return 0;
  clockid_t clock{};
  timespec time{};
  if (clock_getcpuclockid(static_cast<pid_t>(pid_), &clock) != 0) return 0;
  if (clock_gettime(clock, &time) != 0) return 0;
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(time.tv_nsec);
}

ChildProcess::State ChildProcess::poll() {
  while (is_there()) {
    int status = 0;
    const pid_t pid = waitpid(static_cast<pid_t>(pid_), &status, WNOHANG | WUNTRACED | WCONTINUED);
    if (pid <= 0) break;
    if (WIFSTOPPED(status)) state_ = State::kStopped;
    if (WIFCONTINUED(status)) state_ = State::kRuns;
    if (WIFEXITED(status)) {
      state_ = State::kExited;
      code_ = WEXITSTATUS(status);
    }
    if (WIFSIGNALED(status)) {
      state_ = State::kKilled;
      code_ = WTERMSIG(status);
    }
  }
  return state_;
}

void ChildProcess::signal(int number) {
  if (is_there()) ::kill(static_cast<pid_t>(pid_), number);
}

void ChildProcess::kill() { signal(SIGKILL); }
void ChildProcess::terminate() { signal(SIGTERM); }
void ChildProcess::pause() { signal(SIGSTOP); }
void ChildProcess::resume() { signal(SIGCONT); }

}  // namespace dcr
