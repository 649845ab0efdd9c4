#include "dcr/device.h"

#include <mutex>
#include <utility>

#include "api/device_state.h"
#include "device/load_device.h"
#include "tensor/target.h"

namespace dcr {
namespace {

// Ids of storages on the device; those of host memory count from 0 and stay far below.
constexpr std::uint64_t kDeviceIds = std::uint64_t{1} << 62;

class MixedTargets final : public DeviceTargets {
 public:
  MixedTargets(std::shared_ptr<StagedDevice> device, std::uint64_t scratch_bytes_max)
      : device_(std::move(device)),
        host_(HostTargets::create(scratch_bytes_max)),
        memory_(*device_->state().staging) {}

  std::uint64_t add_host(std::span<std::uint8_t> storage) override { return host_->add(storage); }
  Result<std::uint64_t> add_device(DeviceSpan storage) override {
    DCR_ASSIGN(const std::uint64_t id,
               memory_.add(reinterpret_cast<void*>(storage.address), storage.bytes));
    return kDeviceIds + id;
  }
  Status remove(std::uint64_t storage) override {
    return storage < kDeviceIds ? host_->remove(storage) : memory_.remove(storage - kDeviceIds);
  }
  Result<std::span<std::uint8_t>> find_host(std::uint64_t storage) const override {
    return host_->find(storage);
  }
  void settle() override { memory_.settle(); }

  Result<std::uint64_t> storage_bytes(std::uint64_t storage) const override {
    return storage < kDeviceIds ? host_->storage_bytes(storage)
                                : memory_.storage_bytes(storage - kDeviceIds);
  }
  Status apply(const TargetChanges& target, std::span<const std::uint32_t> positions,
               const void* values, ApplyMode mode, ApplyCounts* counts) override {
    if (target.storage < kDeviceIds) return host_->apply(target, positions, values, mode, counts);
    TargetChanges there = target;
    there.storage -= kDeviceIds;
    return memory_.apply(there, positions, values, mode, counts);
  }
  Status read(const TensorView& view, std::span<std::uint8_t> out) override {
    if (view.storage < kDeviceIds) return host_->read(view, out);
    return memory_.read(there(view), out);
  }
  Status write(const TensorView& view, std::span<const std::uint8_t> in) override {
    if (view.storage < kDeviceIds) return host_->write(view, in);
    return memory_.write(there(view), in);
  }
  Result<std::uint64_t> allocate(std::uint64_t bytes) override { return host_->allocate(bytes); }
  Status release(std::uint64_t storage) override { return host_->release(storage); }
  Status synchronize() override { return memory_.synchronize(); }

 private:
  static TensorView there(TensorView view) {
    view.storage -= kDeviceIds;
    return view;
  }

  const std::shared_ptr<StagedDevice> device_;
  const std::unique_ptr<HostTargets> host_;
  DeviceTargetMemory memory_;
};

}  // namespace

Result<std::shared_ptr<StagedDevice>> StagedDevice::State::open(std::unique_ptr<Device> device,
                                                                std::uint64_t staging_bytes) {
  auto state = std::make_unique<State>();
  state->device = std::move(device);
  DCR_ASSIGN(state->staging, DeviceStaging::create(*state->device, staging_bytes));
  return std::make_shared<StagedDevice>(std::move(state));
}

StagedDevice::StagedDevice(std::unique_ptr<State> state) : state_(std::move(state)) {}
StagedDevice::~StagedDevice() = default;

Result<std::shared_ptr<StagedDevice>> StagedDevice::open(const std::string& library, int index,
                                                         std::uint64_t staging_bytes) {
  Result<std::unique_ptr<Device>> device = load_device(library, index);
  const std::string what = "device " + std::to_string(index);
  if (!device.ok()) return device.status().with_context(what);
  auto staged = State::open(std::move(device).value(), staging_bytes);
  if (!staged.ok()) return staged.status().with_context(what);
  return staged;
}

std::string StagedDevice::name() const { return state_->device->name(); }
std::uint64_t StagedDevice::staging_bytes() const { return state_->staging->bytes(); }

Status StagedDevice::follow(void* stream) {
  const std::lock_guard<std::mutex> lock(state_->staging->turns());
  return state_->device->follow(stream);
}

std::unique_ptr<DeviceTargets> DeviceTargets::create(std::shared_ptr<StagedDevice> device,
                                                     std::uint64_t scratch_bytes_max) {
  return std::make_unique<MixedTargets>(std::move(device), scratch_bytes_max);
}

void DeviceStorages::set_host(std::size_t storage, std::span<const std::uint8_t> bytes) {
  on_device_[storage] = {};
  host_.set(storage, bytes);
}

void DeviceStorages::set_device(std::size_t storage, std::shared_ptr<StagedDevice> device,
                                DeviceSpan memory) {
  on_device_[storage] = {std::move(device), memory};
}

void DeviceStorages::clear() {
  on_device_.assign(on_device_.size(), {});
  host_.clear();
}

Status DeviceStorages::read(const TensorView& view, std::span<std::uint8_t> out) {
  if (view.storage >= on_device_.size()) return host_.read(view, out);
  const Place& place = on_device_[static_cast<std::size_t>(view.storage)];
  if (place.device == nullptr) return host_.read(view, out);
  DCR_TRY(check_view(view, place.memory.bytes, out.size()));
  if (place.memory.address % word_bytes(view.dtype) != 0) {
    return {Code::kInvalidArgument, "storage " + std::to_string(view.storage) +
                                        " on a device is not aligned to its elements"};
  }
  DeviceStaging& staging = *place.device->state().staging;
  const std::lock_guard<std::mutex> lock(staging.turns());
  return staging.read(view, reinterpret_cast<const std::uint8_t*>(place.memory.address), out);
}

}  // namespace dcr
