#include "dcr/device.h"

#include <mutex>
#include <utility>

#include "api/device_state.h"
#include "device/load_device.h"
#include "tensor/target.h"
#include "tensor/view.h"

namespace dcr {
namespace {

// Ids of storages on the device; those of host memory count from 0 and stay far below.
constexpr std::uint64_t kDeviceIds = std::uint64_t{1} << 62;

class MixedTargets final : public DeviceTargets {
 public:
  MixedTargets(std::shared_ptr<StagedDevice> device, std::uint64_t scratch_bytes_max)
      : device_(std::move(device)),
        host_(HostTargets::create(scratch_bytes_max)),
        memory_(*device_->state().staging, 0, kDeviceIds) {}

  std::uint64_t add_host(std::span<std::uint8_t> storage) override { return host_->add(storage); }
  Result<std::uint64_t> add_device(DeviceSpan storage) override {
    return memory_.add(reinterpret_cast<void*>(storage.address), storage.bytes);
  }
  Status remove(std::uint64_t storage) override {
    return storage < kDeviceIds ? host_->remove(storage) : memory_.remove(storage);
  }
  Result<std::span<std::uint8_t>> find_host(std::uint64_t storage) const override {
    return host_->find(storage);
  }
  void settle() override { memory_.settle(); }

  Result<std::uint64_t> storage_bytes(std::uint64_t storage) const override {
    return storage < kDeviceIds ? host_->storage_bytes(storage) : memory_.storage_bytes(storage);
  }
  Status apply(const TargetChanges& target, std::span<const std::uint32_t> positions,
               const void* values, ApplyMode mode, ApplyCounts* counts) override {
    return memory_of(target.storage).apply(target, positions, values, mode, counts);
  }
  // Those on the device together, the others one by one.
  Status apply_all(std::span<TargetApplication> applications, ApplyMode mode,
                   std::size_t* failed) override {
    std::vector<TargetApplication> there;
    std::vector<std::size_t> which;
    for (std::size_t i = 0; i < applications.size(); ++i) {
      TargetApplication& one = applications[i];
      if (one.target->storage >= kDeviceIds) {
        there.push_back(one);
        which.push_back(i);
        continue;
      }
      *failed = i;
      DCR_TRY(host_->apply(*one.target, one.positions, one.values, mode, &one.counts));
    }
    which.push_back(applications.size());
    Status status = memory_.apply_all(there, mode, failed);
    *failed = which[*failed];
    for (std::size_t i = 0; i < there.size(); ++i) applications[which[i]].counts = there[i].counts;
    return status;
  }
  Status read(const TensorView& view, std::span<std::uint8_t> out) override {
    return memory_of(view.storage).read(view, out);
  }
  Status write(const TensorView& view, std::span<const std::uint8_t> in) override {
    return memory_of(view.storage).write(view, in);
  }
  Result<std::uint64_t> allocate(std::uint64_t bytes) override { return host_->allocate(bytes); }
  Status release(std::uint64_t storage) override { return host_->release(storage); }
  Status synchronize() override { return memory_.synchronize(); }

 private:
  TargetMemory& memory_of(std::uint64_t storage) {
    if (storage < kDeviceIds) return *host_;
    return memory_;
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

// Null: the storage is not on a device.
const DeviceStorages::Place* DeviceStorages::find(std::uint64_t storage) const {
  if (storage >= on_device_.size()) return nullptr;
  const Place& place = on_device_[static_cast<std::size_t>(storage)];
  return place.device == nullptr ? nullptr : &place;
}

Status DeviceStorages::check(const TensorView& view, const Place& place, std::uint64_t bytes) {
  DCR_TRY(check_view(view, place.memory.bytes, bytes));
  if (place.memory.address % word_bytes(view.dtype) == 0) return {};
  return {Code::kInvalidArgument, "storage " + std::to_string(view.storage) +
                                      " on a device is not aligned to its elements"};
}

Status DeviceStorages::read(const TensorView& view, std::span<std::uint8_t> out) {
  const Place* const place = find(view.storage);
  if (place == nullptr) return host_.read(view, out);
  DCR_TRY(check(view, *place, out.size()));
  const auto* const storage = reinterpret_cast<const std::uint8_t*>(place->memory.address);
  return place->device->state().staging->read(view, storage, out);
}

std::unique_ptr<PendingRead> DeviceStorages::begin_read(const TensorView& view) {
  const Place* const place = find(view.storage);
  if (place == nullptr || !view_fits(view, place->memory.bytes)) return nullptr;
  if (!check(view, *place, view_words(view) * word_bytes(view.dtype)).ok()) return nullptr;
  const auto* const storage = reinterpret_cast<const std::uint8_t*>(place->memory.address);
  return place->device->state().staging->begin_read(view, storage);
}

}  // namespace dcr
