#include "device/device_memory.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "base/checked.h"
#include "tensor/target.h"

namespace dcr {

namespace {

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

// Of a target with changes in a slice, beside positions and values; and the least that one takes.
constexpr std::uint64_t kHeadBytes = sizeof(DeviceCounts) + sizeof(DeviceChanges);
constexpr std::uint64_t kPartBytesMin =
    kHeadBytes + 2 * (kDeviceAlignment - 1) + sizeof(std::uint32_t) + sizeof(std::uint64_t);
static_assert(device_slice_bytes(kDeviceStagingBytesMin) >= kPartBytesMin);
static_assert(sizeof(DeviceCounts) % kDeviceAlignment == 0 &&
              sizeof(DeviceChanges) % kDeviceAlignment == 0);

std::uint64_t aligned(std::uint64_t bytes) {
  return divide_up(bytes, kDeviceAlignment) * kDeviceAlignment;
}

Status not_found(std::uint64_t storage) {
  return {Code::kNotFound, "there is no storage " + std::to_string(storage)};
}

}  // namespace

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
  TargetApplication one{&target, positions, values, *counts};
  std::size_t failed = 0;
  DCR_TRY(apply_all({&one, 1}, mode, &failed));
  *counts = one.counts;
  return {};
}

// All are checked before anything is sent.
Result<std::vector<DeviceTargetMemory::Reaching>> DeviceTargetMemory::reaching(
    std::span<const TargetApplication> applications, ApplyMode mode, std::size_t* failed) {
  std::vector<Reaching> all(applications.size());
  bool any = false;
  const std::lock_guard<std::mutex> lock(staging_.turns());
  for (*failed = 0; *failed < applications.size(); ++*failed) {
    const TargetApplication& one = applications[*failed];
    const TargetChanges& target = *one.target;
    DCR_ASSIGN(const Storage storage, find(target.storage));
    DCR_TRY(check_target(target, storage.bytes));
    DCR_TRY(check_positions(target, one.positions, mode));
    const auto [from, to] = hit_range(target, one.positions);
    any = any || from < to;
    Reaching& made = all[*failed];
    made.changes.grid = device_grid(target);
    made.changes.width = target.width;
    made.changes.encoding = target.encoding;
    made.changes.verify = mode == ApplyMode::kVerify;
    made.changes.storage = storage.memory;
    made.positions = one.positions.subspan(from, to - from);
    made.values = static_cast<const std::uint8_t*>(one.values) + from * target.width;
  }
  if (any) DCR_TRY(begin());
  return all;
}

// What fits one slice of the changes from `next` on, where it leaves `next`.
std::vector<DeviceTargetMemory::Part> DeviceTargetMemory::fill(std::span<const Reaching> reaching,
                                                               Part* next) const {
  std::vector<Part> parts;
  std::uint64_t room = staging_.slice_bytes();
  while (next->application < reaching.size()) {
    const Reaching& from = reaching[next->application];
    const std::uint64_t left = from.positions.size() - next->first;
    if (left == 0) {
      *next = {next->application + 1, 0, 0};
      continue;
    }
    if (room < kPartBytesMin) break;
    const std::uint64_t width = from.changes.width;
    // Those few bytes are what may be lost to alignment.
    const std::uint64_t count = std::min(
        left, (room - kHeadBytes - 2 * (kDeviceAlignment - 1)) / (sizeof(std::uint32_t) + width));
    parts.push_back({next->application, next->first, count});
    next->first += count;
    room -= kHeadBytes + aligned(count * sizeof(std::uint32_t)) + aligned(count * width);
  }
  return parts;
}

