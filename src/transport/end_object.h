// The object that ends an owner's attempt (docs/FORMAT.md "End").
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/digest.h"
#include "dcr/status.h"
#include "dcr/transport.h"

namespace dcr {

// Whose end it is.
struct EndPlace {
  Digest run{};
  std::uint64_t attempt = 0;
  std::uint32_t owner = 0;
  std::uint32_t owners = 1;
};

inline constexpr std::uint64_t kEndHeaderBytes = 56;
inline constexpr std::uint64_t kEndEntryBytes = 24;
inline constexpr std::uint64_t kEndBytesMax =
    kEndHeaderBytes + kPayloadsPerOwnerMax * kEndEntryBytes + sizeof(Digest);

// REQUIRES: at most kPayloadsPerOwnerMax payloads. `key`: as for Blake2b.
Bytes encode_end(const EndPlace& place, const AttemptEnd& end, ByteSpan key = {});

// Validates all of it. Errors: kCorrupt, kUnsupported, and kMismatch where it is another's.
Result<AttemptEnd> decode_end(const EndPlace& place, ByteSpan bytes, ByteSpan key = {});

}  // namespace dcr
