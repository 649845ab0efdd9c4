// A conversion task (paper §4.1): one source tensor of a trainer rank and where its elements stand
// in the canonical tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "dcr/ports.h"
#include "tensor/box.h"

namespace dcr {

struct ConversionTask {
  // Of the source tensor; the same on every rank that holds a replica of the same elements, and
  // different for different shards ("layers.0.mlp.fc1.weight/2" for shard 2).
  std::string name;
  // Where it lies in the rank's SourceMemory. Element e of `placement`'s source space is the e-th
  // in the order of the view's indices.
  TensorView view;
  // From the source tensor to canonical tensors (PlacementPart::destination: index in the
  // catalogue). Elements that no part maps (padding) go nowhere. Where the dtypes differ the path
  // casts each element (tensor/cast.h).
  Placement placement;
  // Ranks that hold this very task, ascending, this one among them. One of them owns it: see
  // owns().
  std::vector<std::uint32_t> replicas;
};

// XXH3-64 of a source or canonical tensor's name, seed 0. All ranks must agree on it, for it
// chooses owners (paper A.1). Names may be made to collide: equal hashes do not mean equal names.
inline std::uint64_t name_hash(std::string_view name) {
  return xxh3_64({reinterpret_cast<const std::uint8_t*>(name.data()), name.size()});
}

// Whether `rank` is the one among the ranks that hold a source tensor which owns it: the one at
// index name_hash(name) % replicas.size() (paper A.1). REQUIRES: replicas is not empty.
inline bool owns(std::string_view name, std::span<const std::uint32_t> replicas,
                 std::uint32_t rank) {
  return replicas[static_cast<std::size_t>(name_hash(name) % replicas.size())] == rank;
}

}  // namespace dcr