// A slice has counters, what there is for each target, and then their positions and values.
Status DeviceTargetMemory::send(Sent& sent, std::span<const Reaching> reaching) {
  std::uint8_t* const pinned = sent.slice.pinned();
  std::uint8_t* const twin = sent.slice.twin();
  const std::uint64_t counts_bytes = sent.parts.size() * sizeof(DeviceCounts);
  std::uint64_t target_at = counts_bytes;
  std::uint64_t at = counts_bytes + sent.parts.size() * sizeof(DeviceChanges);
  DeviceBatch batch;
  batch.targets = reinterpret_cast<const DeviceChanges*>(twin + target_at);
  batch.count = static_cast<std::uint32_t>(sent.parts.size());
  std::memset(pinned, 0, static_cast<std::size_t>(counts_bytes));
  for (std::size_t i = 0; i < sent.parts.size(); ++i) {
    const Part& part = sent.parts[i];
    const Reaching& from = reaching[part.application];
    DeviceChanges changes = from.changes;
    changes.count = part.count;
    changes.counts = reinterpret_cast<DeviceCounts*>(twin) + i;
    changes.first_turn = batch.turns;
    batch.turns += divide_up(part.count, std::uint64_t{kDeviceTurn});
    const auto put = [&](const void* words, std::uint64_t bytes) {
      std::memcpy(pinned + at, words, static_cast<std::size_t>(bytes));
      const std::uint8_t* const there = twin + at;
      at += aligned(bytes);
      return there;
    };
    changes.positions = reinterpret_cast<const std::uint32_t*>(
        put(from.positions.data() + part.first, part.count * sizeof(std::uint32_t)));
    changes.values = put(from.values + part.first * changes.width, part.count * changes.width);
    std::memcpy(pinned + target_at, &changes, sizeof(changes));
    target_at += sizeof(changes);
  }
  return sent.slice.queue([&](Device& device) -> Status {
    DCR_TRY(device.copy_in(twin, pinned, at));
    DCR_TRY(device.apply(batch));
    return device.copy_out(pinned, twin, counts_bytes);
  });
}

Status DeviceTargetMemory::take_counts(Sent& sent, std::span<TargetApplication> applications) {
  DCR_TRY(sent.slice.wait());
  for (std::size_t i = 0; i < sent.parts.size(); ++i) {
    DeviceCounts counted;
    std::memcpy(&counted, sent.slice.pinned() + i * sizeof(counted), sizeof(counted));
    ApplyCounts& counts = applications[sent.parts[i].application].counts;
    counts.words += counted.words;
    counts.different += counted.different;
  }
  return {};
}

Status DeviceTargetMemory::apply_all(std::span<TargetApplication> applications, ApplyMode mode,
                                     std::size_t* failed) {
  DCR_ASSIGN(const std::vector<Reaching> all, reaching(applications, mode, failed));
  *failed = applications.size();
  std::deque<Sent> sent;
  const auto take_first = [&]() -> Status {
    DCR_TRY(take_counts(sent.front(), applications));
    sent.pop_front();
    return {};
  };
  for (Part next;;) {
    std::vector<Part> parts = fill(all, &next);
    if (parts.empty()) break;
    std::optional<DeviceSlice> slice = staging_.try_take();
    while (!slice && !sent.empty()) {
      DCR_TRY(take_first());
      slice = staging_.try_take();
    }
    if (!slice) {
      DCR_ASSIGN(slice, staging_.take());
    }
    sent.push_back({std::move(*slice), std::move(parts)});
    DCR_TRY(send(sent.back(), all));
  }
  while (!sent.empty()) DCR_TRY(take_first());
  return {};
}

Result<DeviceTargetMemory::Storage> DeviceTargetMemory::begin_view(const TensorView& view,
                                                                   std::uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(staging_.turns());
  DCR_ASSIGN(const Storage storage, find(view.storage));
  DCR_TRY(check_view(view, storage.bytes, bytes));
  DCR_TRY(begin());
  return storage;
}

Status DeviceTargetMemory::read(const TensorView& view, std::span<std::uint8_t> out) {
  DCR_ASSIGN(const Storage storage, begin_view(view, out.size()));
  return staging_.read(view, storage.memory, out);
}

Status DeviceTargetMemory::write(const TensorView& view, std::span<const std::uint8_t> in) {
  DCR_ASSIGN(const Storage storage, begin_view(view, in.size()));
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
