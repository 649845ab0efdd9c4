// Destinations of a load, kept to compare with and to restore.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "dcr/ports.h"
#include "dcr/status.h"
#include "receiver/trace.h"

namespace dcr {

// The bits of every view that a load writes. Takes as much host memory as they have.
class Regions {
 public:
  static Result<Regions> save(TargetMemory& memory, const LoadTrace& trace);

  Status restore(TargetMemory& memory) const;

  // Overwrites them all with a byte.
  Status fill(TargetMemory& memory, std::uint8_t byte) const;

  // Words whose bits in memory are others than those saved, but for those of constants: another
  // load may have its elements there.
  Result<std::uint64_t> different(TargetMemory& memory) const;

  bool operator==(const Regions&) const = default;

 private:
  struct Region {
    TensorView view;
    bool elements = false;  // not constants only
    Bytes bytes;
    bool operator==(const Region&) const = default;
  };
  std::vector<Region> regions_;
};

// Words of all views that a load writes elements to, each once.
std::uint64_t region_words(const LoadTrace& trace);

}  // namespace dcr
