#include "cli/signals.h"

#include <csignal>

namespace dcr {
namespace {

CancelToken cancel_token;                        // lock-free, so a handler may set it
volatile std::sig_atomic_t received_number = 0;  // 0: none

extern "C" void cancel_on_signal(int number) {
  received_number = number;
  cancel_token.cancel();
}

void set_handler(int number, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  // No call of the program waits for something outside it for ever: each loop looks at the token.
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, nullptr);
}

}  // namespace

const CancelToken& install_signal_handlers() {
  // The handler stays installed after the first signal: timeout(1), for one, sends its signal
  // twice, and the second must not end the clean-up that the first began.
  set_handler(SIGINT, cancel_on_signal);
  set_handler(SIGTERM, cancel_on_signal);
  struct sigaction hangup = {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) set_handler(SIGHUP, cancel_on_signal);
  set_handler(SIGPIPE, SIG_IGN);
  set_handler(SIGXFSZ, SIG_IGN);
  return cancel_token;
}

std::string_view received_signal() {
  switch (received_number) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP";
    default:
      return "";
  }
}

}  // namespace dcr
