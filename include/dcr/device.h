// Weights in the memory of an accelerator (docs/ARCHITECTURE.md "Devices"): of a trainer rank, for
// EmbeddedOwner, and of a serving rank, for EmbeddedReceiver.
//
//   auto device = dcr::StagedDevice::open("libdcr_device.so", 0);    // CUDA's device 0
//   auto memory = dcr::DeviceTargets::create(*device, scratch_bytes_max);
//   memory->add_device({parameter, bytes});                           // and the loader's others
//   auto receiver = dcr::EmbeddedReceiver::create(tensors, loader, *memory, {.owners = boxes});
//
// CUDA is reached through a shared object of DCR's own, which is loaded when a device is first
// opened: nothing else needs CUDA or its driver to be there. Everything passes through a pinned
// buffer of a fixed size with a twin on the device, which are allocated when the device is opened;
// nothing is allocated there later, whatever the size of a tensor. Both are cut into slices, so
// that one thread's copies overlap what others do, and what it does itself. Work on the device is
// put on a stream of its own, and the calling thread's current device stays what it was, if anybody
// in the process has used that.
//
// Thread safety: all of it is thread-safe, but for the weights themselves and for storages that are
// set while they are read. In a process that was forked after a device was opened nothing of it
// works.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dcr/owner.h"
#include "dcr/ports.h"
#include "dcr/receiver.h"
#include "dcr/status.h"

namespace dcr {

// Memory on a device, which the host must not touch.
struct DeviceSpan {
  std::uintptr_t address = 0;
  std::uint64_t bytes = 0;
};

class StagedDevice {
 public:
  static constexpr std::uint64_t kStagingBytes = std::uint64_t{64} << 20;

  // Device `index`, as CUDA counts, of the shared object at `library`; two pinned buffers
  // of `staging_bytes` each and as much on the device. Errors: kNotFound, no such library;
  // kUnsupported, it is of another build; kUnavailable, there is no driver or no such device, in
  // CUDA's words; kTooLarge, no room for the buffers; kInvalidArgument, less than 16 KiB. Owners
  // read ahead of what they look at from 4 MiB on.
  static Result<std::shared_ptr<StagedDevice>> open(const std::string& library, int index,
                                                    std::uint64_t staging_bytes = kStagingBytes);
  ~StagedDevice();
  StagedDevice(const StagedDevice&) = delete;
  StagedDevice& operator=(const StagedDevice&) = delete;

  // As its maker calls it.
  std::string name() const;
  std::uint64_t staging_bytes() const;

  // What is done here from now on begins when everything that `stream` (a cudaStream_t; null: the
  // default stream) has been given so far is done: how a trainer's last step is read whole.
  Status follow(void* stream);

  // Of open().
  struct State;
  explicit StagedDevice(std::unique_ptr<State> state);
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

// A serving rank's parameters on a device, others of it in host memory, and scratch, which lies in
// host memory as a checkpoint's tensors do. What the core writes has reached the device when
// synchronize() returns; what it does first, and first after synchronize() or settle(), begins when
// the device is idle, whatever stream has been used.
class DeviceTargets : public TargetMemory {
 public:
  static std::unique_ptr<DeviceTargets> create(std::shared_ptr<StagedDevice> device,
                                               std::uint64_t scratch_bytes_max);

  // Adds somebody's storage, which must stay where it is until it is removed, or outlive this.
  // Returns its id; no id is used twice. Error of add_device: kInvalidArgument, not aligned to
  // eight bytes.
  virtual std::uint64_t add_host(std::span<std::uint8_t> storage) = 0;
  virtual Result<std::uint64_t> add_device(DeviceSpan storage) = 0;
  // Forgets a storage that was added. Error: kNotFound.
  virtual Status remove(std::uint64_t storage) = 0;
  // Where a storage in host memory lies, scratch too. Error: kNotFound.
  virtual Result<std::span<std::uint8_t>> find_host(std::uint64_t storage) const = 0;
  // A loader has used the device, or will have when it is idle.
  virtual void settle() = 0;
};

// A trainer rank's weights, in host memory and on devices. Storages may be set again between an
// owner's calls: what a trainer offloads, resizes or replaces is found at its new place.
class DeviceStorages final : public SourceMemory {
 public:
  explicit DeviceStorages(std::size_t storages) : host_(storages), on_device_(storages) {}

  // What they refer to must stay where it is during an owner's calls. REQUIRES: storage < the
  // number of storages.
  void set_host(std::size_t storage, std::span<const std::uint8_t> bytes);
  void set_device(std::size_t storage, std::shared_ptr<StagedDevice> device, DeviceSpan memory);
  void clear();

  Status read(const TensorView& view, std::span<std::uint8_t> out) override;
  std::unique_ptr<PendingRead> begin_read(const TensorView& view) override;

 private:
  struct Place {
    std::shared_ptr<StagedDevice> device;  // null: it lies in host memory
    DeviceSpan memory;
  };

  const Place* find(std::uint64_t storage) const;
  static Status check(const TensorView& view, const Place& place, std::uint64_t bytes);

  HostStorages host_;
  std::vector<Place> on_device_;
};

}  // namespace dcr
