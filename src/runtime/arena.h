// One large block of memory for as long as its owner lives: baselines. In RAM, or in a file that is
// mapped, for machines whose disk is larger than their memory.
//
// This is the one mapping in the tree. It is safe where mappings of weights are not
// (runtime/file.h): the file is the arena's own, has no name any more when it is used, and has all
// its blocks, so that it can neither shrink nor meet a full disk.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "dcr/status.h"

namespace dcr {

class Arena {
 public:
  Arena() = default;  // of no bytes
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Zeroed memory; pages are taken when they are first touched. Error kIo naming the bytes.
  static Result<Arena> anonymous(std::uint64_t bytes);

  // The same in a file that is created at `path`, which must not exist, and unlinked at once: it
  // goes with the arena. Errors: kExists; kIo (no room for so many bytes, permission).
  static Result<Arena> mapped(const std::string& path, std::uint64_t bytes);

  MutableByteSpan bytes() const { return {data_, static_cast<std::size_t>(size_)}; }
  bool in_file() const { return in_file_; }

  // Says that [offset, offset + size) is not needed for a while: of a file, the pages within it
  // leave this process and are read again when touched. Contents stay. In RAM nothing happens.
  // Thread-safe. REQUIRES: within the arena.
  void release(std::uint64_t offset, std::uint64_t size) const;

 private:
  Arena(std::uint8_t* data, std::uint64_t size, bool in_file)
      : data_(data), size_(size), in_file_(in_file) {}

  std::uint8_t* data_ = nullptr;
  std::uint64_t size_ = 0;
  bool in_file_ = false;
};

// What several blocks in one arena take: each starts at a multiple of this.
inline constexpr std::uint64_t kArenaAlignment = 64;
constexpr std::uint64_t arena_bytes_of(std::uint64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

// Bytes of storages that lie one after another in an arena. Where the sum would wrap, as a layout
// file can make it, it is more than any arena has.
std::uint64_t storages_bytes(std::span<const std::uint64_t> storages);

// These storages. REQUIRES: the arena has storages_bytes() bytes.
std::vector<MutableByteSpan> storages_in(const Arena& arena,
                                         std::span<const std::uint64_t> storages);

}  // namespace dcr
