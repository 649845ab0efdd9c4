// What receivers ask of owners together, and what the ranks of one engine settle among themselves
// before they do (docs/TRACING.md "Paths, and what is refused").
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dcr/options.h"
#include "dcr/status.h"
#include "receiver/prewarm.h"
#include "receiver/receiver.h"

namespace dcr {

// What one receiver asks, by index in the catalogue. Nothing of what it refuses: whether it refuses
// anything is for the caller to look at first.
std::vector<Need> needs_of(std::span<const TensorClass> classes);

// Error kUnsupported, with the tensor, that says why a prewarmed receiver refuses it: the first.
Status check_not_refused(const Receiver& receiver);

// The same of a tensor whose loader talks to other ranks. For a receiver that is called without
// them: all would have to call that loader in an order that nothing tells them.
Status check_not_collective(const Receiver& receiver);

// Adds what another receiver asks: dense is more than overwrite, that more than any, and that more
// than nothing. REQUIRES: as many tensors.
void add_needs(std::span<const Need> more, std::vector<Need>* needs);

// Puts a tensor whose loader talks to other ranks on the scratch path of all of them. To be called
// with the prewarmed receivers of one engine, before their needs and fingerprints are taken. Error
// kUnsupported naming tensor and rank (index of the receiver) where one cannot take that path.
Status share_collectives(std::span<Receiver* const> ranks);

}  // namespace dcr
