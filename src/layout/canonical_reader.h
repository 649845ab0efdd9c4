// Canonical tensors' words, to read: a checkpoint, or buffers in a test.
#pragma once

#include <cstdint>
#include <span>

#include "dcr/status.h"

namespace dcr {

// How many words are read at a time where all of a tensor need not be held.
inline constexpr std::uint64_t kBlockWords = 64 * 1024;

class CanonicalReader {
 public:
  virtual ~CanonicalReader() = default;

  // Copies words [first, first + out.size() / width) of tensor `tensor` of the catalogue to `out`.
  virtual Status read(std::uint32_t tensor, std::uint64_t first, std::span<std::uint8_t> out) = 0;
};

}  // namespace dcr
