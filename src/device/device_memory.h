// A serving rank's weights in a device's memory (docs/ARCHITECTURE.md "Devices").
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "dcr/ports.h"
#include "dcr/status.h"
#include "device/device_staging.h"

namespace dcr {

inline constexpr std::uint64_t kDeviceAlignment = sizeof(std::uint64_t);  // of storages

// Thread safety: concurrent calls are allowed.
class DeviceTargetMemory final : public TargetMemory {
 public:
  // `staging` must outlive it. Scratch of all storages together stays within `scratch_bytes_max`.
  // Storages' ids count from `first_id`.
  explicit DeviceTargetMemory(DeviceStaging& staging, std::uint64_t scratch_bytes_max = 0,
                              std::uint64_t first_id = 0)
      : staging_(staging), scratch_bytes_max_(scratch_bytes_max), next_(first_id) {}
  ~DeviceTargetMemory() override;

  // Adds a parameter's storage, somebody's memory on the device that stays where it is until it is
  // removed. Ids are in the order of these calls and of allocate(). Error kInvalidArgument: not
  // aligned to kDeviceAlignment.
  Result<std::uint64_t> add(void* storage, std::uint64_t bytes);
  // Forgets a storage that was added. Error: kNotFound.
  Status remove(std::uint64_t storage);
  // Others have used the storages: what follows begins when the device is idle, and synchronize()
  // waits for that. So does what follows synchronize(), and the first call.
  void settle();

  Result<std::uint64_t> storage_bytes(std::uint64_t storage) const override;
  Status apply(const TargetChanges& target, std::span<const std::uint32_t> positions,
               const void* values, ApplyMode mode, ApplyCounts* counts) override;
  // Together they take one kernel for each slice that their changes fill.
  Status apply_all(std::span<TargetApplication> applications, ApplyMode mode,
                   std::size_t* failed) override;
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

  // Changes of an application that reach its windows, and those of them that go into one slice.
  struct Reaching {
    DeviceChanges changes;
    std::span<const std::uint32_t> positions;
    const std::uint8_t* values = nullptr;
  };
  struct Part {
    std::size_t application = 0;
    std::uint64_t first = 0;
    std::uint64_t count = 0;
  };
  // A slice with changes, which are on their way.
  struct Sent {
    DeviceSlice slice;
    std::vector<Part> parts;
  };

  Result<Storage> find(std::uint64_t storage) const;
  Status begin();
  Result<std::vector<Reaching>> reaching(std::span<const TargetApplication> applications,
                                         ApplyMode mode, std::size_t* failed);
  std::vector<Part> fill(std::span<const Reaching> reaching, Part* next) const;
  static Status send(Sent& sent, std::span<const Reaching> reaching);
  static Status take_counts(Sent& sent, std::span<TargetApplication> applications);
  Result<Storage> begin_view(const TensorView& view, std::uint64_t bytes);

  DeviceStaging& staging_;
  const std::uint64_t scratch_bytes_max_;
  // Guarded by the staging's turns.
  std::map<std::uint64_t, Storage> storages_;
  std::uint64_t next_;
  std::uint64_t scratch_bytes_ = 0;
  bool settled_ = false;  // nobody else has used the storages since the device was idle
};

}  // namespace dcr
