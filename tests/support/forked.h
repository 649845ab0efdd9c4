// Work in a child process, for what is decided once per process.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "base/assert.h"

namespace dcr {

// Whether a process may have a child here: qemu-user, under which tests of other machines run,
// hangs in fork.
inline constexpr bool can_fork() {
#ifdef DCR_EMULATED
  return false;
#else
  return true;
#endif
}

// Runs `body` in a forked child in which the environment variable DCR_FORCE_ISA is `isa` (unset if
// null), and returns the text that it gives. REQUIRES: can_fork(), no other thread runs, and this
// process has not chosen its kernels yet.
inline std::string run_with_isa(const char* isa, const std::function<std::string()>& body) {
  int ends[2];
  DCR_ASSERT(::pipe(ends) == 0);
  const ::pid_t child = ::fork();
  DCR_ASSERT(child >= 0);
  if (child == 0) {
    ::close(ends[0]);
    // The child has one thread.
    if (isa == nullptr) {
      ::unsetenv("DCR_FORCE_ISA");  // NOLINT(concurrency-mt-unsafe)
    } else {
      ::setenv("DCR_FORCE_ISA", isa, 1);  // NOLINT(concurrency-mt-unsafe)
    }
    const std::string text = body();
    std::size_t written = 0;
    while (written < text.size()) {
      const ::ssize_t part = ::write(ends[1], text.data() + written, text.size() - written);
      DCR_ASSERT(part > 0);
      written += static_cast<std::size_t>(part);
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (;;) {
    const ::ssize_t part = ::read(ends[0], buffer, sizeof(buffer));
    DCR_ASSERT(part >= 0);
    if (part == 0) break;
    text.append(buffer, static_cast<std::size_t>(part));
  }
  ::close(ends[0]);
  int state = 0;
  DCR_ASSERT(::waitpid(child, &state, 0) == child);
  if (!WIFEXITED(state) || WEXITSTATUS(state) != 0) return "the child died";
  return text;
}

}  // namespace dcr
