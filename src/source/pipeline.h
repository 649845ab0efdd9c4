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
#include "dcr/status.h"
#include "runtime/threads.h"
#include "source/buckets.h"

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
  bool send = true;  // false: the source looks at it for itself, and no item comes of it
};

// The buffers of one piece on its way through the scan. Reused.
struct PieceBuffers {
  Bytes old_bytes, new_bytes;
};

// Where pieces' bytes come from. Called concurrently for different pieces and in no certain order.
class PieceSource {
 public:
  virtual ~PieceSource() = default;

  // Calls `scan` with consecutive parts that cover the piece's box in its order. The memory of a
  // whole piece's parts stays valid until the buffers are used again, that of others too if
  // keeps_parts(). For a whole piece old_words is null.
  // Bytes are best fed while they are in the cache (one digest leaf at a time). For a piece that is
  // not sent it need not call `scan`.
  virtual Status load(std::uint64_t index, const Piece& piece, PieceBuffers* buffers,
                      const std::function<void(const ScanBox&)>& scan) = 0;

  // Whether parts stay valid after load returns; else load may be called again for the same piece.
  virtual bool keeps_parts() const { return true; }

  // So many words of the piece changed; after its load, unless it is whole or not sent.
  virtual void scanned(std::uint64_t /*index*/, std::uint64_t /*changes*/) {}
};

// One owner's pieces and where their items go.
struct Lane {
  std::span<const Piece> pieces;  // in ascending (tensor, offset) order, those that are sent
  PieceSource* source = nullptr;
  Buckets* buckets = nullptr;
  std::uint32_t owner = 0;
};

// What a chunk of tiny tensors takes is mostly their items' own records, which so many keep small.
inline constexpr std::size_t kChunkPiecesMax = 2048;

struct ScanOptions {
  // Consecutive pieces of a lane that one thread scans one after another: a chunk, at most so many
  // bytes and kChunkPiecesMax pieces, at least one piece.
  std::uint64_t chunk_bytes = 0;
  std::uint64_t window = 4;  // chunks in flight
  const CancelToken* cancel = nullptr;
  std::function<void(std::uint64_t bytes)>
      progress;  // after each piece, on the calling thread: its bytes
  SpanRecorder* spans = nullptr;
  const char* stage = "scan";  // of the spans
};

// Runs the lanes' pieces through scan and encoding into their buckets: first chunks of all lanes
// first, so that the owners' payloads come in about the declared order. Pieces without a change add
// nothing. What a lane's buckets get does not depend on the other lanes, chunks, window or threads.
// REQUIRES: window >= 1. Errors: the sources', the buckets', kCancelled; the first in that order.
Status scan_lanes(Executor& executor, std::span<const Lane> lanes, const ScanOptions& options);

struct PipelineOptions {
  std::uint64_t bucket_bytes = 512 * kMiB;  // input bytes of a bucket's items; a payload per bucket
  std::uint64_t window = 4;                 // pieces in flight
  std::uint64_t sealing = 2;                // see BucketOptions
  PayloadHeader header;                     // number is set per payload
  ByteSpan key;
  const CancelToken* cancel = nullptr;
  std::function<void(std::uint64_t bytes)>
      progress;  // after each piece, on the calling thread: its bytes
};

// One lane from its first piece to its last payload. Payload bytes do not depend on window, sealing
// or threads. REQUIRES: window >= 1, sealing >= 1. Errors as for scan_lanes and Buckets.
Result<PipelineResult> build_payloads(Executor& executor, std::span<const Piece> pieces,
                                      PieceSource& source, const PipelineOptions& options,
                                      PayloadSink& sink);

}  // namespace dcr
