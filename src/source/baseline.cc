#include "source/baseline.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/mutant.h"
#include "base/prng.h"
#include "source/geometry.h"

namespace dcr {

std::vector<BaselinePiece> sample_pieces(std::vector<BaselinePiece> pieces, std::uint64_t seed) {
  Prng prng(seed);
  for (std::size_t i = 0; i < std::min(kSamplePieces, pieces.size()); ++i) {
    std::swap(pieces[i], pieces[i + static_cast<std::size_t>(prng.below(pieces.size() - i))]);
  }
  if (pieces.size() > kSamplePieces) pieces.resize(kSamplePieces);
  for (BaselinePiece& piece : pieces) {
    const ItemDimension last = piece.box.dims.empty() ? ItemDimension() : piece.box.dims.back();
    const std::uint64_t row = prng.below(piece.box.words() / last.size);
    const std::uint64_t size = std::min(kSampleWords, last.size);
    const std::uint64_t first = prng.below(last.size - size + 1);
    piece.arena_offset += (row * last.size + first) * piece.width;
    std::uint64_t offset = piece.box.offset + first * last.stride;
    std::uint64_t rows = row;
    for (std::size_t d = piece.box.dims.size(); d-- > 1;) {
      const ItemDimension& outer = piece.box.dims[d - 1];
      offset += rows % outer.size * outer.stride;
      rows /= outer.size;
    }
    piece.box = size == 1 ? ItemBox::range(offset, 1) : ItemBox{offset, {{size, last.stride}}};
  }
  return pieces;
}

BaselineReader::BaselineReader(const Arena& arena, std::vector<BaselinePiece> pieces)
    : arena_(arena), pieces_(std::move(pieces)) {}

Lane BaselineReader::sending(Buckets* buckets, std::uint32_t owner) {
  // Projected pieces and residual ones together: no tensor has both.
  std::sort(pieces_.begin(), pieces_.end(), [](const BaselinePiece& a, const BaselinePiece& b) {
    return std::make_pair(a.tensor, a.box.offset) < std::make_pair(b.tensor, b.box.offset);
  });
  if (DCR_MUTANT("restore_forgets_piece") && !pieces_.empty()) pieces_.pop_back();
  digests_.clear();
  lane_pieces_.clear();
  for (const BaselinePiece& piece : pieces_) {
    Piece& whole = lane_pieces_.emplace_back();
    whole.tensor = piece.tensor;
    whole.width = piece.width;
    whole.box = piece.box;
    whole.whole = true;
  }
  return {lane_pieces_, this, buckets, owner};
}

Lane BaselineReader::digesting(std::uint32_t owner) {
  digests_.assign(pieces_.size(), {});
  lane_pieces_.clear();
  for (const BaselinePiece& piece : pieces_) {
    Piece& read = lane_pieces_.emplace_back();
    read.tensor = piece.tensor;
    read.width = piece.width;
    read.box = piece.box;
    read.send = false;
  }
  return {lane_pieces_, this, nullptr, owner};
}

Status BaselineReader::load(std::uint64_t index, const Piece& piece, PieceBuffers* buffers,
                            const std::function<void(const ScanBox&)>& scan) {
  const auto slot = static_cast<std::size_t>(index);
  const std::uint64_t offset = pieces_[slot].arena_offset;
  const auto bytes = static_cast<std::size_t>(piece.box.words() * piece.width);
  const ByteSpan words = arena_.bytes().subspan(static_cast<std::size_t>(offset), bytes);
  if (!piece.send) {
    digests_[slot] = tensor_digest(words);
    arena_.release(offset, bytes);
    return {};
  }
  // A copy, so that the arena's pages can go before the item is made.
  if (buffers->new_bytes.size() < bytes) buffers->new_bytes.resize(bytes);
  std::memcpy(buffers->new_bytes.data(), words.data(), bytes);
  arena_.release(offset, bytes);
  ScanBox part;
  part.new_words = buffers->new_bytes.data();
  part.row_words = piece.box.words();
  scan(part);
  return {};
}

PayloadHeader restore_payload_header(const RestoreHeader& header, const Geometry& geometry,
                                     std::uint32_t owner) {
  PayloadHeader payload;
  payload.run = header.run;
  payload.attempt = header.attempt;
  payload.owner = owner;
  payload.owners = geometry.ranks();
  payload.base_version = header.version;
  payload.target_version = header.version;
  payload.schema = geometry.catalogue().schema();
  return payload;
}

}  // namespace dcr
