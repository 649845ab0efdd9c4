// How work between two steps asks whether it is to go on.
#pragma once

#include "dcr/cancel.h"
#include "dcr/status.h"

namespace dcr {

// kCancelled once `cancel`, which may be null, was cancelled.
inline Status check_cancelled(const CancelToken* cancel) {
  if (cancel != nullptr && cancel->cancelled()) return {Code::kCancelled, "cancelled"};
  return {};
}

}  // namespace dcr
