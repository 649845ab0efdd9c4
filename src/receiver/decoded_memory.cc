#include "receiver/decoded_memory.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/assert.h"
#include "base/limits.h"

namespace dcr {
namespace {

constexpr std::string_view kMagic = "DCRDECOD";
constexpr std::size_t kHeadBytes = 8 + 4 + 4 + 8 + 16 + 8 + 4 + 4 + 8 + 8 + 8 + 16 + 16;
// Memory that is written in parts of this size costs half of what writing it through a mapping
// does: nothing is zeroed before, and no page has to be asked for.
constexpr std::size_t kPartBytes = std::size_t{1} << 20;

std::uint64_t item_head_bytes(const ItemHeader& header) {
  return 4 + 1 + 1 + 2 + 8 + 8 + 16 * header.box.dims.size();
}

Status corrupt_memory(const std::string& what) {
  return {Code::kCorrupt, "a decoded payload handed over by the node: " + what};
}

std::string item_text(std::size_t item) { return "item " + std::to_string(item) + ": "; }

void write_item(ByteWriter& out, const ItemHeader& header) {
  out.u32(header.tensor);
  out.u8(header.width);
  out.u8(static_cast<std::uint8_t>(header.encoding));
  out.u16(static_cast<std::uint16_t>(header.box.dims.size()));
  out.u64(header.changes);
  out.u64(header.box.offset);
  for (const ItemDimension& dimension : header.box.dims) {
    out.u64(dimension.size);
    out.u64(dimension.stride);
  }
}

// Words of a box, if they are no more than an item may have.
std::optional<std::uint64_t> words_of(const ItemBox& box) {
  std::uint64_t words = 1;
  for (const ItemDimension& dimension : box.dims) {
    if (dimension.size > kItemElementsMax) return std::nullopt;
    words *= dimension.size;  // below 2^48
    if (words > kItemElementsMax) return std::nullopt;
  }
  return words;
}

Status read_item(ByteReader& in, std::size_t number, DecodedItem* item) {
  ItemHeader& header = item->header;
  header.tensor = in.u32();
  header.width = in.u8();
  const std::uint8_t encoding = in.u8();
  const std::uint16_t dimensions = in.u16();
  header.changes = in.u64();
  header.box.offset = in.u64();
  if (dimensions > kRankMax) return corrupt_memory(item_text(number) + "too many dimensions");
  for (std::uint16_t i = 0; i < dimensions; ++i) {
    const std::uint64_t size = in.u64();
    const std::uint64_t stride = in.u64();
    header.box.dims.push_back({size, stride});
  }
  if (!in.ok()) return corrupt_memory(item_text(number) + "its head is cut short");
  const std::uint8_t width = header.width;
  if (width != 1 && width != 2 && width != 4 && width != 8) {
    return corrupt_memory(item_text(number) + "words of " + std::to_string(width) + " bytes");
  }
  if (encoding > static_cast<std::uint8_t>(Encoding::kAdd)) {
    return corrupt_memory(item_text(number) + "encoding " + std::to_string(encoding));
  }
  header.encoding = static_cast<Encoding>(encoding);
  const std::optional<std::uint64_t> words = words_of(header.box);
  if (!words || header.changes > *words) {
    return corrupt_memory(item_text(number) + "more changes than words, or too many words");
  }
  return {};
}

// Looks at all of them, whatever the first says: without a branch many are compared at a time.
bool ascend(std::span<const std::uint32_t> positions) {
  std::uint32_t falls = 0;
  for (std::size_t i = 1; i < positions.size(); ++i) {
    falls |= static_cast<std::uint32_t>(positions[i - 1] >= positions[i]);
  }
  return falls == 0;
}

Status read_entries(ByteReader& in, std::size_t number, DecodedItem* item) {
  const ByteSpan block = in.bytes(EntriesLayout(item->header).bytes);
  if (!in.ok()) return corrupt_memory(item_text(number) + "its entries are cut short");
  *item = entries_in(item->header, block);
  if (item->positions.empty()) return {};
  if (!ascend(item->positions) || item->positions.back() >= item->header.box.words()) {
    return corrupt_memory(item_text(number) + "positions that do not ascend within its box");
  }
  return {};
}

Digest read_digest(ByteReader& in) {
  Digest digest{};
  const ByteSpan bytes = in.bytes(digest.size());
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return digest;
}

void read_header(ByteReader& in, DecodedPayload* payload) {
  PayloadHeader& header = payload->header;
  header.run = read_digest(in);
  header.attempt = in.u64();
  header.owner = in.u32();
  header.owners = in.u32();
  header.number = in.u64();
  header.base_version = in.u64();
  header.target_version = in.u64();
  header.schema = read_digest(in);
  payload->digest = read_digest(in);
}

Bytes encode_heads(const Payload& payload, const Digest& digest) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.text(kMagic);
  out.u32(kDecodedMemoryVersion);
  out.u32(static_cast<std::uint32_t>(payload.items().size()));
  out.u64(decoded_memory_bytes(payload));
  const PayloadHeader& header = payload.header();
  out.bytes(header.run);
  out.u64(header.attempt);
  out.u32(header.owner);
  out.u32(header.owners);
  out.u64(header.number);
  out.u64(header.base_version);
  out.u64(header.target_version);
  out.bytes(header.schema);
  out.bytes(digest);
  DCR_ASSERT(bytes.size() == kHeadBytes);
  for (const ItemView& item : payload.items()) write_item(out, item.header);
  return bytes;
}

}  // namespace

