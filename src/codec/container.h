// The layout of a payload's bytes, shared by its writer and its reader. The document is
// docs/FORMAT.md "Payload".
#pragma once

#include <cstdint>
#include <string_view>

#include "codec/payload.h"

namespace dcr {

inline constexpr std::string_view kPayloadMagic = "DCRPAYLD";
// Bytes before the stream table.
inline constexpr std::size_t kPayloadFixedBytes = 128;
// Where the digest field lies: zero while the digest is computed.
inline constexpr std::size_t kPayloadDigestOffset = 112;

// Bits of an item's flag byte.
inline constexpr unsigned kFlagEncodingShift = 0;
inline constexpr unsigned kFlagLocationShift = 2;
inline constexpr unsigned kFlagValueShift = 4;
inline constexpr std::uint8_t kFlagStrided = 1 << 6;
inline constexpr std::uint8_t kFlagReserved = 1 << 7;

// Streams are found by kind and width.
inline constexpr unsigned kStreamSlots = kStreamKindCount * 9;
constexpr unsigned stream_slot(StreamKind kind, unsigned width) {
  return static_cast<unsigned>(kind) * 9 + width;
}

constexpr StreamKind plane_stream(unsigned plane) {
  return static_cast<StreamKind>(static_cast<unsigned>(StreamKind::kPlane0) + plane);
}

// The width a stream of this kind must have for words of `word_width` bytes.
constexpr unsigned stream_width(StreamKind kind, unsigned word_width) {
  return kind < StreamKind::kSymbol2 ? 0 : word_width;
}

}  // namespace dcr
