#include "device/device_memory.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/checked.h"
#include "tensor/target.h"
#include "tensor/view.h"

namespace dcr {

namespace {

// Innermost first; sizes of 1 are left out and what is contiguous is merged. REQUIRES: no size 0.
DeviceView device_view(const TensorView& view) {
  DeviceView made;
  made.offset = view.offset;
  for (std::size_t i = view.sizes.size(); i-- > 0;) {
    if (view.sizes[i] == 1) continue;
    const std::uint32_t last = made.rank - 1;
    if (made.rank > 0 && view.strides[i] == made.sizes[last] * made.strides[last]) {
      made.sizes[last] *= view.sizes[i];
      continue;
    }
    made.sizes[made.rank] = view.sizes[i];
    made.strides[made.rank++] = view.strides[i];
  }
  return made;
}

bool contiguous(const DeviceView& view) {
  return view.rank == 0 || (view.rank == 1 && view.strides[0] == 1);
}

// REQUIRES: check_target.
DeviceGrid device_grid(const TargetChanges& target) {
  DeviceGrid grid;
  grid.first = static_cast<std::uint32_t>(target.first);
  grid.offset = target.offset;
  for (std::size_t i = target.dims.size(); i-- > 0;) {
    const TargetChanges::Dimension& dim = target.dims[i];
    grid.axes[grid.rank++] = {static_cast<std::uint32_t>(dim.size),
                              static_cast<std::uint32_t>(dim.begin),
                              static_cast<std::uint32_t>(dim.end - dim.begin), dim.stride};
  }
  return grid;
}

// The part of ascending positions outside of which nothing is hit: what need not go to the device.
std::pair<std::size_t, std::size_t> hit_range(const TargetChanges& target,
                                              std::span<const std::uint32_t> positions) {
  if (target.dims.empty()) return {0, positions.size()};
  std::uint64_t inner = 1;
  bool empty = false;
  for (std::size_t i = 1; i < target.dims.size(); ++i) inner *= target.dims[i].size;
  for (const TargetChanges::Dimension& dim : target.dims) empty = empty || dim.begin == dim.end;
  if (empty) return {0, 0};
  const auto from = [&](std::uint64_t index) {
    const auto found = std::lower_bound(positions.begin(), positions.end(), index,
                                        [&](std::uint32_t position, std::uint64_t wanted) {
                                          return position + target.first < wanted;
                                        });
    return static_cast<std::size_t>(found - positions.begin());
  };
  return {from(target.dims[0].begin * inner), from(target.dims[0].end * inner)};
}

Status not_found(std::uint64_t storage) {
  return {Code::kNotFound, "there is no storage " + std::to_string(storage)};
}

}  // namespace

Result<std::unique_ptr<DeviceStaging>> DeviceStaging::create(Device& device, std::uint64_t bytes) {
  if (bytes < kDeviceStagingBytesMin) {
    return Status(Code::kInvalidArgument, "staging buffers of " + std::to_string(bytes) +
                                              " bytes: at least " +
                                              std::to_string(kDeviceStagingBytesMin));
  }
  auto staging = std::make_unique<DeviceStaging>(device, bytes);
  for (Half& half : staging->halves_) {
    DCR_ASSIGN(void* const pinned, device.allocate_pinned(bytes));
    half.pinned = static_cast<std::uint8_t*>(pinned);
    DCR_ASSIGN(void* const twin, device.allocate(bytes));
    half.twin = static_cast<std::uint8_t*>(twin);
  }
  return staging;
}

DeviceStaging::~DeviceStaging() {
  // What is on its way uses the buffers; a device that refuses has nothing on its way.
  static_cast<void>(device_.synchronize());
  for (const Half& half : halves_) {
    if (half.twin != nullptr) device_.release(half.twin);
    if (half.pinned != nullptr) device_.release_pinned(half.pinned);
  }
}

Status DeviceStaging::read(const TensorView& view, const std::uint8_t* storage,
                           std::span<std::uint8_t> out) {
  if (out.empty()) return {};
  const unsigned width = word_bytes(view.dtype);
  const std::uint64_t chunk = bytes_ / width;
  const std::uint64_t words = out.size() / width;
  const DeviceView strides = device_view(view);
  const std::uint64_t chunks = divide_up(words, chunk);
  const auto chunk_words = [&](std::uint64_t i) { return std::min(chunk, words - i * chunk); };
  // Chunk i is taken out of its buffer when chunk i + 1 is on its way.
  for (std::uint64_t i = 0; i < chunks + 1; ++i) {
    if (i < chunks) {
      const auto half = static_cast<unsigned>(i % kDeviceMarks);
      const std::uint8_t* from = storage + (view.offset + i * chunk) * width;
      if (!contiguous(strides)) {
        // Nothing is written through it.
        DCR_TRY(device_.gather({strides, static_cast<std::uint8_t>(width),
                                const_cast<std::uint8_t*>(storage), i * chunk, chunk_words(i),
                                twin(half)}));
        from = twin(half);
      }
      DCR_TRY(device_.copy_out(pinned(half), from, chunk_words(i) * width));
      DCR_TRY(device_.mark(half));
    }
    if (i > 0) {
      const auto half = static_cast<unsigned>((i - 1) % kDeviceMarks);
      DCR_TRY(device_.wait(half));
      std::memcpy(out.data() + (i - 1) * chunk * width, pinned(half),
                  static_cast<std::size_t>(chunk_words(i - 1) * width));
    }
  }
  return {};
}

Status DeviceStaging::write(const TensorView& view, std::uint8_t* storage,
                            std::span<const std::uint8_t> in) {
  if (in.empty()) return {};
  const unsigned width = word_bytes(view.dtype);
  const std::uint64_t chunk = bytes_ / width;
  const std::uint64_t words = in.size() / width;
  const DeviceView strides = device_view(view);
  unsigned half = 0;
  for (std::uint64_t first = 0; first < words; first += chunk, half = (half + 1) % kDeviceMarks) {
    const std::uint64_t count = std::min(chunk, words - first);
    DCR_TRY(device_.wait(half));
    std::memcpy(pinned(half), in.data() + first * width, static_cast<std::size_t>(count * width));
    if (contiguous(strides)) {
      DCR_TRY(
          device_.copy_in(storage + (view.offset + first) * width, pinned(half), count * width));
    } else {
      DCR_TRY(device_.copy_in(twin(half), pinned(half), count * width));
      DCR_TRY(device_.scatter(
          {strides, static_cast<std::uint8_t>(width), storage, first, count, twin(half)}));
    }
    DCR_TRY(device_.mark(half));
  }
  return {};
}

DeviceTargetMemory::~DeviceTargetMemory() {
  const std::lock_guard<std::mutex> lock(staging_.turns());
  // What is on its way uses the storages; a device that refuses has nothing on its way.
  static_cast<void>(staging_.device().synchronize());
  for (const auto& [id, storage] : storages_) {
    if (storage.scratch) staging_.device().release(storage.memory);
  }
}

Result<std::uint64_t> DeviceTargetMemory::add(void* storage, std::uint64_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(storage) % kDeviceAlignment != 0) {
    return Status(Code::kInvalidArgument, "a storage on a device is not aligned to " +
                                              std::to_string(kDeviceAlignment) + " bytes");
  }
  const std::lock_guard<std::mutex> lock(staging_.turns());
  storages_[next_] = {static_cast<std::uint8_t*>(storage), bytes, false};
  return next_++;
}

