// The target bits of tensors, piece by piece, from a base checkpoint and the items of one delta.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "codec/payload.h"
#include "dcr/status.h"
#include "delta/delta_file.h"
#include "delta/work.h"
#include "tensor/checkpoint.h"

namespace dcr {

// No item is applied: the base's bytes are the target's.
inline constexpr std::uint64_t kNoItems = ~std::uint64_t{0};

// How one tensor of the delta's table comes about.
struct TensorRecipe {
  bool selected = false;         // else it is skipped
  bool journalled = false;       // its items in the journal's range are taken from the journal
  std::int64_t base = -1;        // index into Checkpoint::tensors; -1: items carry every word
  std::uint64_t items_from = 0;  // items of a lower number are in the base's bytes already
};

// Items [first, end) of the delta as an interrupted run recorded them: the new bits themselves.
struct JournalledItems {
  const Payload* payload = nullptr;  // null: none
  std::uint64_t first = 0, end = 0;
};

struct ComposeInput {
  const Checkpoint* base = nullptr;
  const DeltaReader* delta = nullptr;
  std::span<const ItemPlace> places;      // of all the delta's items (DeltaReader::validate_all)
  std::span<const TensorRecipe> recipes;  // one per tensor of the delta's table
  JournalledItems journal;
};

struct ComposedPiece {
  std::uint32_t tensor = 0;
  std::uint64_t offset = 0;  // bytes
  Bytes bytes;
  std::vector<Digest> leaves;  // of `bytes`; pieces are whole leaves but for the last of a tensor
};

// Calls `visit`, on the calling thread, with consecutive pieces that cover each selected tensor, in
// the table's order; an empty tensor has one empty piece. Each payload is read once at most. Pieces
// are made on the executor, within about half of work.memory_bytes_max, payload included. Errors:
// the visitor's, the base's and the delta's; kCancelled.
Status compose(const Work& work, const ComposeInput& input,
               const std::function<Status(ComposedPiece&&)>& visit);

// Tensor digests from leaves that arrive in order.
class LeafCollector {
 public:
  void add(std::vector<Digest>&& leaves) {
    leaves_.insert(leaves_.end(), leaves.begin(), leaves.end());
  }
  // The digest of the tensor; the next one may follow.
  Digest finish() {
    const Digest digest = combine_leaves(leaves_);
    leaves_.clear();
    return digest;
  }

 private:
  std::vector<Digest> leaves_;
};

// The leaves of a piece that starts at a leaf.
std::vector<Digest> digest_leaves(ByteSpan piece);

// How many pieces of at most `piece_bytes` may be in flight within `memory_bytes`, at least one.
std::uint64_t pieces_in_flight(const Executor& executor, std::uint64_t memory_bytes,
                               std::uint64_t piece_bytes);

}  // namespace dcr
