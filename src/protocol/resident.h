// What lies in a receiver's storage, and which attempts make it exact (docs/PROTOCOL.md
// "Receiver"): a whole version, a mixture that began with one, or nobody knows what.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dcr/control.h"
#include "dcr/status.h"
#include "protocol/messages.h"

namespace dcr {

// Whether an attempt sends every word of every tensor.
bool brings_all(AttemptMode mode, const std::vector<OwnerBinding>& owners);

class Resident {
 public:
  // Of a version, every bit. Nothing: it is not, or nobody knows.
  std::optional<VersionId> whole() const { return mixed_ ? std::nullopt : base_; }

  void set_whole(VersionId version);
  void set_unknown();
  // An attempt from `base` begins to write: from now on any of its owners' words may be there.
  void begin_writing(VersionId base, const std::vector<OwnerBinding>& owners);

  // Whether the attempt, once all of it is applied, leaves exactly its candidates' bits. What it
  // does not send must lie there already. Error kMismatch.
  Status check(const Prepare& prepare) const;

  // "version 3 of attempt 7", "a mixture over version 3 of attempt 7", "unknown bits".
  std::string text() const;

 private:
  Status check_repair(const Prepare& prepare) const;

  std::optional<VersionId> base_;          // nothing: unknown bits
  bool mixed_ = false;                     // over base_
  std::vector<WrittenCandidate> written_;  // while mixed_; by owner, ascending
};

std::string version_text(VersionId version);

}  // namespace dcr