std::uint64_t decoded_memory_bytes(const Payload& payload) {
  std::uint64_t bytes = kHeadBytes;
  for (const ItemView& item : payload.items()) {
    bytes += item_head_bytes(item.header) + EntriesLayout(item.header).bytes;
  }
  return bytes;
}

Status write_decoded(const Payload& payload, const Digest& digest,
                     const std::function<Status(std::uint64_t at, ByteSpan part)>& write) {
  const Bytes heads = encode_heads(payload, digest);
  DCR_TRY(write(0, heads));
  std::size_t largest = 0;
  std::size_t entries = 0;
  for (const ItemView& item : payload.items()) {
    const std::size_t bytes = EntriesLayout(item.header).bytes;
    largest = std::max(largest, bytes);
    entries += bytes;
  }
  const std::size_t part_bytes = std::max(largest, std::min(kPartBytes, entries));
  const auto part = std::make_unique_for_overwrite<std::uint8_t[]>(part_bytes);
  std::uint64_t at = heads.size();
  std::size_t filled = 0;
  const auto write_part = [&]() -> Status {
    DCR_TRY(write(at, {part.get(), filled}));
    at += filled;
    filled = 0;
    return {};
  };
  for (const ItemView& item : payload.items()) {
    const std::size_t bytes = EntriesLayout(item.header).bytes;
    if (filled + bytes > part_bytes) DCR_TRY(write_part());
    decode_entries(item, {part.get() + filled, bytes});
    filled += bytes;
  }
  return write_part();
}

Result<std::shared_ptr<const DecodedPayload>> parse_decoded(ByteSpan bytes,
                                                            std::shared_ptr<const void> memory,
                                                            std::uint64_t decoded_bytes_max) {
  ByteReader in(bytes);
  if (in.text(kMagic.size()) != kMagic) return corrupt_memory("no magic");
  const std::uint32_t version = in.u32();
  if (in.ok() && version != kDecodedMemoryVersion) {
    return Status(Code::kUnsupported, "the node decodes for version " + std::to_string(version) +
                                          ", this receiver is of version " +
                                          std::to_string(kDecodedMemoryVersion) +
                                          ": run one build on a machine");
  }
  const std::uint32_t items = in.u32();
  const std::uint64_t size = in.u64();
  auto payload = std::make_shared<DecodedPayload>();
  payload->memory = std::move(memory);
  read_header(in, payload.get());
  if (!in.ok()) return corrupt_memory("its head is cut short");
  if (size != bytes.size()) return corrupt_memory("another size than it says");
  if (items > kItemsPerPayloadMax) return corrupt_memory("too many items");
  payload->items.resize(items);
  std::uint64_t entries = 0;
  for (std::size_t i = 0; i < items; ++i) {
    DCR_TRY(read_item(in, i, &payload->items[i]));
    payload->bytes += decoded_bytes(payload->items[i].header);  // below 2^17 · 2^24 · 12
    entries += EntriesLayout(payload->items[i].header).bytes;
  }
  if (entries != in.remaining()) return corrupt_memory("other entries than its items count");
  if (payload->bytes > decoded_bytes_max) {
    return Status(Code::kTooLarge, "a decoded payload has " + std::to_string(payload->bytes) +
                                       " bytes, above the limit of " +
                                       std::to_string(decoded_bytes_max));
  }
  for (std::size_t i = 0; i < items; ++i) DCR_TRY(read_entries(in, i, &payload->items[i]));
  return std::shared_ptr<const DecodedPayload>(std::move(payload));
}

}  // namespace dcr
