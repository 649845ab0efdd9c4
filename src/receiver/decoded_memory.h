// A decoded payload in one block of memory, as a node hands it to the receivers of its machine
// (DESIGN §8 rule 11). Not a format of files or networks: it lives as long as the two processes,
// and both are of one build.
//
// All numbers are little-endian. A head: magic "DCRDECOD", u32 version 0, u32 items, u64 bytes of
// the whole; the payload's header: run, u64 attempt, u32 owner, u32 owners, u64 number, u64 base
// version, u64 target version, schema; its digest. Then, of each item: u32 tensor, u8 width, u8
// encoding, u16 dimensions, u64 changes, u64 offset, and a u64 size and stride per dimension. Then,
// of each item, positions (u32) and values, each filled up to a multiple of 8 bytes.
#pragma once

#include <cstdint>
#include <memory>

#include "base/bytes.h"
#include "base/limits.h"
#include "receiver/decoded.h"

namespace dcr {

inline constexpr std::uint32_t kDecodedMemoryVersion = 0;

// What it may have beside positions and values: heads and padding of the most items.
inline constexpr std::uint64_t kDecodedMemoryHeadBytesMax =
    1024 + kItemsPerPayloadMax * (24 + 16 * kRankMax + 14);

Bytes encode_decoded(const DecodedPayload& payload);

// Validates all but what the receiver's own tables decide: counts and sizes, that positions ascend
// within their box. Errors: kCorrupt naming the field and item, kUnsupported, kTooLarge above
// `decoded_bytes_max` of positions and values.
Result<std::shared_ptr<const DecodedPayload>> parse_decoded(ByteSpan memory,
                                                            std::uint64_t decoded_bytes_max);

}  // namespace dcr
