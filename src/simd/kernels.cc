#include "simd/kernels.h"

#include <cstdlib>
#include <cstring>

#include "base/assert.h"
#include "simd/targets.h"

namespace dcr {
namespace {

// Scalar first, then the vector ones from the best on. Made once: asking Highway changes its global
// state for a moment.
const std::vector<const Kernels*>& all_kernels() {
  static const std::vector<const Kernels*> kAll = [] {
    std::vector<const Kernels*> all = {&scalar_kernels()};
    for (const Kernels* one : highway_kernels()) all.push_back(one);
    return all;
  }();
  return kAll;
}

Result<const Kernels*> select() {
  const std::vector<const Kernels*>& all = all_kernels();
  // Read once, before any thread could change the environment.
  const char* forced = std::getenv("DCR_FORCE_ISA");  // NOLINT(concurrency-mt-unsafe)
  if (forced == nullptr || *forced == '\0') return all.size() > 1 ? all[1] : all[0];
  std::string names;
  for (const Kernels* one : all) {
    if (std::strcmp(one->name, forced) == 0) return one;
    names += (names.empty() ? "" : ", ") + std::string(one->name);
  }
  return Status(Code::kUnsupported,
                "DCR_FORCE_ISA=" + std::string(forced) +
                    " is not supported by this CPU and build; supported: " + names);
}

}  // namespace

Result<const Kernels*> select_kernels() {
  static const Result<const Kernels*> kSelected = select();
  return kSelected;
}

const Kernels& kernels() {
  static const Kernels* const kSelected = [] {
    const Result<const Kernels*> selected = select_kernels();
    DCR_ASSERT(selected.ok());
    return selected.value();
  }();
  return *kSelected;
}

std::vector<const Kernels*> supported_kernels() { return all_kernels(); }

}  // namespace dcr
