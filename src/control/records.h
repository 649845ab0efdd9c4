// The records as bytes, for stores that keep bytes. Each record is one blob:
//
//   u8 kind, u8 format (0), fields, BLAKE2b-128 over all before it
//
// Numbers are varints, texts and lists have their length before them. Reading validates all that a
// transaction relies on: a blob is accepted only if it is exactly what writing would have made.
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "dcr/control.h"
#include "dcr/status.h"

namespace dcr {

// What a store keeps beside the members: run, K, leader, counters. Written by nearly every
// operation, so without the transition's lists.
struct ControlHead {
  RunId run{};
  CommitRecord commit;
  LeaderRow leader;
  std::uint64_t members_revision = 0;
  std::uint64_t incarnations = 0;
};

Bytes encode_head(const ControlHead& head);
Bytes encode_transition(const TransitionRecord& transition);
Bytes encode_member(const Member& member);

// Errors name what is wrong: kCorrupt; kUnsupported for a format of a later version.
Result<ControlHead> decode_head(ByteSpan blob);
Result<TransitionRecord> decode_transition(ByteSpan blob);
Result<Member> decode_member(ByteSpan blob);

// An upper bound of what any of them takes.
inline constexpr std::uint64_t kRecordBytesMax = std::uint64_t{8} << 20;

}  // namespace dcr
