// What prewarm finds out about a native loader (paper §6.1, Appendix A.2; DESIGN §7): for each
// canonical tensor a path, what it needs of owners, and where its elements go.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "dcr/ports.h"
#include "dcr/status.h"
#include "receiver/trace.h"
#include "runtime/threads.h"
#include "tensor/catalogue.h"

namespace dcr {

enum class TensorPath : std::uint8_t {
  kTraced,   // items go straight through the placement
  kScratch,  // the loader is called over placeholders and entries
  kDense,    // the loader is called over the whole tensor
  kSkip,     // nothing of it lies on this rank
  kRefused,  // no path gives the bits of a dense refit
};

enum class TensorNeed : std::uint8_t { kAny, kOverwrite, kDense, kSkip, kRefused };

// "traced", "any", …
std::string_view path_name(TensorPath path);
std::string_view need_name(TensorNeed need);

struct TensorClass {
  TensorPath path = TensorPath::kRefused;
  TensorNeed need = TensorNeed::kRefused;
  bool collective = false;  // its loader talks to other ranks
  std::string reason;       // of any other path than kTraced
};

// Copies words [first, first + out.size() / width) of canonical tensor `tensor` to `out`.
using CanonicalRead =
    std::function<Status(std::uint32_t tensor, std::uint64_t first, MutableByteSpan out)>;

struct PrewarmOptions {
  std::vector<std::string> never_loaded;
  bool prefer_scratch = false;
};

struct PrewarmResult {
  std::vector<TensorClass> classes;  // by index in the catalogue
  std::vector<LoadTrace> traces;
  Digest layout{};  // see layout_fingerprint
};

// Traces the loader over all names and checks everything that DESIGN §7 lists. Parameters hold the
// same bits afterwards. Errors name target, tensor and what to do.
Result<PrewarmResult> prewarm(const Catalogue& catalogue, Loader& loader, TargetMemory& memory,
                              const PrewarmOptions& options);

// Binds every target's name, storage, size, offset, shape, strides and dtype.
Result<Digest> layout_fingerprint(Loader& loader, const TargetMemory& memory);

}  // namespace dcr
