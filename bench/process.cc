#include "bench/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>

namespace dcr {

Result<ProcessRun> run_process(const std::vector<std::string>& command, const std::string& log) {
  std::vector<char*> words;
  words.reserve(command.size() + 1);
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const auto start = std::chrono::steady_clock::now();
  pid_t pid = 0;
  const int failure = posix_spawnp(&pid, words[0], &actions, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) {
    return Status(failure == ENOENT ? Code::kNotFound : Code::kIo,
                  command[0] + " cannot be run: " + std::generic_category().message(failure));
  }
  int state = 0;
  rusage usage{};
  pid_t waited = 0;
  do {
    waited = wait4(pid, &state, 0, &usage);
  } while (waited < 0 && errno == EINTR);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  if (waited != pid || !WIFEXITED(state)) {
    return Status(Code::kIo, command[0] + " was ended by a signal");
  }
  return ProcessRun{WEXITSTATUS(state), elapsed.count(),
                    static_cast<std::uint64_t>(usage.ru_maxrss) * 1024};
}

}  // namespace dcr
