// The queue of decoded payloads between ingest and application (paper Appendix C): in declared
// order, bounded in slots and bytes, with a slot kept for the payload whose turn it is.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "dcr/receiver.h"
#include "dcr/status.h"
#include "receiver/decoded.h"

namespace dcr {

// 32 resident groups of at most eight payloads and one group under assembly.
inline constexpr std::size_t kStagingGroups = 32;
inline constexpr std::size_t kStagingGroupPayloads = 8;
inline constexpr std::size_t kStagingSlots = (kStagingGroups + 1) * kStagingGroupPayloads;

class Staging {
 public:
  // Payloads that wait take at most `bytes_max`, the one whose turn it is beside them.
  explicit Staging(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // Forgets everything.
  void begin(std::uint32_t owners);

  // Whether a payload that is still to be decoded would find room.
  bool has_room(std::uint64_t order, std::uint64_t bytes) const;

  // What a payload is: kQueued means that it is new and fits, and push() may follow. Errors:
  // kMismatch for a payload past its owner's end, or with an identifier that other bytes had.
  Result<Ingested> classify(const DecodedPayload& payload) const;
  void push(std::shared_ptr<const DecodedPayload> payload);

  // Owner `owner` sends `payloads`. Error kMismatch if it sent more, or said otherwise before.
  Status end_of_owner(std::uint32_t owner, std::uint64_t payloads);

  // Takes the payload whose turn it is, or null if it is not there.
  std::shared_ptr<const DecodedPayload> pop();

  bool complete() const { return complete_; }
  // "payload 3 of owner 1", or "the end of owner 2": what is waited for. REQUIRES: !complete().
  std::string missing() const;

  std::uint64_t bytes() const { return bytes_; }

 private:
  void advance();
  std::uint64_t next_order() const { return number_ * ends_.size() + owner_; }

  std::uint64_t bytes_max_;
  std::vector<std::optional<std::uint64_t>> ends_;  // payloads, by owner
  std::vector<std::uint64_t> beyond_;               // one past the highest number seen, by owner
  std::map<std::uint64_t, Digest> seen_;            // by order
  std::map<std::uint64_t, std::shared_ptr<const DecodedPayload>> waiting_;
  std::uint64_t bytes_ = 0;
  std::uint64_t number_ = 0;  // whose turn it is
  std::uint32_t owner_ = 0;
  bool complete_ = false;
};

}  // namespace dcr
