// Whether the ranks of one engine have every element of every tensor, and as often.
#pragma once

#include <span>
#include <vector>

#include "dcr/receiver.h"
#include "receiver/plan.h"
#include "receiver/receiver.h"
#include "tensor/catalogue.h"

namespace dcr {

// The same for people and for other processes.
std::vector<PlacedBox> placed_boxes(std::span<const Place> places);

// As dcr::uneven_tensors. REQUIRES: of each rank as many shares as the catalogue has tensors, boxes
// that are within them.
std::vector<UnevenTensor> uneven_tensors(const Catalogue& catalogue,
                                         std::span<const std::vector<RankShare>> ranks);

// Of prewarmed receivers of the same catalogue.
std::vector<UnevenTensor> uneven_tensors(std::span<Receiver* const> ranks);

}  // namespace dcr