Status DeviceTargetMemory::remove(std::uint64_t storage) {
  const std::lock_guard<std::mutex> lock(staging_.turns());
  const auto found = storages_.find(storage);
  if (found == storages_.end() || found->second.scratch) return not_found(storage);
  // What is on its way may still use it.
  Status done = staging_.device().synchronize();
  storages_.erase(found);
  return done;
}

void DeviceTargetMemory::settle() {
  const std::lock_guard<std::mutex> lock(staging_.turns());
  settled_ = false;
}

// What others have given the device comes before what follows.
Status DeviceTargetMemory::begin() {
  if (settled_) return {};
  DCR_TRY(staging_.device().wait_idle());
  settled_ = true;
  return {};
}

Result<DeviceTargetMemory::Storage> DeviceTargetMemory::find(std::uint64_t storage) const {
  const auto found = storages_.find(storage);
  if (found == storages_.end()) return not_found(storage);
  return found->second;
}

Result<std::uint64_t> DeviceTargetMemory::storage_bytes(std::uint64_t storage) const {
  const std::lock_guard<std::mutex> lock(staging_.turns());
  DCR_ASSIGN(const Storage found, find(storage));
  return found.bytes;
}

Status DeviceTargetMemory::apply(const TargetChanges& target,
                                 std::span<const std::uint32_t> positions, const void* values,
                                 ApplyMode mode, ApplyCounts* counts) {
  const std::lock_guard<std::mutex> lock(staging_.turns());
  DCR_ASSIGN(const Storage storage, find(target.storage));
  DCR_TRY(check_target(target, storage.bytes));
  DCR_TRY(check_positions(target, positions, mode));
  const auto [from, to] = hit_range(target, positions);
  if (from == to) return {};
  DCR_TRY(begin());
  DeviceChanges changes;
  changes.grid = device_grid(target);
  changes.width = target.width;
  changes.encoding = target.encoding;
  changes.verify = mode == ApplyMode::kVerify;
  changes.storage = storage.memory;
  const auto* const words = static_cast<const std::uint8_t*>(values);
  const Status sent =
      send_changes(changes, positions.subspan(from, to - from), words + from * target.width);
  // Counts are known when all is done; also an error must leave nothing on its way that reads the
  // buffers.
  const Status done = staging_.device().synchronize();
  DCR_TRY(sent);
  DCR_TRY(done);
  DeviceCounts counted;
  std::memcpy(&counted, staging_.pinned(0), sizeof(counted));
  counts->words += counted.words;
  counts->different += counted.different;
  return {};
}

