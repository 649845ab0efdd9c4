// Counts what the program allocates. Include it in one source of a test program: it replaces the
// global operator new.
#pragma once

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace dcr {

// Bytes in use through operator new, and the most since the last reset.
inline std::atomic<std::uint64_t> allocated_bytes{0};
inline std::atomic<std::uint64_t> allocated_bytes_peak{0};

// The most bytes in use during `body`, beyond those in use before it.
template <typename Body>
std::uint64_t peak_allocation(const Body& body) {
  const std::uint64_t before = allocated_bytes.load();
  allocated_bytes_peak.store(before);
  body();
  return allocated_bytes_peak.load() - before;
}

inline void* counted_allocation(std::size_t bytes) {
  void* const memory = std::malloc(std::max<std::size_t>(bytes, 1));
  if (memory == nullptr) std::abort();
  const std::uint64_t now = allocated_bytes += ::malloc_usable_size(memory);
  if (now > allocated_bytes_peak.load()) allocated_bytes_peak.store(now);
  return memory;
}

inline void counted_free(void* memory) {
  if (memory != nullptr) allocated_bytes -= ::malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace dcr

// One source includes this.
// NOLINTBEGIN(misc-definitions-in-headers)
void* operator new(std::size_t bytes) { return dcr::counted_allocation(bytes); }
void* operator new[](std::size_t bytes) { return dcr::counted_allocation(bytes); }
// What std::stable_sort asks for.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return dcr::counted_allocation(bytes);
}
void operator delete(void* memory) noexcept { dcr::counted_free(memory); }
void operator delete[](void* memory) noexcept { dcr::counted_free(memory); }
void operator delete(void* memory, std::size_t) noexcept { dcr::counted_free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { dcr::counted_free(memory); }
// NOLINTEND(misc-definitions-in-headers)
