// What prewarm finds out about a native loader (paper §6.1, Appendix A.2; DESIGN §7): for each
// canonical tensor a path, what it needs of owners, and where its elements go.
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
#include "dcr/status.h"
#include "receiver/plan.h"
#include "receiver/trace.h"
#include "tensor/catalogue.h"

namespace dcr {

enum class TensorPath : std::uint8_t {
  kTraced,   // items go straight through the placement
  kScratch,  // the loader is called over placeholders and entries
  kDense,    // the loader is called over the whole tensor
  kSkip,     // nothing of it lies on this rank
  kRefused,  // no path gives the bits of a dense refit
};

// "traced", "scratch", …; "any", "overwrite", …
std::string_view path_name(TensorPath path);
std::string_view need_name(Need need);

struct TensorClass {
  TensorPath path = TensorPath::kRefused;
  Need need = Need::kSkip;  // of what is refused, too
  bool collective = false;  // its loader talks to other ranks
  std::string reason;       // of any other path than kTraced
  bool tied = false;        // kSkip: a tensor that is loaded later has the same bytes
};

struct PrewarmOptions {
  std::vector<std::string> never_loaded;  // targets that no canonical tensor reaches
  bool prefer_scratch = false;            // traced tensors take the scratch path too
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

// Binds every target's name, storage, size, offset, shape, strides and dtype.
Result<Digest> layout_fingerprint(Loader& loader, const TargetMemory& memory);

}  // namespace dcr
