// A decoded payload in one block of memory, as a node hands it to the receivers of its machine
// (docs/ARCHITECTURE.md "Processes"). Not a format of files or networks: it lives as long as the
// two processes, and both are of one build.
//
// All numbers are little-endian. A head: magic "DCRDECOD", u32 version 0, u32 items, u64 bytes of
// the whole; the payload's header: run, u64 attempt, u32 owner, u32 owners, u64 number, u64 base
// version, u64 target version, schema; its digest. Then, of each item: u32 tensor, u8 width, u8
// encoding, u16 dimensions, u64 changes, u64 offset, and a u64 size and stride per dimension. Then,
// of each item, positions (u32) and values, each filled up to a multiple of 8 bytes. It is decoded
// right into it, and receivers apply from it: its entries are never copied.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/bytes.h"
#include "base/limits.h"
#include "receiver/decoded.h"

namespace dcr {

inline constexpr std::uint32_t kDecodedMemoryVersion = 0;

// What it may have beside positions and values: heads and padding of the most items.
inline constexpr std::uint64_t kDecodedMemoryHeadBytesMax =
    1024 + kItemsPerPayloadMax * (24 + 16 * kRankMax + 14);

// Of the block that a payload takes.
std::uint64_t decoded_memory_bytes(const Payload& payload);

// Decodes a payload and writes the block, from its beginning to its end, in parts: what it takes
// meanwhile is a part, or the largest item.
Status write_decoded(const Payload& payload, const Digest& digest,
                     const std::function<Status(std::uint64_t at, ByteSpan part)>& write);

// Validates all but what the receiver's own tables decide (check_decoded): counts and sizes, that
// positions ascend within their box. What comes out lies in `bytes`, which `memory` keeps and
// nobody may change any more. Errors: kCorrupt naming the field and item, kUnsupported, kTooLarge
// above `decoded_bytes_max` of positions and values. REQUIRES: `bytes` begins at a multiple of 8.
Result<std::shared_ptr<const DecodedPayload>> parse_decoded(ByteSpan bytes,
                                                            std::shared_ptr<const void> memory,
                                                            std::uint64_t decoded_bytes_max);

}  // namespace dcr
