// The program `dcr`. See docs/CLI.md.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "cli/cli.h"
#include "cli/signals.h"

namespace {

// A standard stream that the caller closed must not become the number of a file that the program
// opens: a summary would then be written into a delta. Opened for reading only, so that writing to
// it stays an error.
void occupy_standard_streams() {
  for (int number = STDIN_FILENO; number <= STDERR_FILENO; ++number) {
    if (fcntl(number, F_GETFD) == -1) static_cast<void>(open("/dev/null", O_RDONLY));
  }
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_streams();
  const dcr::CancelToken& cancel = dcr::install_signal_handlers();
  const dcr::CliStreams streams{stdout, stderr, isatty(STDERR_FILENO) == 1};
  return dcr::run_cli(argc, argv, streams, cancel);
}
