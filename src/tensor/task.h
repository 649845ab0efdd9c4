// A conversion task (paper §4.1): one source tensor of a trainer rank and where its elements stand
// in the canonical tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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
  // Ranks that hold this very task, ascending, this one among them. One of them owns it: the one at
  // index xxh3_64(name) % replicas.size() (paper A.1).
  std::vector<std::uint32_t> replicas;
};

}  // namespace dcr
