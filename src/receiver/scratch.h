// The scratch path (paper §6.1): entries lie in a scratch tensor among placeholders, the native
// loader is called over it, and its copies into parameters are done by the hook at active elements
// only.
//
// Which elements are active is known by index, from the trace, so no value can be taken for a
// placeholder. Placeholders (NaN for overwrites of floating-point tensors, else zero) still lie
// everywhere else, and each copy's input is checked to hold them there before it is written.
#pragma once

#include <cstdint>
#include <span>

#include "dcr/ports.h"
#include "dcr/status.h"
#include "receiver/decoded.h"
#include "receiver/trace.h"
#include "tensor/catalogue.h"

namespace dcr {

struct ScratchCounts {
  ApplyCounts applied;
  std::uint64_t checked = 0;  // words compared by post-apply checks
};

class ScratchPath {
 public:
  ScratchPath(const Catalogue& catalogue, Loader& loader, TargetMemory& memory)
      : catalogue_(catalogue), loader_(loader), memory_(memory) {}
  ~ScratchPath();
  ScratchPath(const ScratchPath&) = delete;
  ScratchPath& operator=(const ScratchPath&) = delete;

  void set_checks(bool checks) { checks_ = checks; }

  // Makes sure of a scratch of so many bytes. Error: kTooLarge.
  Status reserve(std::uint64_t bytes);
  void release();

  // Applies items of one tensor and of one encoding in one call of the loader. Errors name the
  // tensor: kMismatch if the loader's writes are not the traced ones.
  Status apply(std::uint32_t tensor, const LoadTrace& trace,
               std::span<const DecodedItem* const> items, ApplyMode mode, ScratchCounts* counts);

  // Loads a whole tensor that lies in `value`.
  Status apply_whole(std::uint32_t tensor, const LoadTrace& trace, const TensorView& value,
                     ApplyMode mode, ScratchCounts* counts);

 private:
  class EntryHook;
  class WholeHook;

  Status fill(const TensorView& value, std::uint64_t placeholder);
  Status scatter(const TensorView& value, const DecodedItem& item);
  Status load(std::uint32_t tensor, const LoadTrace& trace, const TensorView& value,
              LoaderHook& hook, const std::size_t& seen);

  const Catalogue& catalogue_;
  Loader& loader_;
  TargetMemory& memory_;
  bool checks_ = false;
  bool reserved_ = false;
  std::uint64_t storage_ = 0;
  std::uint64_t bytes_ = 0;
};

// Whether the loader computes with what it wrote, so that nothing less than writing shows the
// result.
bool reads_back(const LoadTrace& trace);

}  // namespace dcr
