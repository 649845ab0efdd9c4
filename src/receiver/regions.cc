#include "receiver/regions.h"

#include <algorithm>
#include <utility>

#include "receiver/views.h"
#include "simd/kernels.h"

namespace dcr {

namespace {

struct WrittenView {
  TensorView view;
  bool elements = false;  // not by constants only
};

std::vector<WrittenView> written_views(const LoadTrace& trace) {
  std::vector<WrittenView> views;
  for (const TracedWrite& write : trace.writes) {
    if (write.to_given) continue;
    const TensorView& view = write.event.destination;
    auto found = std::find_if(views.begin(), views.end(),
                              [&view](const WrittenView& one) { return one.view == view; });
    if (found == views.end()) found = views.insert(found, {view});
    found->elements = found->elements || write.kind != WriteKind::kConstant;
  }
  return views;
}

}  // namespace

Result<Regions> Regions::save(TargetMemory& memory, const LoadTrace& trace) {
  Regions saved;
  for (const auto& [view, elements] : written_views(trace)) {
    Region region{view, elements,
                  Bytes(static_cast<std::size_t>(view_words(view)) * word_bytes(view.dtype))};
    DCR_TRY(memory.read(view, region.bytes));
    saved.regions_.push_back(std::move(region));
  }
  return saved;
}

Status Regions::restore(TargetMemory& memory) const {
  for (const Region& region : regions_) DCR_TRY(memory.write(region.view, region.bytes));
  return memory.synchronize();
}

Status Regions::fill(TargetMemory& memory, std::uint8_t byte) const {
  for (const Region& region : regions_) {
    DCR_TRY(memory.write(region.view, Bytes(region.bytes.size(), byte)));
  }
  return memory.synchronize();
}

Result<std::uint64_t> Regions::different(TargetMemory& memory) const {
  std::uint64_t different = 0;
  for (const Region& region : regions_) {
    if (!region.elements) continue;
    Bytes now(region.bytes.size());
    DCR_TRY(memory.read(region.view, now));
    const unsigned width = word_bytes(region.view.dtype);
    different += kernels().count_changes(
        width, {region.bytes.data(), now.data(), 1, now.size() / width, 0, 0});
  }
  return different;
}

std::uint64_t region_words(const LoadTrace& trace) {
  std::uint64_t words = 0;
  for (const auto& [view, elements] : written_views(trace))
    words += elements ? view_words(view) : 0;
  return words;
}

}  // namespace dcr
