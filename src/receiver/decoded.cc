#include "receiver/decoded.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "codec/container.h"
#include "codec/item_reader.h"

namespace dcr {

DecodedItem decode_item(const ItemView& item) {
  DecodedItem decoded;
  decoded.header = item.header;
  const auto changes = static_cast<std::size_t>(item.header.changes);
  decoded.positions.resize(changes);
  decoded.values.resize(changes * item.header.width);
  ItemReader reader(item);
  ChangeBlock block;
  std::size_t done = 0;
  while (reader.next(&block)) {
    std::memcpy(decoded.positions.data() + done, block.positions,
                block.count * sizeof(std::uint32_t));
    std::memcpy(decoded.values.data() + done * item.header.width, block.values,
                block.count * item.header.width);
    done += block.count;
  }
  return decoded;
}

Result<std::shared_ptr<const DecodedPayload>> decode_payload(ByteSpan stored, const Digest& schema,
                                                             std::span<const TensorSpec> tensors,
                                                             const PayloadLimits& limits,
                                                             std::uint64_t decoded_bytes_max,
                                                             ByteSpan key) {
  DCR_ASSIGN(const Payload payload, Payload::read(stored, schema, tensors, limits, key));
  auto decoded = std::make_shared<DecodedPayload>();
  decoded->header = payload.header();
  std::copy_n(stored.begin() + kPayloadDigestOffset, decoded->digest.size(),
              decoded->digest.begin());
  for (const ItemView& item : payload.items()) decoded->bytes += decoded_bytes(item.header);
  if (decoded->bytes > decoded_bytes_max) {
    return Status(Code::kTooLarge, "payload: decoding takes " + std::to_string(decoded->bytes) +
                                       " bytes, above the limit of " +
                                       std::to_string(decoded_bytes_max));
  }
  decoded->items.reserve(payload.items().size());
  for (const ItemView& item : payload.items()) decoded->items.push_back(decode_item(item));
  return std::shared_ptr<const DecodedPayload>(std::move(decoded));
}

}  // namespace dcr
