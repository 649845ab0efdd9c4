// A checkpoint as the source of canonical tensors: its names, sorted, are the catalogue.
#pragma once

#include <cstdint>
#include <span>

#include "dcr/status.h"
#include "layout/canonical_reader.h"
#include "tensor/catalogue.h"
#include "tensor/checkpoint.h"

namespace dcr {

// The catalogue of a checkpoint's tensors, which both have in the order of names.
Result<Catalogue> checkpoint_catalogue(const Checkpoint& checkpoint);

// A refit changes values, never names, dtypes or shapes. Error kMismatch naming a tensor.
Status check_same_tensors(const Checkpoint& old_one, const Checkpoint& new_one);

// A checkpoint's tensors by their index in the catalogue.
class CheckpointReader final : public CanonicalReader {
 public:
  // The checkpoint must outlive this.
  explicit CheckpointReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  Status read(std::uint32_t tensor, std::uint64_t first, std::span<std::uint8_t> out) override;

 private:
  const Checkpoint& checkpoint_;
};

}  // namespace dcr
