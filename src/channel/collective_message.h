// What owners of different processes say to each other in a Collective: the body of an envelope,
// whose incarnations are those of the processes.
//
//   u8 format (0), u8 kind, u64 meeting, and by kind
//   flags (0)   u32 sequence, flags to the end
//   part (1)    u64 number, u64 attempt, u32 tensor, u64 part, u64 first, u64 total, u64 offset,
//               bytes to the end
//   taken (2)   u64 number, u8 code, u16 and tensor's name, message to the end
//   left (3)    u8 finished, reason to the end
//
// with all numbers little-endian.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "base/bytes.h"
#include "base/limits.h"
#include "dcr/ports.h"
#include "dcr/status.h"

namespace dcr {

// Of flags, of one part, and of the bytes of a part that go in one message.
inline constexpr std::uint64_t kCollectiveFlagsMax = 8 * kMiB;
inline constexpr std::uint64_t kCollectivePartBytesMax = 16 * kMiB;
inline constexpr std::uint64_t kCollectiveFragmentBytesMax = 4 * kMiB;
inline constexpr std::uint64_t kCollectiveTextBytesMax = 4096;

// A rank's flags of the meeting's reduction number `sequence`, from 0 on.
struct CollectiveFlags {
  std::uint32_t sequence = 0;
  Bytes flags;
  bool operator==(const CollectiveFlags&) const = default;
};

// Some bytes of a part. Numbers ascend over all parts that a rank sends.
struct CollectivePart {
  std::uint64_t number = 0;
  PartHeader header;  // `from` is the sender's rank, and not sent
  std::uint64_t total = 0;
  std::uint64_t offset = 0;
  Bytes bytes;
};

// What the part's sink said.
struct CollectiveTaken {
  std::uint64_t number = 0;
  Status status;
};

// The sender takes no part in the meeting any more.
struct CollectiveLeft {
  bool finished = false;  // it came to its end
  std::string reason;
  bool operator==(const CollectiveLeft&) const = default;
};

struct CollectiveMessage {
  std::uint64_t meeting = 0;
  std::variant<CollectiveFlags, CollectivePart, CollectiveTaken, CollectiveLeft> what;
};

Bytes encode_collective(const CollectiveMessage& message);

// Validates all of it; `from` becomes the part's. Errors: kCorrupt naming the field, kUnsupported,
// kTooLarge.
Result<CollectiveMessage> decode_collective(ByteSpan bytes, std::uint32_t from);

}  // namespace dcr
