// Compression of one stream (docs/FORMAT.md "Payload"): stored, or exactly one standard zstd frame.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "dcr/status.h"

namespace dcr {

inline constexpr std::uint8_t kCodingStored = 0;
inline constexpr std::uint8_t kCodingZstd = 1;
inline constexpr std::uint8_t kCodingCount = 2;

// Appends `raw` to `out`, compressed if that is smaller; returns the coding. Streams of symbols
// whose only redundancy is their frequencies are entropy-coded without a search for matches, which
// is as small and two to three times as fast; a sample decides. Deterministic for one version of
// the library.
std::uint8_t compress_stream(ByteSpan raw, Bytes* out);

// Checks, before anything is allocated for the result, that `stored` is one zstd frame without a
// dictionary whose declared content is `raw_bytes` and whose window is within kZstdWindowLogMax,
// and nothing else. Errors: kCorrupt, kTooLarge.
Status check_frame(ByteSpan stored, std::uint64_t raw_bytes);

// Fills `out` whole. REQUIRES: check_frame passed with out.size(). Error kCorrupt.
Status decompress_frame(ByteSpan stored, MutableByteSpan out);

}  // namespace dcr
