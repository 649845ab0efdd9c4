// The canonical tensors of a refit, as owners publish them once (paper §4; docs/FORMAT.md "Schema
// digest of a refit"): what items' tensor indices point into, on both sides.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "dcr/status.h"
#include "dcr/tensor.h"

namespace dcr {

// The same error with "tensor" and its name before its message, and as its tensor; success stays
// success.
Status about_tensor(const CanonicalTensor& tensor, const Status& status);

class Catalogue {
 public:
  Catalogue() = default;

  // Sorts by name (bytewise) and counts words. Errors, naming the tensor: kCorrupt (a name twice,
  // empty, or not valid), kTooLarge (limits.h).
  static Result<Catalogue> make(std::vector<CanonicalTensor> tensors);

  const std::vector<CanonicalTensor>& tensors() const { return tensors_; }
  const CanonicalTensor& operator[](std::uint32_t index) const { return tensors_[index]; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(tensors_.size()); }

  // Index by name, or -1. Takes O(log n).
  std::int64_t find(std::string_view name) const;

  // Binds names, dtypes and shapes in their order (docs/FORMAT.md "Schema digest of a refit"):
  // BLAKE2b-128 over the 13 bytes "dcr-catalogue", the number of tensors as u64 and, of each: u32
  // length of its name, name, u8 dtype, u8 rank, the sizes as u64 (all little-endian).
  const Digest& schema() const { return schema_; }

 private:
  std::vector<CanonicalTensor> tensors_;
  Digest schema_{};
};

}  // namespace dcr
