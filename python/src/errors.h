// The core's errors as Python's: the one place where a code becomes an exception.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "dcr/status.h"

namespace dcr::python {

// Throws the exception of `dcr.errors` that stands for the status. REQUIRES: the GIL is held; the
// status is an error.
[[noreturn]] void raise(const Status& status);

// Throws if it is an error. REQUIRES: the GIL is held.
inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}

// The value, or throws. REQUIRES: the GIL is held.
template <typename T>
T take(Result<T>&& result) {
  check(result.status());
  return std::move(result).value();
}

}  // namespace dcr::python
