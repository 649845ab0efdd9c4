#include "receiver/decoded.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/assert.h"
#include "codec/container.h"
#include "codec/item_check.h"
#include "codec/item_reader.h"

namespace dcr {
namespace {

constexpr std::size_t kAlignment = 8;

std::size_t filled_up(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// `before`: the item before it, or none.
Status check_header(const ItemHeader& header, std::span<const TensorSpec> tensors,
                    const ItemHeader* before) {
  if (header.tensor >= tensors.size()) {
    return corrupt("tensor index out of range of " + std::to_string(tensors.size()));
  }
  const TensorSpec& tensor = tensors[header.tensor];
  if (header.width != tensor.width) {
    return corrupt("words of " + std::to_string(header.width) + " bytes in a tensor of " +
                   std::to_string(tensor.width));
  }
  DCR_TRY(check_box(header.box, tensor.words));
  if (header.changes == 0) return corrupt("item without a change");
  if (before == nullptr || header.tensor > before->tensor) return {};
  if (header.tensor < before->tensor) return corrupt("tensor indices descend");
  return header.box.offset > before->box.offset ? Status() : corrupt("item offsets descend");
}

}  // namespace

EntriesLayout::EntriesLayout(const ItemHeader& header)
    : positions_bytes(static_cast<std::size_t>(header.changes) * sizeof(std::uint32_t)),
      values_bytes(static_cast<std::size_t>(header.changes) * header.width),
      values_at(filled_up(positions_bytes)),
      bytes(values_at + filled_up(values_bytes)) {}

void decode_entries(const ItemView& item, MutableByteSpan block) {
  const EntriesLayout layout(item.header);
  DCR_ASSERT(block.size() == layout.bytes);
  std::uint8_t* positions = block.data();
  std::uint8_t* values = positions + layout.values_at;
  const std::uint8_t* const positions_end = positions + layout.positions_bytes;
  const std::uint8_t* const values_end = values + layout.values_bytes;
  ItemReader reader(item);
  ChangeBlock changes;
  while (reader.next(&changes)) {
    const std::size_t positions_bytes = changes.count * sizeof(std::uint32_t);
    DCR_ASSERT(positions_bytes <= static_cast<std::size_t>(positions_end - positions));
    std::memcpy(positions, changes.positions, positions_bytes);
    positions += positions_bytes;
    const std::size_t values_bytes = changes.count * item.header.width;
    DCR_ASSERT(values_bytes <= static_cast<std::size_t>(values_end - values));
    std::memcpy(values, changes.values, values_bytes);
    values += values_bytes;
  }
  DCR_ASSERT(positions == positions_end && values == values_end);
  std::fill(positions, block.data() + layout.values_at, std::uint8_t{0});
  std::fill(values, block.data() + layout.bytes, std::uint8_t{0});
}

DecodedItem entries_in(const ItemHeader& header, ByteSpan block) {
  const EntriesLayout layout(header);
  DCR_ASSERT(block.size() == layout.bytes);
  DCR_ASSERT(reinterpret_cast<std::uintptr_t>(block.data()) % kAlignment == 0);
  return {header,
          {reinterpret_cast<const std::uint32_t*>(block.data()),
           static_cast<std::size_t>(header.changes)},
          block.subspan(layout.values_at, layout.values_bytes)};
}

Status check_decoded(std::span<const DecodedItem> items, std::span<const TensorSpec> tensors,
                     std::uint64_t memory_bytes_max) {
  const ItemHeader* before = nullptr;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const ItemHeader& header = items[i].header;
    const Status status = check_header(header, tensors, before);
    if (!status.ok()) {
      return status.with_context("item " + std::to_string(i) + " (tensor index " +
                                 std::to_string(header.tensor) + ")");
    }
    before = &header;
  }
  const auto header_at = [&](std::size_t i) -> const ItemHeader& { return items[i].header; };
  return check_overlap(items.size(), header_at, memory_bytes_max);
}

Result<std::uint64_t> decoded_bytes(const Payload& payload, std::uint64_t decoded_bytes_max) {
  std::uint64_t bytes = 0;
  for (const ItemView& item : payload.items()) bytes += decoded_bytes(item.header);
  if (bytes <= decoded_bytes_max) return bytes;
  return Status(Code::kTooLarge, "payload: decoding takes " + std::to_string(bytes) +
                                     " bytes, above the limit of " +
                                     std::to_string(decoded_bytes_max));
}

Digest stored_digest(ByteSpan stored) {
  Digest digest{};
  std::copy_n(stored.begin() + kPayloadDigestOffset, digest.size(), digest.begin());
  return digest;
}

Result<std::shared_ptr<const DecodedPayload>> decode_payload(ByteSpan stored, const Digest& schema,
                                                             std::span<const TensorSpec> tensors,
                                                             const PayloadLimits& limits,
                                                             std::uint64_t decoded_bytes_max,
                                                             ByteSpan key) {
  DCR_ASSIGN(const Payload payload, Payload::read(stored, schema, tensors, limits, key));
  auto decoded = std::make_shared<DecodedPayload>();
  decoded->header = payload.header();
  decoded->digest = stored_digest(stored);
  DCR_ASSIGN(decoded->bytes, decoded_bytes(payload, decoded_bytes_max));
  std::size_t size = 0;
  for (const ItemView& item : payload.items()) size += EntriesLayout(item.header).bytes;
  const auto memory = std::make_shared_for_overwrite<std::uint8_t[]>(size);
  decoded->memory = memory;
  decoded->items.reserve(payload.items().size());
  std::size_t at = 0;
  for (const ItemView& item : payload.items()) {
    const MutableByteSpan block(memory.get() + at, EntriesLayout(item.header).bytes);
    decode_entries(item, block);
    decoded->items.push_back(entries_in(item.header, block));
    at += block.size();
  }
  return std::shared_ptr<const DecodedPayload>(std::move(decoded));
}

}  // namespace dcr
