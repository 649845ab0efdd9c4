// The geometry of one local tensor: the formulas of the mapping classes (docs/LAYOUT.md "Classes").
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dcr/status.h"
#include "dcr/tensor.h"
#include "layout/layout_file.h"
#include "tensor/box.h"
#include "tensor/catalogue.h"

namespace dcr {

struct LocalPart {
  std::uint32_t tensor = 0;  // index in the catalogue
  Box box;                   // words of the local tensor → words of the canonical tensor
};

struct LocalTensor {
  Dtype dtype = Dtype::kU8;  // kU8 for dtypes of several elements to a word
  Shape shape;
  std::vector<LocalPart> parts;
  std::uint64_t padding_begin = 0;  // words from here on are padding; the rest may have gaps too
};

// Shard `shard` of the rule's local tensor made from `members`: indices in the catalogue, of each
// pattern of the rule in order, repeated for each expert of a stack. Errors, naming the tensor:
// kMismatch (a shape that the class cannot cut so, or that does not go with another), kUnsupported.
Result<LocalTensor> make_local_tensor(const Catalogue& catalogue, const LayoutRule& rule,
                                      std::span<const std::uint32_t> members, std::uint32_t shard);

}  // namespace dcr
