// The construction pipeline of an owner (paper §7.2, Appendix C): scan and encode → compress →
// send, in bounded stages, so that one bucket becomes a payload while the next is scanned.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/limits.h"
#include "codec/item_encoder.h"
#include "codec/payload.h"
#include "dcr/ports.h"
#include "dcr/status.h"
#include "runtime/threads.h"

namespace dcr {

// The unit of scanning and of items: at most so many words and bytes of one tensor. Boxes are cut
// by this fixed rule, so that items do not depend on memory, threads or bucket size.
inline constexpr std::uint64_t kPieceWordsMax = std::uint64_t{1} << 23;
inline constexpr std::uint64_t kPieceBytesMax = std::uint64_t{16} << 20;

// Words of one piece of a tensor of `width`-byte words.
constexpr std::uint64_t piece_words(unsigned width) {
  return kPieceBytesMax / width < kPieceWordsMax ? kPieceBytesMax / width : kPieceWordsMax;
}

struct Piece {
  std::uint32_t tensor = 0;  // index into the table that the payloads' schema names
  std::uint8_t width = 1;
  ItemBox box;         // at most piece_words(width) words
  bool whole = false;  // carry every word; there is no old version
  EncodingChoice choice = EncodingChoice::kSmallest;
};

// The buffers of one piece on its way through the scan, and what was found. Reused.
struct PieceBuffers {
  Bytes old_bytes, new_bytes;
};

// Where pieces' bytes come from. `load` is called concurrently for different pieces and in no
// certain order.
class PieceSource {
 public:
  virtual ~PieceSource() = default;

  // Calls `scan` with consecutive parts that cover the piece's box in its order; their memory stays
  // valid until load returns. For a whole piece old_words is null. Bytes are best fed while they
  // are in the cache (one digest leaf at a time).
  virtual Status load(std::uint64_t index, const Piece& piece, PieceBuffers* buffers,
                      const std::function<void(const ScanBox&)>& scan) = 0;
};

struct PipelineOptions {
  std::uint64_t bucket_bytes = 512 * kMiB;  // input bytes of a bucket's items; a payload per bucket
  std::uint64_t window = 4;                 // pieces in flight
  std::uint64_t sealing = 2;  // buckets that are compressed or wait to be sent; two keep every
                              // thread busy while the next one fills
  PayloadHeader header;       // number is set per payload
  ByteSpan key;
  const CancelToken* cancel = nullptr;
  std::function<void(std::uint64_t bytes)>
      progress;  // after each piece, on the calling thread: its bytes
};

struct PipelineResult {
  std::uint64_t payloads = 0, items = 0;
  std::uint64_t changed = 0;  // words with an entry, whole pieces not counted
  std::uint64_t payload_bytes = 0;
  std::uint64_t items_by_encoding[3] = {0, 0, 0};
  std::uint64_t payload_raw_bytes_max = 0, payload_stored_bytes_max = 0;
};

// Runs the pieces, which must be in ascending (tensor, offset) order, through the stages. A bucket
// closes before the item that would take it above bucket_bytes, or above kItemsPerPayloadMax items;
// pieces without a change add nothing. Payload bytes do not depend on window, sealing or threads.
// REQUIRES: window >= 1, sealing >= 1. Errors: the source's, the sink's, kCancelled; the first in
// the pieces' order.
Result<PipelineResult> build_payloads(Executor& executor, std::span<const Piece> pieces,
                                      PieceSource& source, const PipelineOptions& options,
                                      PayloadSink& sink);

}  // namespace dcr
