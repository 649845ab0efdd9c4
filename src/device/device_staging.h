// The two pinned buffers that everything to and from a device passes through, and their twins on
// the device, all of a fixed size and allocated here once: nothing else is in proportion to a
// tensor (docs/ARCHITECTURE.md "Devices").
//
// They are cut into slices, which are used from both in turn. A thread takes one, puts the work on
// it onto the device's stream, which is all that it does in turn with others, and waits for that
// slice's mark alone: what one thread copies into a slice or out of it, or computes, overlaps the
// work on the other slices.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "base/limits.h"
#include "dcr/ports.h"
#include "dcr/status.h"
#include "device/device.h"

namespace dcr {

inline constexpr unsigned kDeviceStagingBuffers = 2;
inline constexpr std::uint64_t kDeviceStagingBytes = 64 * kMiB;  // of each, by default
inline constexpr std::uint64_t kDeviceStagingBytesMin = 16 * kKiB;
// Slices are aligned to it, as CUDA's own allocations are.
inline constexpr std::uint64_t kDeviceSliceAlignment = 256;

static_assert(kDeviceMarks % kDeviceStagingBuffers == 0);
// Of buffers of this size.
constexpr std::uint64_t device_slice_bytes(std::uint64_t buffer_bytes) {
  const std::uint64_t most = buffer_bytes / (kDeviceMarks / kDeviceStagingBuffers);
  return most / kDeviceSliceAlignment * kDeviceSliceAlignment;
}

class DeviceStaging;

// A slice that somebody has, and gives back at any time: whoever takes it next waits for what is
// still on its way there. Thread safety: none.
class DeviceSlice {
 public:
  std::uint8_t* pinned() const { return place_->pinned; }
  std::uint8_t* twin() const { return place_->twin; }

  // Puts work on the slice, and other work with it, onto the stream: `work` has the device to
  // itself. After an error nothing of it is on its way.
  Status queue(const std::function<Status(Device&)>& work);
  // Returns when that is done.
  Status wait();

 private:
  friend class DeviceStaging;
  struct Place {
    unsigned mark = 0;
    std::uint8_t* pinned = nullptr;
    std::uint8_t* twin = nullptr;
    std::atomic<bool> taken{false};
    bool pending = false;  // something may be on its way; of whoever has taken it
  };
  struct GiveBack {
    void operator()(Place* place) const;
  };

  DeviceSlice(DeviceStaging& staging, Place& taken) : staging_(&staging), place_(&taken) {}

  DeviceStaging* staging_;
  std::unique_ptr<Place, GiveBack> place_;
};

// Thread safety: concurrent calls are allowed.
class DeviceStaging {
 public:
  // Buffers of `bytes` each. `device` must outlive it. Errors: kInvalidArgument below
  // kDeviceStagingBytesMin; the device's.
  static Result<std::unique_ptr<DeviceStaging>> create(Device& device, std::uint64_t bytes);
  DeviceStaging(Device& device, std::uint64_t bytes);
  ~DeviceStaging();
  DeviceStaging(const DeviceStaging&) = delete;
  DeviceStaging& operator=(const DeviceStaging&) = delete;

  // Whoever uses the device holds it meanwhile, but for wait().
  std::mutex& turns() { return turns_; }
  Device& device() const { return device_; }

  std::uint64_t bytes() const { return bytes_; }  // of each buffer
  std::uint64_t slice_bytes() const { return slice_bytes_; }

  // A slice on which nothing is on its way. take() waits for the one whose turn it is where none is
  // free, so a thread that has one may not call it; try_take() gives none where none is free or the
  // device refuses.
  Result<DeviceSlice> take();
  std::optional<DeviceSlice> try_take();

  // Copies words of a view between the storage at `storage` and host memory, in the order of its
  // indices. REQUIRES: check_view, a storage aligned to words, and that the thread has no slice.
  // read() has all of them when it returns, write() may end later.
  Status read(const TensorView& view, const std::uint8_t* storage, std::span<std::uint8_t> out);
  Status write(const TensorView& view, std::uint8_t* storage, std::span<const std::uint8_t> in);

  // Begins what read() does: SourceMemory::begin_read. Null where it does not fit a slice, or none
  // is free; it has a slice until it ends. REQUIRES: as read().
  std::unique_ptr<PendingRead> begin_read(const TensorView& view, const std::uint8_t* storage);

 private:
  friend class DeviceSlice;
  class SliceRead;
  struct Buffer {
    std::uint8_t* pinned = nullptr;
    std::uint8_t* twin = nullptr;
  };

  Result<DeviceSlice> settled(DeviceSlice slice);

  Device& device_;
  const std::uint64_t bytes_;
  const std::uint64_t slice_bytes_;
  std::array<Buffer, kDeviceStagingBuffers> buffers_;
  std::mutex turns_;  // guards the device
  std::array<DeviceSlice::Place, kDeviceMarks> places_;
  std::atomic<unsigned> next_{0};  // where to look first, for what was used longest ago
};

}  // namespace dcr
