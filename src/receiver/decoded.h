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

struct DecodedItem {
  ItemHeader header;
  std::vector<std::uint32_t> positions;  // ascending, in the box's own order
  Bytes values;                          // as many words; see Kernels::scan_changes

  std::uint64_t bytes() const { return positions.size() * sizeof(std::uint32_t) + values.size(); }
};

// What decoding an item takes, from its header alone.
constexpr std::uint64_t decoded_bytes(const ItemHeader& header) {
  return header.changes * (sizeof(std::uint32_t) + header.width);
}

DecodedItem decode_item(const ItemView& item);

struct DecodedPayload {
  PayloadHeader header;
  Digest digest{};  // of the stored bytes: two payloads with the same digest are the same
  std::vector<DecodedItem> items;  // in ascending (tensor, offset) order
  std::uint64_t bytes = 0;         // of the items' positions and values
};

// Verifies, validates and decodes a payload; a failure has allocated nothing above the limits.
// `decoded_bytes_max` bounds positions and values (kTooLarge). Other errors as Payload::read.
Result<std::shared_ptr<const DecodedPayload>> decode_payload(ByteSpan stored, const Digest& schema,
                                                             std::span<const TensorSpec> tensors,
                                                             const PayloadLimits& limits,
                                                             std::uint64_t decoded_bytes_max,
                                                             ByteSpan key = {});

}  // namespace dcr
