// Weights in a device's memory (DESIGN §7 "Device memory"). What goes to the device or comes from
// it passes through two pinned buffers of a fixed size, each with its twin on the device, which are
// allocated here once: nothing else is in proportion to a tensor. While one buffer is on its way,
// the other is filled or emptied.
//
// Thread safety: concurrent calls are allowed and take turns.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "base/limits.h"
#include "dcr/ports.h"
#include "dcr/status.h"
#include "device/device.h"

namespace dcr {

inline constexpr std::uint64_t kDeviceStagingBytes = 64 * kMiB;  // of each buffer, by default
inline constexpr std::uint64_t kDeviceStagingBytesMin = 4 * kKiB;
inline constexpr std::uint64_t kDeviceAlignment = sizeof(std::uint64_t);  // of storages

// The two buffers and their twins.
class DeviceStaging {
 public:
  // `device` must outlive it. Errors: kInvalidArgument below kDeviceStagingBytesMin; the device's.
  static Result<std::unique_ptr<DeviceStaging>> create(Device& device, std::uint64_t bytes);
  DeviceStaging(Device& device, std::uint64_t bytes) : device_(device), bytes_(bytes) {}
  ~DeviceStaging();
  DeviceStaging(const DeviceStaging&) = delete;
  DeviceStaging& operator=(const DeviceStaging&) = delete;

  std::uint64_t bytes() const { return bytes_; }
  std::uint8_t* pinned(unsigned half) const { return halves_[half].pinned; }
  std::uint8_t* twin(unsigned half) const { return halves_[half].twin; }

  // Copies words of a view between the storage at `storage` and host memory, in the order of its
  // indices. REQUIRES: check_view. read() has all of them when it returns, write() may end later.
  Status read(const TensorView& view, std::uint8_t* storage, std::span<std::uint8_t> out);
  Status write(const TensorView& view, std::uint8_t* storage, std::span<const std::uint8_t> in);

 private:
  struct Half {
    std::uint8_t* pinned = nullptr;
    std::uint8_t* twin = nullptr;
  };

  Device& device_;
  const std::uint64_t bytes_;
  std::array<Half, kDeviceMarks> halves_;
};

// A serving rank's parameters and buffers.
class DeviceTargetMemory final : public TargetMemory {
 public:
  struct Options {
    std::uint64_t staging_bytes = kDeviceStagingBytes;
    std::uint64_t scratch_bytes_max = 0;  // of all scratch storages together
  };

  // `device` must outlive it, and is used by nobody else. Errors: DeviceStaging's.
  static Result<std::unique_ptr<DeviceTargetMemory>> create(Device& device, Options options);
  DeviceTargetMemory(Device& device, Options options, std::unique_ptr<DeviceStaging> staging);
  ~DeviceTargetMemory() override;

  // Adds a parameter's storage, somebody's memory on the device that outlives this. Ids count from
  // 0 in the order of these calls. Error kInvalidArgument: not aligned to kDeviceAlignment.
  // REQUIRES: before any allocate().
  Result<std::uint64_t> add(void* storage, std::uint64_t bytes);

  Result<std::uint64_t> storage_bytes(std::uint64_t storage) const override;
  Status apply(const TargetChanges& target, std::span<const std::uint32_t> positions,
               const void* values, ApplyMode mode, ApplyCounts* counts) override;
  Status read(const TensorView& view, std::span<std::uint8_t> out) override;
  Status write(const TensorView& view, std::span<const std::uint8_t> in) override;
  Result<std::uint64_t> allocate(std::uint64_t bytes) override;
  Status release(std::uint64_t storage) override;
  Status synchronize() override;

 private:
  struct Storage {
    std::uint8_t* memory = nullptr;
    std::uint64_t bytes = 0;
    bool scratch = false;
  };

  Result<Storage> find(std::uint64_t storage) const;
  Status send_changes(DeviceChanges changes, std::span<const std::uint32_t> positions,
                      const std::uint8_t* values);

  Device& device_;
  const Options options_;
  mutable std::mutex mutex_;  // guards all below, and the device
  std::unique_ptr<DeviceStaging> staging_;
  std::map<std::uint64_t, Storage> storages_;
  std::uint64_t next_ = 0;
  std::uint64_t scratch_bytes_ = 0;
};

// A trainer rank's weights, to read.
class DeviceSourceMemory final : public SourceMemory {
 public:
  // `device` must outlive it, and is used by nobody else. Errors: DeviceStaging's.
  static Result<std::unique_ptr<DeviceSourceMemory>> create(Device& device,
                                                            std::uint64_t staging_bytes);
  DeviceSourceMemory(Device& device, std::unique_ptr<DeviceStaging> staging)
      : device_(device), staging_(std::move(staging)) {}

  // As DeviceTargetMemory::add. A storage may be given another place, which reads after it use.
  Result<std::uint64_t> add(const void* storage, std::uint64_t bytes);
  Status replace(std::uint64_t storage, const void* memory, std::uint64_t bytes);

  // Reads from now on wait for what `stream` has been given (Device::follow).
  Status follow(void* stream);

  Status read(const TensorView& view, std::span<std::uint8_t> out) override;

 private:
  struct Storage {
    const std::uint8_t* memory = nullptr;
    std::uint64_t bytes = 0;
  };

  Device& device_;
  std::mutex mutex_;  // guards all below, and the device
  std::unique_ptr<DeviceStaging> staging_;
  std::map<std::uint64_t, Storage> storages_;
};

}  // namespace dcr
