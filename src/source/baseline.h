// An owner's baseline as it is read whole (docs/ARCHITECTURE.md "One refit at its owners"): sent to
// receivers that restore, and digested for those that loaded the base.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "codec/item.h"
#include "codec/payload.h"
#include "runtime/arena.h"
#include "source/attempt.h"
#include "source/pipeline.h"

namespace dcr {

// Where the arena keeps the words of an item's box, in the box's order.
struct BaselinePiece {
  std::uint32_t tensor = 0;
  std::uint8_t width = 1;
  ItemBox box;
  std::uint64_t arena_offset = 0;  // bytes
};

// A few words of a baseline, drawn by `seed`: of at most kSamplePieces of the pieces, a run of at
// most kSampleWords words that follow each other in the piece's last dimension.
inline constexpr std::size_t kSamplePieces = 32;
inline constexpr std::uint64_t kSampleWords = 64;
// A reader compares every run of words with every other within those bytes.
static_assert(kSamplePieces * kSampleWords * 2 * sizeof(std::uint64_t) <= kSampleBytesMax);
std::vector<BaselinePiece> sample_pieces(std::vector<BaselinePiece> pieces, std::uint64_t seed);

// One owner's baseline as the source of a scan: one lane at a time.
class BaselineReader final : public PieceSource {
 public:
  // `arena` must outlive this and stays as it is meanwhile.
  BaselineReader(const Arena& arena, std::vector<BaselinePiece> pieces);

  // Everything, as whole items in ascending (tensor, offset) order.
  Lane sending(Buckets* buckets, std::uint32_t owner);
  // Only digests, in the pieces' own order.
  Lane digesting(std::uint32_t owner);
  // REQUIRES: the lane of digesting() was scanned.
  std::vector<Digest> take_digests() { return std::move(digests_); }

  Status load(std::uint64_t index, const Piece& piece, PieceBuffers* buffers,
              const std::function<void(const ScanBox&)>& scan) override;

 private:
  const Arena& arena_;
  std::vector<BaselinePiece> pieces_;
  std::vector<Piece> lane_pieces_;  // of pieces_ by index
  std::vector<Digest> digests_;     // likewise, where only digests are wanted
};

// The header of an owner's first payload in a restore.
PayloadHeader restore_payload_header(const RestoreHeader& header, const Geometry& geometry,
                                     std::uint32_t owner);

}  // namespace dcr
