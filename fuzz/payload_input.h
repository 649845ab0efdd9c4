// Fuzzers' inputs as payloads. The first byte says how the rest becomes one: as it is; with its
// length and digest mended, so that what lies behind them is reached; or as the contents of
// streams, so that all of it reaches the items.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "codec/container.h"
#include "tests/support/payload_forge.h"

namespace dcr {

// The digest, the total length and the schema that the bytes should have.
inline void mend_payload(const Digest& schema, Bytes* stored) {
  constexpr std::size_t kTotalOffset = 16;
  if (stored->size() < kPayloadFixedBytes) return;
  store_little<std::uint64_t>(stored->data() + kTotalOffset, stored->size());
  std::copy(schema.begin(), schema.end(),
            stored->begin() + kPayloadDigestOffset - static_cast<std::ptrdiff_t>(schema.size()));
  reseal(stored);
}

// Pieces of (slot, length in two bytes, bytes): the streams' contents, one piece a slot.
inline Bytes payload_from_streams(const Digest& schema, ByteSpan input) {
  std::vector<Bytes> contents(kStreamSlots);
  ByteReader in(input);
  while (in.remaining() >= 3) {
    const unsigned slot = in.u8() % kStreamSlots;
    const std::uint16_t length = in.u16();
    const ByteSpan part = in.bytes(std::min<std::size_t>(length, in.remaining()));
    contents[slot].assign(part.begin(), part.end());
  }
  PayloadForge forge;
  forge.header.schema = schema;
  for (unsigned slot = 0; slot < kStreamSlots; ++slot) {
    if (contents[slot].empty()) continue;
    forge.stream(static_cast<StreamKind>(slot / 9), slot % 9, std::move(contents[slot]));
  }
  return forge.seal();
}

inline Bytes payload_input(const Digest& schema, const std::uint8_t* data, std::size_t size) {
  const ByteSpan input(data + 1, size - 1);
  if (data[0] % 3 == 2) return payload_from_streams(schema, input);
  Bytes stored(input.begin(), input.end());
  if (data[0] % 3 == 1) mend_payload(schema, &stored);
  return stored;
}

}  // namespace dcr
