// Proof of a path by its oracle: what it leaves in parameters is compared with a dense load of the
// same words (docs/ARCHITECTURE.md "One attempt, at a receiver"). Parameters get their bits back.
#pragma once

#include <cstdint>
#include <string>

#include "dcr/ports.h"
#include "dcr/status.h"
#include "receiver/scratch.h"
#include "receiver/trace.h"
#include "tensor/catalogue.h"

namespace dcr {

class Trial {
 public:
  Trial(const Catalogue& catalogue, TargetMemory& memory, ScratchPath& scratch)
      : catalogue_(catalogue), memory_(memory), scratch_(scratch) {}

  // Whether a dense load gives the same bits whatever the parameters held before. Each returns why
  // the path may not be taken, or nothing. Errors: the memory's and the loader's.
  Result<std::string> whole(std::uint32_t tensor, const LoadTrace& trace);

  // Whether entries through the scratch path give the bits of a dense load of all: over ordinary
  // numbers and over arbitrary bits, NaN and infinities among them.
  Result<std::string> entries(std::uint32_t tensor, const LoadTrace& trace);

 private:
  struct Words;

  Status load_whole(std::uint32_t tensor, const LoadTrace& trace, const Words& words);
  Result<bool> same_whole(std::uint32_t tensor, const LoadTrace& trace);
  Result<bool> same_entries(std::uint32_t tensor, const LoadTrace& trace, bool arbitrary,
                            std::uint64_t share);

  const Catalogue& catalogue_;
  TargetMemory& memory_;
  ScratchPath& scratch_;
};

}  // namespace dcr
