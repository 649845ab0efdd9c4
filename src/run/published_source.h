// What owners publish once, for receivers to prewarm with and nodes to validate by
// (docs/ARCHITECTURE.md "Run directories"): the canonical tensors, and what each owner may send of
// them. Known by its digest, which owners join with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "dcr/control.h"
#include "dcr/status.h"
#include "protocol/messages.h"
#include "receiver/ownership.h"
#include "tensor/catalogue.h"

namespace dcr {

struct PublishedSource {
  Catalogue catalogue;
  std::vector<std::vector<OwnerBox>> boxes;  // by owner, in the order of its items
  Digest digest{};                           // source_digest()

  std::uint32_t owners() const { return static_cast<std::uint32_t>(boxes.size()); }
};

// Of what an owner publishes in a run directory.
inline constexpr std::uint64_t kPublishedSourceBytesMax = std::uint64_t{1} << 30;

// Over encode_source().
Digest source_digest(const PublishedSource& source);

// decode_source() reads what came from anywhere: kCorrupt, kTooLarge, kUnsupported, and
// kInvalidArgument naming a tensor and an owner whose box leaves it.
Bytes encode_source(const PublishedSource& source);
Result<PublishedSource> decode_source(ByteSpan bytes);

// Puts it into `directory`, and takes it from there: nothing if it is not there (yet). What is
// there under another digest than its bytes have is kCorrupt.
Status publish_source(const std::string& directory, const PublishedSource& source);
Result<std::optional<PublishedSource>> fetch_source(const std::string& directory,
                                                    const Digest& digest);

// What the owners of a run have joined with: of the trainers whose ranks are all there, the one
// that joined last.
struct JoinedOwners {
  Digest source{};
  std::vector<std::string> names;  // by rank
  bool operator==(const JoinedOwners&) const = default;
};
std::optional<JoinedOwners> joined_owners(const Membership& members);

}  // namespace dcr
