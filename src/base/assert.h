// DCR_ASSERT is for our own bugs; the world's faults are Status. It stays on in release builds.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace dcr {

[[noreturn]] inline void assertion_failed(const char* expression, const char* file, int line) {
  static_cast<void>(
      std::fprintf(stderr, "dcr: assertion failed: %s (%s:%d)\n", expression, file, line));
  std::abort();
}

}  // namespace dcr

#define DCR_ASSERT(expression) \
  ((expression) ? static_cast<void>(0) : ::dcr::assertion_failed(#expression, __FILE__, __LINE__))
