// Proof of a base checkpoint without a restore (docs/PROTOCOL.md "Receiver"): owners publish a
// digest of each box that they own, the receiver recomputes them from the checkpoint that it loaded
// and audited.
#pragma once

#include <span>
#include <vector>

#include "base/digest.h"
#include "dcr/status.h"
#include "receiver/ownership.h"
#include "receiver/receiver.h"
#include "tensor/catalogue.h"

namespace dcr {

// Compares digests[i], which owner i made of its boxes owners[i] in their order (the tensor_digest
// of a box's words, in the box's order), with the base's words. Needs little memory, whatever the
// boxes. REQUIRES: boxes within their tensors, as Receiver::create checks. Errors: kMismatch naming
// tensor and owner, also where an owner has another number of boxes; those of `base`.
Status check_base(const Catalogue& catalogue, std::span<const std::vector<OwnerBox>> owners,
                  std::span<const std::vector<Digest>> digests, const CanonicalRead& base);

}  // namespace dcr
