// Decoded payloads: positions and values of every item, made once per payload and shared by the
// receivers of a node.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "codec/payload.h"
#include "dcr/status.h"

namespace dcr {

// Its positions and values lie in memory of somebody else, a DecodedPayload's as a rule.
struct DecodedItem {
  ItemHeader header;
  std::span<const std::uint32_t> positions;  // ascending, in the box's own order
  ByteSpan values;                           // as many words; see Kernels::scan_changes

  std::uint64_t bytes() const { return positions.size_bytes() + values.size(); }
};

// What decoding an item takes, from its header alone.
constexpr std::uint64_t decoded_bytes(const ItemHeader& header) {
  return header.changes * (sizeof(std::uint32_t) + header.width);
}

// How positions and values of an item lie in a block of memory: one after the other, each filled up
// so that the next begins at a multiple of 8 bytes.
struct EntriesLayout {
  explicit EntriesLayout(const ItemHeader& header);

  std::size_t positions_bytes, values_bytes;  // without what fills them up
  std::size_t values_at;                      // from the first position
  std::size_t bytes;                          // of the block
};

// Decodes an item into a block of EntriesLayout::bytes that begins at a multiple of 8.
void decode_entries(const ItemView& item, MutableByteSpan block);

// The entries of such a block.
DecodedItem entries_in(const ItemHeader& header, ByteSpan block);

struct DecodedPayload {
  PayloadHeader header;
  Digest digest{};  // of the stored bytes: two payloads with the same digest are the same
  std::vector<DecodedItem> items;      // in ascending (tensor, offset) order
  std::uint64_t bytes = 0;             // of the items' positions and values
  std::shared_ptr<const void> memory;  // where these lie
};

// The items are what Payload::read makes for a reader with these tables, whoever decoded them:
// their tensors, widths, boxes and counts, their order, and that no two reach one word. Errors as
// there, naming item and tensor; `memory_bytes_max` bounds what the comparison of boxes takes.
// REQUIRES: positions within their boxes.
Status check_decoded(std::span<const DecodedItem> items, std::span<const TensorSpec> tensors,
                     std::uint64_t memory_bytes_max);

// What decoding a payload takes. Error: kTooLarge, above `decoded_bytes_max`.
Result<std::uint64_t> decoded_bytes(const Payload& payload, std::uint64_t decoded_bytes_max);

// What its stored bytes say is their digest. REQUIRES: a payload that was read.
Digest stored_digest(ByteSpan stored);

// Verifies, validates and decodes a payload; a failure has allocated nothing above the limits.
// `decoded_bytes_max` bounds positions and values (kTooLarge). Other errors as Payload::read.
Result<std::shared_ptr<const DecodedPayload>> decode_payload(ByteSpan stored, const Digest& schema,
                                                             std::span<const TensorSpec> tensors,
                                                             const PayloadLimits& limits,
                                                             std::uint64_t decoded_bytes_max,
                                                             ByteSpan key = {});

}  // namespace dcr
