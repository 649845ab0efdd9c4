// The body of `ordered_map` (runtime/threads.h, which holds its contract). Include that header.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/cancelled.h"
#include "runtime/threads.h"

namespace dcr {
namespace ordered_map_internal {

// Where one value waits for its turn; used again `window` values later.
template <typename T>
struct Slot {
  std::optional<Result<T>> value;
  std::atomic<bool> done{true};
};

}  // namespace ordered_map_internal

template <typename T>
Status ordered_map(Executor& executor, std::uint64_t count, std::uint64_t window,
                   const CancelToken* cancel,
                   const std::function<Result<T>(std::uint64_t)>& produce,
                   const std::function<Status(std::uint64_t, T&&)>& consume) {
  DCR_ASSERT(window >= 1);
  if (count == 0) return {};
  std::vector<ordered_map_internal::Slot<T>> slots(
      static_cast<std::size_t>(std::min(window, count)));
  std::atomic<bool> stopped{false};

  const auto start = [&](std::uint64_t index) {
    ordered_map_internal::Slot<T>& slot = slots[static_cast<std::size_t>(index % slots.size())];
    slot.done.store(false, std::memory_order_relaxed);
    executor.submit([&slot, &stopped, &produce, index] {
      if (!stopped.load(std::memory_order_relaxed)) slot.value.emplace(produce(index));
      // The last touch of the caller's frame: after this it may be gone. The executor wakes the
      // waiter by itself when a task ends.
      slot.done.store(true, std::memory_order_release);
    });
  };
  const auto consume_next = [&](std::uint64_t index) -> Status {
    DCR_TRY(check_cancelled(cancel));
    ordered_map_internal::Slot<T>& slot = slots[static_cast<std::size_t>(index % slots.size())];
    executor.wait([&slot] { return slot.done.load(std::memory_order_acquire); });
    DCR_TRY(check_cancelled(cancel));
    Result<T> value = *std::move(slot.value);
    slot.value.reset();
    if (!value.ok()) return value.status();
    return consume(index, std::move(value).value());
  };

  std::uint64_t started = 0;
  while (started < slots.size()) start(started++);
  Status status;
  for (std::uint64_t index = 0; index < count && status.ok(); ++index) {
    status = consume_next(index);
    if (status.ok() && started < count) start(started++);
  }
  // Tasks refer to this frame, so none may outlive it; those that have not begun do nothing.
  stopped.store(true, std::memory_order_relaxed);
  executor.wait([&slots] {
    return std::all_of(slots.begin(), slots.end(), [](const ordered_map_internal::Slot<T>& slot) {
      return slot.done.load(std::memory_order_acquire);
    });
  });
  return status;
}

}  // namespace dcr
