// Which bytes loads write: no byte twice, and every parameter byte once (docs/ARCHITECTURE.md "One
// attempt, at a receiver").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dcr/ports.h"
#include "dcr/status.h"
#include "receiver/prewarm.h"
#include "tensor/catalogue.h"

namespace dcr {

// Bytes [begin, end) of a storage.
struct ByteRange {
  std::uint64_t storage = 0, begin = 0, end = 0;
  bool operator==(const ByteRange&) const = default;
};

// All loads together may have so many ranges that are not contiguous with each other.
inline constexpr std::size_t kByteRangesMax = std::size_t{1} << 24;

// Why a tensor is refused that writes a byte twice.
inline constexpr const char* kWritesTwice = "the loader writes bytes of a parameter twice";

// A view's bytes, in ascending order, contiguous ones as one range. Error kUnsupported if they are
// more than `ranges_max`.
Result<std::vector<ByteRange>> view_ranges(const TensorView& view, std::size_t ranges_max);

// Refuses tensors that write a byte twice, or bytes of each other; of two tensors with the same
// bytes (tied weights) the one that is loaded first becomes a skip. Then, if no tensor is refused:
// every byte of every target must be written by some load, or the target be named as never loaded
// (kMismatch, naming target and bytes).
Status check_coverage(const Catalogue& catalogue, const std::vector<LoaderTarget>& targets,
                      const std::vector<std::string>& never_loaded, PrewarmResult* result);

}  // namespace dcr
