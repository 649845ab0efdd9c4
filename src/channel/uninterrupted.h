// Calls of the system, and of libraries that report as it does, that a signal interrupts.
#pragma once

#include <cerrno>

namespace dcr {

// Calls `call` again while it returns less than 0 because of a signal.
template <typename Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace dcr
