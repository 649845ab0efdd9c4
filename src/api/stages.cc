#include "api/stages.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace dcr {

std::vector<RefitStage> stages_of(const std::vector<Span>& spans) {
  struct Extent {
    std::uint64_t begin = ~std::uint64_t{0}, end = 0, busy = 0;
  };
  std::map<std::string, Extent> extents;
  for (const Span& span : spans) {
    Extent& extent = extents[span.stage];
    extent.begin = std::min(extent.begin, span.begin_ns);
    extent.end = std::max(extent.end, span.end_ns);
    extent.busy += span.busy_ns;
  }
  std::vector<std::pair<std::uint64_t, RefitStage>> ordered;
  ordered.reserve(extents.size());
  for (const auto& [name, extent] : extents) {
    ordered.push_back({extent.begin,
                       {name, 1e-9 * static_cast<double>(extent.end - extent.begin),
                        1e-9 * static_cast<double>(extent.busy)}});
  }
  std::sort(ordered.begin(), ordered.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<RefitStage> stages;
  stages.reserve(ordered.size());
  for (auto& [begin, stage] : ordered) stages.push_back(std::move(stage));
  return stages;
}

}  // namespace dcr
