#include "receiver/regions.h"

#include <algorithm>
#include <utility>

#include "receiver/views.h"
#include "simd/kernels.h"

namespace dcr {

namespace {

std::vector<TensorView> written_views(const LoadTrace& trace) {
  std::vector<TensorView> views;
  for (const TracedWrite& write : trace.writes) {
    const TensorView& view = write.event.destination;
    if (!write.to_given && std::find(views.begin(), views.end(), view) == views.end()) {
      views.push_back(view);
    }
  }
  return views;
}

}  // namespace

Result<Regions> Regions::save(TargetMemory& memory, const LoadTrace& trace) {
  Regions saved;
  for (const TensorView& view : written_views(trace)) {
    Region region{view, Bytes(static_cast<std::size_t>(view_words(view)) * word_bytes(view.dtype))};
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
  for (const TensorView& view : written_views(trace)) words += view_words(view);
  return words;
}

}  // namespace dcr
