#include "codec/payload.h"

#include <algorithm>
#include <string>

#include "base/checked.h"
#include "base/limits.h"
#include "base/mutant.h"
#include "codec/compress.h"
#include "codec/container.h"
#include "codec/item_parser.h"
#include "dcr/options.h"

namespace dcr {
namespace {

Status corrupt_payload(std::string message) {
  return Status(Code::kCorrupt, "payload: " + std::move(message));
}

// What must hold before the digest is verified: enough to know where it is and how much it covers.
Status check_envelope(ByteSpan stored, const PayloadLimits& limits, std::uint32_t* header_bytes) {
  if (stored.size() > limits.stored_bytes_max) {
    return Status(Code::kTooLarge, "payload: " + std::to_string(stored.size()) +
                                       " bytes are above the limit of " +
                                       std::to_string(limits.stored_bytes_max));
  }
  if (stored.size() < kPayloadFixedBytes) return corrupt_payload("truncated header");
  ByteReader in(stored);
  if (in.text(kPayloadMagic.size()) != kPayloadMagic) return corrupt_payload("wrong magic");
  const std::uint32_t version = in.u32();
  if (version != kFormatVersion) {
    return Status(Code::kUnsupported, "payload: format version " + std::to_string(version) +
                                          "; this build reads version " +
                                          std::to_string(kFormatVersion));
  }
  *header_bytes = in.u32();
  if (*header_bytes < kPayloadFixedBytes || *header_bytes > stored.size()) {
    return corrupt_payload("header length " + std::to_string(*header_bytes) + " out of range");
  }
  const std::uint64_t total = in.u64();
  if (total != stored.size()) {
    return corrupt_payload("header says " + std::to_string(total) + " bytes, there are " +
                           std::to_string(stored.size()));
  }
  return {};
}

Status check_digest(ByteSpan stored, ByteSpan key) {
  const std::uint8_t algorithm = stored[kPayloadDigestOffset - 24];
  if (algorithm != kDigestBlake2b128 && algorithm != kDigestBlake2b128Keyed) {
    return Status(Code::kUnsupported, "payload: digest algorithm " + std::to_string(algorithm));
  }
  if ((algorithm == kDigestBlake2b128Keyed) == key.empty()) {
    return corrupt_payload(key.empty() ? "keyed digest, but no run key is configured"
                                       : "digest without the configured run key");
  }
  static constexpr Digest kZero{};
  Blake2b hash(key);
  hash.update(stored.first(kPayloadDigestOffset));
  hash.update(kZero);
  hash.update(stored.subspan(kPayloadDigestOffset + sizeof(Digest)));
  Digest claimed;
  std::copy_n(stored.begin() + kPayloadDigestOffset, claimed.size(), claimed.begin());
  if (DCR_MUTANT("payload_digest_unchecked")) return {};
  if (!digest_equal(hash.finish(), claimed))
    return corrupt_payload("digest does not match its bytes");
  return {};
}

// The identifiers, from the start. `streams` becomes the number of table entries.
Status parse_header(ByteReader* in, PayloadHeader* header, std::uint64_t* raw_bytes,
                    std::uint16_t* streams) {
  in->bytes(kPayloadMagic.size() + 4 + 4 + 8);  // the envelope
  *raw_bytes = in->u64();
  const ByteSpan run = in->bytes(sizeof(Digest));
  std::copy(run.begin(), run.end(), header->run.begin());
  header->attempt = in->u64();
  header->owner = in->u32();
  header->owners = in->u32();
  header->number = in->u64();
  header->base_version = in->u64();
  header->target_version = in->u64();
  in->u8();  // the digest's algorithm, checked with it
  const std::uint8_t schema_algorithm = in->u8();
  *streams = in->u16();
  const std::uint32_t reserved = in->u32();
  const ByteSpan schema = in->bytes(sizeof(Digest));
  std::copy(schema.begin(), schema.end(), header->schema.begin());
  in->bytes(sizeof(Digest));
  if (!in->ok()) return corrupt_payload("truncated header");
  if (header->owners == 0 || header->owner >= header->owners) {
    return corrupt_payload("owner " + std::to_string(header->owner) + " of " +
                           std::to_string(header->owners));
  }
  const auto scaled = checked_multiply(header->number, header->owners);
  if (!scaled || !checked_add(*scaled, header->owner))
    return corrupt_payload("payload number overflows");
  if (schema_algorithm != kDigestBlake2b128) {
    return Status(Code::kUnsupported,
                  "payload: schema digest algorithm " + std::to_string(schema_algorithm));
  }
  if (reserved != 0) return corrupt_payload("reserved bytes are not zero");
  return {};
}

bool valid_stream_width(StreamKind kind, unsigned width) {
  if (kind < StreamKind::kSymbol2) return width == 0;
  if (width != 1 && width != 2 && width != 4 && width != 8) return false;
  const unsigned plane = static_cast<unsigned>(kind) - static_cast<unsigned>(StreamKind::kPlane0);
  return kind < StreamKind::kPlane0 || plane < width;
}

Status parse_stream(ByteReader* in, std::uint64_t raw_left, StreamEntry* entry) {
  const std::uint8_t kind = in->u8();
  entry->coding = in->u8();
  entry->width = in->u8();
  entry->raw_bytes = in->varint();
  entry->stored_bytes = in->varint();
  if (!in->ok()) return corrupt_payload("truncated stream table");
  if (kind >= kStreamKindCount) {
    return Status(Code::kUnsupported, "payload: stream kind " + std::to_string(kind));
  }
  entry->kind = static_cast<StreamKind>(kind);
  const std::string name = stream_name(entry->kind);
  if (entry->coding >= kCodingCount) {
    return Status(Code::kUnsupported,
                  "payload: coding " + std::to_string(entry->coding) + " of stream " + name);
  }
  if (!valid_stream_width(entry->kind, entry->width)) {
    return corrupt_payload("stream " + name + " of width " + std::to_string(entry->width));
  }
  if (entry->raw_bytes == 0 || entry->stored_bytes == 0)
    return corrupt_payload("stream " + name + " is empty");
  if (entry->raw_bytes > raw_left) {
    return Status(Code::kTooLarge,
                  "payload: stream " + name + " of " + std::to_string(entry->raw_bytes) +
                      " bytes exceeds the raw size that is left, " + std::to_string(raw_left));
  }
  if (entry->coding == kCodingStored && entry->raw_bytes != entry->stored_bytes) {
    return corrupt_payload("stream " + name + " is stored with two sizes");
  }
  return {};
}

Status parse_table(ByteReader* in, std::uint16_t count, std::uint64_t raw_bytes,
                   std::vector<StreamEntry>* entries) {
  std::uint64_t raw_left = raw_bytes;
  unsigned next_slot = 0;
  for (unsigned i = 0; i < count; ++i) {
    StreamEntry entry;
    DCR_TRY(parse_stream(in, raw_left, &entry));
    raw_left -= entry.raw_bytes;
    const unsigned slot = stream_slot(entry.kind, entry.width);
    if (slot < next_slot) return corrupt_payload("streams are out of order or repeated");
    next_slot = slot + 1;
    entries->push_back(entry);
  }
  if (raw_left != 0) return corrupt_payload("streams do not add up to the raw size");
  return {};
}

}  // namespace

std::string stream_name(StreamKind kind) {
  static constexpr const char* kNames[] = {"items",   "gaps",    "gap_low", "bitmap",
                                           "symbol2", "symbol4", "symbol8", "extra"};
  const unsigned index = static_cast<unsigned>(kind);
  const unsigned first_plane = static_cast<unsigned>(StreamKind::kPlane0);
  return index < first_plane ? kNames[index] : "plane" + std::to_string(index - first_plane);
}

Result<PayloadHeader> peek_payload_header(ByteSpan stored) {
  std::uint32_t header_bytes = 0;
  DCR_TRY(check_envelope(stored, {stored.size(), 0}, &header_bytes));
  PayloadHeader header;
  ByteReader in(stored.first(header_bytes));
  std::uint64_t raw_bytes = 0;
  std::uint16_t streams = 0;
  DCR_TRY(parse_header(&in, &header, &raw_bytes, &streams));
  return header;
}

Status Payload::check_streams(ByteSpan body) {
  for (const StreamEntry& entry : entries_) {
    if (entry.stored_bytes > body.size())
      return corrupt_payload("streams are longer than the payload");
    const ByteSpan stored = body.first(static_cast<std::size_t>(entry.stored_bytes));
    body = body.subspan(stored.size());
    if (entry.coding != kCodingZstd) continue;
    // All frames' claims are checked before memory for any of them is taken.
    DCR_TRY(check_frame(stored, entry.raw_bytes)
                .with_context("payload: stream " + stream_name(entry.kind)));
  }
  if (!body.empty())
    return corrupt_payload(std::to_string(body.size()) + " bytes after the last stream");
  return {};
}

Status Payload::decompress(ByteSpan body, std::uint64_t raw_bytes) {
  // Not initialised: every byte is written by a stream, or the payload is dropped.
  raw_ = std::make_unique_for_overwrite<std::uint8_t[]>(static_cast<std::size_t>(raw_bytes));
  std::uint8_t* raw = raw_.get();
  for (const StreamEntry& entry : entries_) {
    const ByteSpan stored = body.first(static_cast<std::size_t>(entry.stored_bytes));
    body = body.subspan(stored.size());
    const MutableByteSpan out(raw, static_cast<std::size_t>(entry.raw_bytes));
    raw += out.size();
    if (entry.coding == kCodingZstd) {
      DCR_TRY(
          decompress_frame(stored, out).with_context("payload: stream " + stream_name(entry.kind)));
    } else {
      std::copy(stored.begin(), stored.end(), out.begin());
    }
  }
  return {};
}

Result<Payload> Payload::read(ByteSpan stored, const Digest& schema,
                              std::span<const TensorSpec> tensors, const PayloadLimits& limits,
                              ByteSpan key) {
  std::uint32_t header_bytes = 0;
  DCR_TRY(check_envelope(stored, limits, &header_bytes));
  DCR_TRY(check_digest(stored, key));
  Payload payload;
  ByteReader in(stored.first(header_bytes));
  std::uint64_t raw_bytes = 0;
  std::uint16_t streams = 0;
  DCR_TRY(parse_header(&in, &payload.header_, &raw_bytes, &streams));
  if (raw_bytes > limits.raw_bytes_max) {
    return Status(Code::kTooLarge, "payload: raw size " + std::to_string(raw_bytes) +
                                       " is above the limit of " +
                                       std::to_string(limits.raw_bytes_max));
  }
  if (!digest_equal(payload.header_.schema, schema)) {
    return Status(Code::kMismatch, "payload: made for another tensor table (schema " +
                                       digest_text(payload.header_.schema) + ", expected " +
                                       digest_text(schema) + ")");
  }
  DCR_TRY(parse_table(&in, streams, raw_bytes, &payload.entries_));
  if (in.remaining() != 0) return corrupt_payload("bytes after the stream table");
  const ByteSpan body = stored.subspan(header_bytes);
  DCR_TRY(payload.check_streams(body));
  DCR_TRY(payload.decompress(body, raw_bytes));
  DCR_TRY(parse_items(payload.entries_, payload.raw_.get(), tensors, limits.raw_bytes_max,
                      &payload.items_));
  return payload;
}

std::uint64_t Payload::raw_bytes() const {
  std::uint64_t sum = 0;
  for (const StreamEntry& entry : entries_) sum += entry.raw_bytes;
  return sum;
}

std::uint64_t Payload::memory_bytes() const {
  std::uint64_t sum = raw_bytes() + entries_.capacity() * sizeof(StreamEntry) +
                      items_.capacity() * sizeof(ItemView);
  for (const ItemView& item : items_) {
    sum += item.header.box.dims.capacity() * sizeof(ItemDimension);
  }
  return sum;
}

}  // namespace dcr
