// What both sides of a refit in one process work with.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/limits.h"
#include "dcr/refit.h"
#include "dcr/status.h"
#include "runtime/arena.h"
#include "runtime/clock.h"
#include "runtime/threads.h"
#include "tensor/catalogue.h"
#include "tensor/checkpoint.h"

namespace dcr {

struct RefitContext {
  const RefitOptions& options;
  const Catalogue& catalogue;
  Executor& executor;
  SpanRecorder& spans;
};

// Stages of spans, beside those of source/attempt.h.
inline constexpr const char* kStageLoad = "load";
inline constexpr const char* kStagePrewarm = "prewarm";
inline constexpr const char* kStageAudit = "audit";
inline constexpr const char* kStageDecode = "decode";
inline constexpr const char* kStageApply = "apply";
inline constexpr const char* kStageCompare = "compare";

// Items of a bucket take up to this many times its bytes when they are decoded: one-byte words,
// each with a position of four.
inline constexpr std::uint64_t kDecodedFactor = 5;

// Input bytes of a payload's items, so that two payloads, decoded, stay within half of the memory.
inline std::uint64_t refit_bucket_bytes(const RefitOptions& options) {
  const std::uint64_t bound = options.memory_bytes_max / 4 / kDecodedFactor;
  return options.bucket_bytes < bound ? options.bucket_bytes : bound;
}

// Memory for weights or a baseline: `name` is of this process's arena, for its file if it has one.
Result<Arena> refit_arena(const RefitContext& context, const std::string& name,
                          std::uint64_t bytes);

// Bytes of the process's heap in use, arenas not among them; 0 where the allocator does not tell.
std::uint64_t heap_bytes();

// Runs `work(i)` for i in [0, count) on the executor, reporting progress after each one as
// `weight(i)` of the sum of all weights.
Status refit_parallel(const RefitContext& context, const char* stage, std::uint64_t count,
                      const std::function<std::uint64_t(std::uint64_t)>& weight,
                      const std::function<Status(std::uint64_t)>& work);

}  // namespace dcr
