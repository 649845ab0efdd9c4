// Weights in a device's memory (DESIGN §7 "Device memory"). What goes to the device or comes from
// it passes through two pinned buffers of a fixed size, each with its twin on the device, which are
// allocated here once: nothing else is in proportion to a tensor. Of what is larger than a buffer,
// one is on its way while the other is filled or emptied.
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

// The two buffers and their twins, for all that use the device.
class DeviceStaging {
 public:
  // `device` must outlive it. Errors: kInvalidArgument below kDeviceStagingBytesMin; the device's.
  static Result<std::unique_ptr<DeviceStaging>> create(Device& device, std::uint64_t bytes);
  DeviceStaging(Device& device, std::uint64_t bytes) : device_(device), bytes_(bytes) {}
  ~DeviceStaging();
  DeviceStaging(const DeviceStaging&) = delete;
  DeviceStaging& operator=(const DeviceStaging&) = delete;

  // Whoever uses the device or the buffers holds it meanwhile.
  std::mutex& turns() { return turns_; }
  Device& device() const { return device_; }

  std::uint64_t bytes() const { return bytes_; }
  std::uint8_t* pinned(unsigned half) const { return halves_[half].pinned; }
  std::uint8_t* twin(unsigned half) const { return halves_[half].twin; }

  // Copies words of a view between the storage at `storage` and host memory, in the order of its
  // indices. REQUIRES: check_view, and a storage aligned to words. read() has all of them when it
  // returns, write() may end later.
  Status read(const TensorView& view, const std::uint8_t* storage, std::span<std::uint8_t> out);
  Status write(const TensorView& view, std::uint8_t* storage, std::span<const std::uint8_t> in);

 private:
  struct Half {
    std::uint8_t* pinned = nullptr;
    std::uint8_t* twin = nullptr;
  };

  Device& device_;
  const std::uint64_t bytes_;
  std::mutex turns_;  // guards the device and the buffers
  std::array<Half, kDeviceMarks> halves_;
};

// A serving rank's parameters and buffers. Thread safety: concurrent calls are allowed and take
// turns.
class DeviceTargetMemory final : public TargetMemory {
 public:
  // `staging` must outlive it. Scratch of all storages together stays within `scratch_bytes_max`.
  explicit DeviceTargetMemory(DeviceStaging& staging, std::uint64_t scratch_bytes_max = 0)
      : staging_(staging), scratch_bytes_max_(scratch_bytes_max) {}
  ~DeviceTargetMemory() override;

  // Adds a parameter's storage, somebody's memory on the device that stays where it is until it is
  // removed. Ids count from 0 in the order of these calls and of allocate(). Error
  // kInvalidArgument: not aligned to kDeviceAlignment.
  Result<std::uint64_t> add(void* storage, std::uint64_t bytes);
  // Forgets a storage that was added. Error: kNotFound.
  Status remove(std::uint64_t storage);
  // Others have used the storages: what follows begins when the device is idle, and synchronize()
  // waits for that. So does what follows synchronize(), and the first call.
  void settle();

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
  Status begin();
  Status send_changes(DeviceChanges changes, std::span<const std::uint32_t> positions,
                      const std::uint8_t* values);

  DeviceStaging& staging_;
  const std::uint64_t scratch_bytes_max_;
  // Guarded by the staging's turns.
  std::map<std::uint64_t, Storage> storages_;
  std::uint64_t next_ = 0;
  std::uint64_t scratch_bytes_ = 0;
  bool settled_ = false;  // nobody else has used the storages since the device was idle
};

}  // namespace dcr