// The head of both twins is counters, those of the first are used; then come positions and values.
Status DeviceTargetMemory::send_changes(DeviceChanges changes,
                                        std::span<const std::uint32_t> positions,
                                        const std::uint8_t* values) {
  constexpr std::uint64_t kHead = sizeof(DeviceCounts);
  constexpr std::uint64_t kPosition = sizeof(std::uint32_t);
  static_assert(kHead % kDeviceAlignment == 0);
  // An odd number of positions is followed by a gap, so that values are aligned.
  const std::uint64_t chunk =
      (staging_.bytes() - kHead - kDeviceAlignment) / (kPosition + changes.width);
  changes.counts = reinterpret_cast<DeviceCounts*>(staging_.twin(0));
  DCR_TRY(staging_.device().zero(changes.counts, kHead));
  unsigned half = 0;
  for (std::uint64_t first = 0; first < positions.size();
       first += chunk, half = (half + 1) % kDeviceMarks) {
    const std::uint64_t count = std::min<std::uint64_t>(chunk, positions.size() - first);
    const std::uint64_t values_at =
        divide_up(count * kPosition, kDeviceAlignment) * kDeviceAlignment;
    DCR_TRY(staging_.device().wait(half));
    std::uint8_t* const pinned = staging_.pinned(half) + kHead;
    std::uint8_t* const twin = staging_.twin(half) + kHead;
    std::memcpy(pinned, positions.data() + first, static_cast<std::size_t>(count * kPosition));
    std::memcpy(pinned + values_at, values + first * changes.width,
                static_cast<std::size_t>(count * changes.width));
    DCR_TRY(staging_.device().copy_in(twin, pinned, values_at + count * changes.width));
    changes.positions = reinterpret_cast<const std::uint32_t*>(twin);
    changes.values = twin + values_at;
    changes.count = count;
    DCR_TRY(staging_.device().apply(changes));
    DCR_TRY(staging_.device().mark(half));
  }
  return staging_.device().copy_out(staging_.pinned(0), changes.counts, kHead);
}

Status DeviceTargetMemory::read(const TensorView& view, std::span<std::uint8_t> out) {
  const std::lock_guard<std::mutex> lock(staging_.turns());
  DCR_ASSIGN(const Storage storage, find(view.storage));
  DCR_TRY(check_view(view, storage.bytes, out.size()));
  DCR_TRY(begin());
  return staging_.read(view, storage.memory, out);
}

Status DeviceTargetMemory::write(const TensorView& view, std::span<const std::uint8_t> in) {
  const std::lock_guard<std::mutex> lock(staging_.turns());
  DCR_ASSIGN(const Storage storage, find(view.storage));
  DCR_TRY(check_view(view, storage.bytes, in.size()));
  DCR_TRY(begin());
  return staging_.write(view, storage.memory, in);
}

Result<std::uint64_t> DeviceTargetMemory::allocate(std::uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(staging_.turns());
  DCR_TRY(check_scratch(bytes, scratch_bytes_, scratch_bytes_max_));
  DCR_ASSIGN(void* const memory, staging_.device().allocate(bytes));
  const Status zeroed = staging_.device().zero(memory, bytes);
  if (!zeroed.ok()) {
    staging_.device().release(memory);
    return zeroed;
  }
  scratch_bytes_ += bytes;
  storages_[next_] = {static_cast<std::uint8_t*>(memory), bytes, true};
  return next_++;
}

Status DeviceTargetMemory::release(std::uint64_t storage) {
  const std::lock_guard<std::mutex> lock(staging_.turns());
  const auto found = storages_.find(storage);
  if (found == storages_.end() || !found->second.scratch) {
    return {Code::kNotFound, "there is no scratch storage " + std::to_string(storage)};
  }
  // What is on its way may still use it.
  Status done = staging_.device().synchronize();
  staging_.device().release(found->second.memory);
  scratch_bytes_ -= found->second.bytes;
  storages_.erase(found);
  return done;
}

Status DeviceTargetMemory::synchronize() {
  const std::lock_guard<std::mutex> lock(staging_.turns());
  // What a loader has given the device must be done, too.
  return std::exchange(settled_, false) ? staging_.device().synchronize()
                                        : staging_.device().wait_idle();
}

}  // namespace dcr
