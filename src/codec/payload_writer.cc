#include <array>
#include <cstring>

#include "base/assert.h"
#include "base/limits.h"
#include "codec/compress.h"
#include "codec/container.h"
#include "codec/payload.h"
#include "dcr/options.h"

namespace dcr {

namespace {

// More than a payload's header takes, and than the compressor wants beyond its part of each stream.
constexpr std::size_t kSealSlackBytes = 32 * kKiB;

}  // namespace

struct PayloadWriter::Streams {
  std::array<Bytes, kStreamSlots> bytes;
  std::uint64_t items = 0;
  std::uint64_t raw_bytes = 0;
  // What the next item's record is relative to.
  std::uint32_t tensor = 0;
  std::uint64_t range_end = 0;
  std::uint64_t last_offset = 0;

  void add(StreamKind kind, unsigned word_width, ByteSpan part) {
    Bytes& stream = bytes[stream_slot(kind, stream_width(kind, word_width))];
    stream.insert(stream.end(), part.begin(), part.end());
    raw_bytes += part.size();
  }

  void add_record(const ItemHeader& item) {
    Bytes& stream = bytes[stream_slot(StreamKind::kItems, 0)];
    const std::size_t before = stream.size();
    ByteWriter out(&stream);
    const bool same_tensor = items > 0 && item.tensor == tensor;
    DCR_ASSERT(items == 0 || item.tensor >= tensor);
    DCR_ASSERT(!same_tensor || item.box.offset > last_offset);
    if (!same_tensor) range_end = 0;
    out.varint(item.tensor - tensor);
    out.u8(static_cast<std::uint8_t>(static_cast<unsigned>(item.encoding) << kFlagEncodingShift |
                                     static_cast<unsigned>(item.location) << kFlagLocationShift |
                                     static_cast<unsigned>(item.value) << kFlagValueShift |
                                     (item.box.is_range() ? 0u : unsigned{kFlagStrided})));
    if (item.box.is_range()) {
      out.varint(item.box.offset - range_end);
      out.varint(item.box.dims[0].size);
      range_end = item.box.end();
    } else {
      out.varint(item.box.dims.size());
      out.varint(item.box.offset);
      for (const ItemDimension& dim : item.box.dims) {
        out.varint(dim.size);
        out.varint(dim.stride);
      }
      range_end = 0;
    }
    if (item.location != LocationCoding::kAll) out.varint(item.changes);
    if (item.location == LocationCoding::kGaps) {
      out.u8(item.gap_shift);
      out.varint(item.continuations);
    }
    const bool packed = item.value == ValueCoding::kSymbol2 || item.value == ValueCoding::kSymbol4;
    if (packed) out.varint(item.escapes);
    if (item.value != ValueCoding::kPlanes) out.varint(item.extra_bytes);
    tensor = item.tensor;
    last_offset = item.box.offset;
    ++items;
    raw_bytes += stream.size() - before;
  }
};

PayloadWriter::PayloadWriter() : streams_(std::make_unique<Streams>()) {}
PayloadWriter::~PayloadWriter() = default;
PayloadWriter::PayloadWriter(PayloadWriter&&) noexcept = default;
PayloadWriter& PayloadWriter::operator=(PayloadWriter&&) noexcept = default;

std::uint64_t PayloadWriter::items() const { return streams_->items; }
std::uint64_t PayloadWriter::raw_bytes() const { return streams_->raw_bytes; }

void PayloadWriter::append(const EncodedItem& item) {
  Streams& s = *streams_;
  const ItemHeader& header = item.header;
  const unsigned width = header.width;
  s.add_record(header);
  const bool bitmap = header.location == LocationCoding::kBitmap;
  s.add(bitmap ? StreamKind::kBitmap : StreamKind::kGaps, width, item.locations);
  s.add(StreamKind::kGapLow, width, item.gap_low);
  switch (header.value) {
    case ValueCoding::kPlanes:
      for (unsigned plane = 0; plane < width; ++plane) {
        const std::size_t count = static_cast<std::size_t>(header.changes);
        s.add(plane_stream(plane), width, ByteSpan(item.symbols).subspan(plane * count, count));
      }
      return;
    case ValueCoding::kSymbol2:
      s.add(StreamKind::kSymbol2, width, item.symbols);
      break;
    case ValueCoding::kSymbol4:
      s.add(StreamKind::kSymbol4, width, item.symbols);
      break;
    case ValueCoding::kSymbol8:
      s.add(StreamKind::kSymbol8, width, item.symbols);
      break;
  }
  s.add(StreamKind::kSymbol8, width, item.escapes);
  s.add(StreamKind::kExtra, width, item.extra);
}

Bytes PayloadWriter::seal(const PayloadHeader& header, ByteSpan key) {
  Streams& s = *streams_;
  Bytes table;
  ByteWriter entries(&table);
  // Room for everything at once, the header too: a body that moves to grow, or is copied behind its
  // header, would take as much memory again. What is not written to costs none.
  Bytes payload;
  payload.reserve(static_cast<std::size_t>(s.raw_bytes + s.raw_bytes / 128) + kSealSlackBytes);
  std::uint16_t count = 0;
  for (unsigned slot = 0; slot < kStreamSlots; ++slot) {
    Bytes& raw = s.bytes[slot];
    if (raw.empty()) continue;
    const std::size_t before = payload.size();
    const std::uint8_t coding = compress_stream(raw, &payload);
    entries.u8(static_cast<std::uint8_t>(slot / 9));
    entries.u8(coding);
    entries.u8(static_cast<std::uint8_t>(slot % 9));
    entries.varint(raw.size());
    entries.varint(payload.size() - before);
    ++count;
    Bytes().swap(raw);  // its memory is not needed any more
  }
  Bytes head;
  const std::size_t header_bytes = kPayloadFixedBytes + table.size();
  ByteWriter out(&head);
  out.text(kPayloadMagic);
  out.u32(kFormatVersion);
  out.u32(static_cast<std::uint32_t>(header_bytes));
  out.u64(header_bytes + payload.size());
  out.u64(s.raw_bytes);
  out.bytes(header.run);
  out.u64(header.attempt);
  out.u32(header.owner);
  out.u32(header.owners);
  out.u64(header.number);
  out.u64(header.base_version);
  out.u64(header.target_version);
  out.u8(key.empty() ? kDigestBlake2b128 : kDigestBlake2b128Keyed);
  out.u8(kDigestBlake2b128);  // of the schema
  out.u16(count);
  out.u32(0);
  out.bytes(header.schema);
  DCR_ASSERT(head.size() == kPayloadDigestOffset);
  out.zeros(sizeof(Digest));
  out.bytes(table);
  payload.insert(payload.begin(), head.begin(), head.end());
  const Digest digest = blake2b(payload, key);
  std::memcpy(payload.data() + kPayloadDigestOffset, digest.data(), digest.size());
  return payload;
}

}  // namespace dcr
