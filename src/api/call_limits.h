// What every call of the library is checked for before it starts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "dcr/delta.h"
#include "dcr/status.h"
#include "runtime/threads.h"
#include "simd/kernels.h"

namespace dcr {

inline constexpr unsigned kCallThreadsMax = 1024;

// Errors: kInvalidArgument for too little memory or too many threads; select_kernels'.
inline Status check_call(std::uint64_t memory_bytes_max, unsigned threads) {
  if (memory_bytes_max < kMemoryBytesMin) {
    return Status(Code::kInvalidArgument, "a memory limit of " + std::to_string(memory_bytes_max) +
                                              " bytes is too small; at least " +
                                              std::to_string(kMemoryBytesMin) + " are needed");
  }
  if (threads > kCallThreadsMax) {
    return Status(Code::kInvalidArgument, std::to_string(threads) +
                                              " threads are above the limit of " +
                                              std::to_string(kCallThreadsMax));
  }
  return select_kernels().status();
}

// 0 threads: one per processor. REQUIRES: check_call succeeded.
inline std::unique_ptr<Executor> make_call_executor(unsigned threads) {
  return make_executor(threads > 0 ? threads : std::min(processor_count(), kCallThreadsMax));
}

}  // namespace dcr
