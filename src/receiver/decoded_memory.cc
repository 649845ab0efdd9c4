#include "receiver/decoded_memory.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/checked.h"
#include "base/limits.h"

namespace dcr {
namespace {

constexpr std::string_view kMagic = "DCRDECOD";
constexpr std::size_t kPadding = 8;

std::uint64_t padded(std::uint64_t bytes) { return (bytes + kPadding - 1) / kPadding * kPadding; }

std::uint64_t item_bytes(const ItemHeader& header) {
  return padded(header.changes * sizeof(std::uint32_t)) + padded(header.changes * header.width);
}

Status corrupt(const std::string& what) {
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
  if (dimensions > kRankMax) return corrupt(item_text(number) + "too many dimensions");
  for (std::uint16_t i = 0; i < dimensions; ++i) {
    const std::uint64_t size = in.u64();
    const std::uint64_t stride = in.u64();
    header.box.dims.push_back({size, stride});
  }
  if (!in.ok()) return corrupt(item_text(number) + "its head is cut short");
  const std::uint8_t width = header.width;
  if (width != 1 && width != 2 && width != 4 && width != 8) {
    return corrupt(item_text(number) + "words of " + std::to_string(width) + " bytes");
  }
  if (encoding > static_cast<std::uint8_t>(Encoding::kAdd)) {
    return corrupt(item_text(number) + "encoding " + std::to_string(encoding));
  }
  header.encoding = static_cast<Encoding>(encoding);
  const std::optional<std::uint64_t> words = words_of(header.box);
  if (!words || header.changes > *words) {
    return corrupt(item_text(number) + "more changes than words, or too many words");
  }
  return {};
}

Status read_entries(ByteReader& in, std::size_t number, DecodedItem* item) {
  const auto changes = static_cast<std::size_t>(item->header.changes);
  const ByteSpan positions = in.bytes(padded(changes * sizeof(std::uint32_t)));
  const ByteSpan values = in.bytes(padded(changes * item->header.width));
  if (!in.ok()) return corrupt(item_text(number) + "its entries are cut short");
  if (changes == 0) return {};
  item->positions.resize(changes);
  std::memcpy(item->positions.data(), positions.data(), changes * sizeof(std::uint32_t));
  item->values.assign(values.begin(),
                      values.begin() + static_cast<std::ptrdiff_t>(changes * item->header.width));
  const bool ascending = std::adjacent_find(item->positions.begin(), item->positions.end(),
                                            [](std::uint32_t a, std::uint32_t b) {
                                              return a >= b;
                                            }) == item->positions.end();
  if (!ascending || item->positions.back() >= item->header.box.words()) {
    return corrupt(item_text(number) + "positions that do not ascend within its box");
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

}  // namespace

Bytes encode_decoded(const DecodedPayload& payload) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.text(kMagic);
  out.u32(kDecodedMemoryVersion);
  out.u32(static_cast<std::uint32_t>(payload.items.size()));
  const std::size_t size_at = bytes.size();
  out.u64(0);
  const PayloadHeader& header = payload.header;
  out.bytes(header.run);
  out.u64(header.attempt);
  out.u32(header.owner);
  out.u32(header.owners);
  out.u64(header.number);
  out.u64(header.base_version);
  out.u64(header.target_version);
  out.bytes(header.schema);
  out.bytes(payload.digest);
  std::uint64_t entries = 0;
  for (const DecodedItem& item : payload.items) {
    write_item(out, item.header);
    entries += item_bytes(item.header);
  }
  const std::uint64_t size = bytes.size() + entries;
  store_little(bytes.data() + size_at, size);
  bytes.reserve(static_cast<std::size_t>(size));
  for (const DecodedItem& item : payload.items) {
    const std::size_t positions = item.positions.size() * sizeof(std::uint32_t);
    out.bytes({reinterpret_cast<const std::uint8_t*>(item.positions.data()), positions});
    out.zeros(static_cast<std::size_t>(padded(positions)) - positions);
    out.bytes(item.values);
    out.zeros(static_cast<std::size_t>(padded(item.values.size())) - item.values.size());
  }
  return bytes;
}

Result<std::shared_ptr<const DecodedPayload>> parse_decoded(ByteSpan memory,
                                                            std::uint64_t decoded_bytes_max) {
  ByteReader in(memory);
  if (in.text(kMagic.size()) != kMagic) return corrupt("no magic");
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
  read_header(in, payload.get());
  if (!in.ok()) return corrupt("its head is cut short");
  if (size != memory.size()) return corrupt("another size than it says");
  if (items > kItemsPerPayloadMax) return corrupt("too many items");
  payload->items.resize(items);
  std::uint64_t entries = 0;
  for (std::size_t i = 0; i < items; ++i) {
    DCR_TRY(read_item(in, i, &payload->items[i]));
    payload->bytes += decoded_bytes(payload->items[i].header);  // below 2^17 · 2^24 · 12
    entries += item_bytes(payload->items[i].header);
  }
  if (entries != in.remaining()) return corrupt("other entries than its items count");
  if (payload->bytes > decoded_bytes_max) {
    return Status(Code::kTooLarge, "a decoded payload has " + std::to_string(payload->bytes) +
                                       " bytes, above the limit of " +
                                       std::to_string(decoded_bytes_max));
  }
  for (std::size_t i = 0; i < items; ++i) DCR_TRY(read_entries(in, i, &payload->items[i]));
  return std::shared_ptr<const DecodedPayload>(std::move(payload));
}

}  // namespace dcr
