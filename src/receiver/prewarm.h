// What prewarm finds out about a native loader (paper §6.1, Appendix A.2; docs/ARCHITECTURE.md "One
// attempt, at a receiver"): for each canonical tensor a path, what it needs of owners, and where
// its elements go.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "dcr/options.h"
#include "dcr/ports.h"
#include "dcr/receiver.h"
#include "dcr/status.h"
#include "receiver/plan.h"
#include "receiver/trace.h"
#include "tensor/catalogue.h"

namespace dcr {

struct PrewarmOptions {
  std::vector<std::string> never_loaded;  // targets that no canonical tensor reaches
  bool prefer_scratch = false;            // traced tensors take the scratch path too
  // Called when a stage begins: "digests", "trace", "classify", "coverage". May be empty.
  std::function<void(std::string_view stage)> stage;
  // Asked before each storage is digested and each tensor classified, but not from the first trace
  // until all that it wrote is explained; an error ends it. May be empty.
  std::function<Status()> interruption;
};

struct PrewarmResult {
  std::vector<TensorClass> classes;  // these three by index in the catalogue
  std::vector<LoadTrace> traces;
  std::vector<std::vector<Place>> places;  // of traced tensors
  Digest layout{};                         // see layout_fingerprint
};

// Traces the loader over all names, in the catalogue's order, in which a dense refit loads them
// too. Parameters hold the same bits afterwards, unless a loader wrote past the hook, which refuses
// what it loaded. Errors name target or tensor and what to do: kMismatch for bytes that nothing
// explains.
Result<PrewarmResult> prewarm(const Catalogue& catalogue, Loader& loader, TargetMemory& memory,
                              const PrewarmOptions& options);

// The part of it that needs no values, for parameters that are not there (a meta device) or have
// not been loaded: names are loaded twice, geometry says where they go, and destinations and
// coverage are checked. What only values can decide is refused for that reason; a cast is said to
// take the scratch path, without a trial. No receiver may apply by this.
Result<PrewarmResult> prewarm_geometry(const Catalogue& catalogue, Loader& loader,
                                       TargetMemory& memory, const PrewarmOptions& options);

// Binds every target's name, storage, size, offset, shape, strides and dtype.
Result<Digest> layout_fingerprint(Loader& loader, const TargetMemory& memory);

}  // namespace dcr
