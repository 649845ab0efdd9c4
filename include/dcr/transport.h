// How payloads get from owners to rollout nodes (paper §7.1; docs/ARCHITECTURE.md "Transport").
// Each payload has an exact key (run, attempt, owner, number), is written once, and is asked for by
// that key: nothing depends on a listing or on a notice. After its last payload an owner sends one
// *end*, which counts them all and says their sizes and digests.
//
// A transport moves bytes and keeps them apart; it doesn't look into payloads, whose receivers
// validate every byte.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dcr/status.h"

namespace dcr {

inline constexpr std::uint64_t kPayloadsPerOwnerMax = 65'536;

// What an end says of one payload.
struct PayloadEntry {
  std::uint64_t bytes = 0;
  std::array<std::uint8_t, 16> digest{};  // the payload's own, as its header has it
  bool operator==(const PayloadEntry&) const = default;
};

// Everything that an owner sent in an attempt, by number. Nothing changed: no entries.
struct AttemptEnd {
  std::vector<PayloadEntry> payloads;
  bool operator==(const AttemptEnd&) const = default;
};

// One owner's side, of one run. Thread-safe: an attempt may be stopped while another thread sends.
//
// Errors, beside those of each operation: kIo and kUnavailable, it may be repeated as it was;
// kConflict, the attempt is not the current one: it was stopped, ended or cleaned up, or a later
// one has begun.
class OwnerTransport {
 public:
  virtual ~OwnerTransport() = default;

  // Makes `attempt` the current one. Requires that it is later than all before; the current one may
  // be begun again.
  virtual Status begin(std::uint64_t attempt) = 0;

  // Sends payload `number` of the current attempt; numbers are 0, 1, 2, …; `digest` is its own.
  // When it returns, nodes get the bytes, and nothing else, under that key. A number may be sent
  // again with the same bytes; with others the error is kConflict and names both digests.
  virtual Status send(std::uint64_t attempt, std::uint64_t number,
                      std::span<const std::uint8_t> bytes,
                      const std::array<std::uint8_t, 16>& digest) = 0;

  // Sends the end. May be repeated; no payload follows.
  virtual Status end(std::uint64_t attempt) = 0;

  // Stops attempts up to this one, whether begun or not, and waits for what is being sent. After it
  // returns nothing of them is sent any more.
  virtual Status stop_and_wait(std::uint64_t attempt) = 0;

  // Stops them too, and removes whatever any owner of the run sent in them or left unfinished, in
  // this process or in one that died. REQUIRES: no node needs it any more.
  virtual Status cleanup(std::uint64_t attempt) = 0;
};

// A rollout node's side, of one run. Thread-safe.
class NodeTransport {
 public:
  virtual ~NodeTransport() = default;

  // The end of an owner's attempt, or nothing as long as there is none. Errors: kCorrupt,
  // kUnsupported, kMismatch, kTooLarge: it is not what that owner would have sent; kIo.
  virtual Result<std::optional<AttemptEnd>> receive_end(std::uint64_t attempt,
                                                        std::uint32_t owner) = 0;

  // Payload `number` of an owner's attempt, or nothing as long as it is not there. Errors:
  // kTooLarge, it has more than `bytes_max` bytes; kIo.
  virtual Result<std::optional<std::vector<std::uint8_t>>> receive(std::uint64_t attempt,
                                                                   std::uint32_t owner,
                                                                   std::uint64_t number,
                                                                   std::uint64_t bytes_max) = 0;
};

}  // namespace dcr
