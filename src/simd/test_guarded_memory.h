// Memory of whole pages between two that may not be touched, so that a kernel that reads or writes
// past either end of its input ends the test.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "base/assert.h"

namespace dcr {

class GuardedMemory {
 public:
  // At least `bytes` bytes, zero.
  explicit GuardedMemory(std::size_t bytes) {
    const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    size_ = (bytes + page - 1) / page * page;
    mapped_ = size_ + 2 * page;
    void* const all = ::mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    DCR_ASSERT(all != MAP_FAILED);
    base_ = static_cast<std::uint8_t*>(all);
    begin_ = base_ + page;
    DCR_ASSERT(::mprotect(begin_, size_, PROT_READ | PROT_WRITE) == 0);
  }
  ~GuardedMemory() { ::munmap(base_, mapped_); }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  std::uint8_t* begin() { return begin_; }
  // The first byte that may not be touched.
  std::uint8_t* end() { return begin_ + size_; }
  std::size_t size() const { return size_; }

 private:
  std::uint8_t* base_ = nullptr;
  std::uint8_t* begin_ = nullptr;
  std::size_t size_ = 0;
  std::size_t mapped_ = 0;
};

}  // namespace dcr
