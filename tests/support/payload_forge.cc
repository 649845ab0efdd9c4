#include "tests/support/payload_forge.h"

#include <algorithm>

#include "base/assert.h"

namespace dcr {
namespace {

constexpr std::size_t kFixedBytes = 128;
constexpr std::size_t kDigestOffset = 112;

}  // namespace

PayloadForge& PayloadForge::stream(StreamKind kind, unsigned width, Bytes bytes) {
  streams.push_back(
      {static_cast<std::uint8_t>(kind), 0, static_cast<std::uint8_t>(width), std::move(bytes)});
  return *this;
}

Bytes PayloadForge::seal() const {
  Bytes table;
  Bytes body;
  std::uint64_t raw_sum = 0;
  ByteWriter entries(&table);
  for (const ForgedStream& stream : streams) {
    const std::uint64_t raw = stream.raw_bytes.value_or(stream.stored.size());
    entries.u8(stream.kind);
    entries.u8(stream.coding);
    entries.u8(stream.width);
    entries.varint(raw);
    entries.varint(stream.stored_bytes.value_or(stream.stored.size()));
    body.insert(body.end(), stream.stored.begin(), stream.stored.end());
    raw_sum += raw;
  }
  table.insert(table.end(), after_table.begin(), after_table.end());
  body.insert(body.end(), after_body.begin(), after_body.end());
  const std::size_t head = kFixedBytes + table.size();
  Bytes stored;
  ByteWriter out(&stored);
  out.text(magic);
  out.u32(version);
  out.u32(header_bytes.value_or(static_cast<std::uint32_t>(head)));
  out.u64(total_bytes.value_or(head + body.size()));
  out.u64(raw_bytes.value_or(raw_sum));
  out.bytes(header.run);
  out.u64(header.attempt);
  out.u32(header.owner);
  out.u32(header.owners);
  out.u64(header.number);
  out.u64(header.base_version);
  out.u64(header.target_version);
  out.u8(digest_algorithm);
  out.u8(schema_algorithm);
  out.u16(stream_count.value_or(static_cast<std::uint16_t>(streams.size())));
  out.u32(reserved);
  out.bytes(header.schema);
  out.zeros(sizeof(Digest));
  out.bytes(table);
  out.bytes(body);
  reseal(&stored);
  return stored;
}

void reseal(Bytes* stored) {
  DCR_ASSERT(stored->size() >= kFixedBytes);
  const auto field = stored->begin() + static_cast<std::ptrdiff_t>(kDigestOffset);
  std::fill_n(field, sizeof(Digest), std::uint8_t{0});
  const Digest digest = blake2b(*stored);
  std::copy(digest.begin(), digest.end(), field);
}

RecordForge& RecordForge::range(std::uint64_t tensor_step, std::uint8_t flags, std::uint64_t skip,
                                std::uint64_t size) {
  return varint(tensor_step).byte(flags).varint(skip).varint(size);
}

RecordForge& RecordForge::strided(
    std::uint64_t tensor_step, std::uint8_t flags, std::uint64_t offset,
    const std::vector<std::pair<std::uint64_t, std::uint64_t>>& dims) {
  varint(tensor_step).byte(flags | 0x40u).varint(dims.size()).varint(offset);
  for (const auto& [size, stride] : dims) varint(size).varint(stride);
  return *this;
}

RecordForge& RecordForge::varint(std::uint64_t value) {
  ByteWriter(&bytes_).varint(value);
  return *this;
}

RecordForge& RecordForge::byte(unsigned value) {
  bytes_.push_back(static_cast<std::uint8_t>(value));
  return *this;
}

}  // namespace dcr
