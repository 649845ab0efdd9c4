#include "device/device_staging.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

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

// Where words of a contiguous view lie.
std::uint8_t* place_of(const DeviceWords& words) {
  return static_cast<std::uint8_t*>(words.storage) +
         (words.view.offset + words.first) * words.width;
}

// From their storage to the slice's pinned memory, and back; through its twin where they are not
// contiguous.
Status send_out(DeviceSlice& slice, DeviceWords words) {
  return slice.queue([&](Device& device) -> Status {
    const std::uint64_t bytes = words.count * words.width;
    if (contiguous(words.view)) return device.copy_out(slice.pinned(), place_of(words), bytes);
    words.packed = slice.twin();
    DCR_TRY(device.gather(words));
    return device.copy_out(slice.pinned(), slice.twin(), bytes);
  });
}

Status send_in(DeviceSlice& slice, DeviceWords words) {
  return slice.queue([&](Device& device) -> Status {
    const std::uint64_t bytes = words.count * words.width;
    if (contiguous(words.view)) return device.copy_in(place_of(words), slice.pinned(), bytes);
    words.packed = slice.twin();
    DCR_TRY(device.copy_in(slice.twin(), slice.pinned(), bytes));
    return device.scatter(words);
  });
}

// All of a view's words, or the first of them. What is read is not written through it.
DeviceWords words_of(const TensorView& view, const std::uint8_t* storage) {
  DeviceWords words;
  words.view = device_view(view);
  words.width = static_cast<std::uint8_t>(word_bytes(view.dtype));
  words.storage = const_cast<std::uint8_t*>(storage);
  return words;
}

}  // namespace

void DeviceSlice::GiveBack::operator()(Place* place) const {
  place->taken = false;
  place->taken.notify_one();
}

Status DeviceSlice::queue(const std::function<Status(Device&)>& work) {
  const std::lock_guard<std::mutex> lock(staging_->turns_);
  Device& device = staging_->device_;
  place_->pending = true;
  Status queued = work(device);
  if (queued.ok()) queued = device.mark(place_->mark);
  // Of what no mark stands behind, nobody could know when it is done.
  if (!queued.ok()) static_cast<void>(device.synchronize());
  return queued;
}

Status DeviceSlice::wait() {
  if (!place_->pending) return {};
  DCR_TRY(staging_->device_.wait(place_->mark));
  place_->pending = false;
  return {};
}

// A read of which all is on its way.
class DeviceStaging::SliceRead final : public PendingRead {
 public:
  SliceRead(DeviceSlice slice, std::uint64_t bytes) : slice_(std::move(slice)), bytes_(bytes) {}
  // The storage may go when nobody reads it any more.
  ~SliceRead() override { static_cast<void>(slice_.wait()); }

  Status finish(std::span<std::uint8_t> out) override {
    if (out.size() != bytes_) {
      return {Code::kInvalidArgument, "a view has another size than its buffer"};
    }
    DCR_TRY(slice_.wait());
    std::memcpy(out.data(), slice_.pinned(), out.size());
    return {};
  }

 private:
  DeviceSlice slice_;
  std::uint64_t bytes_;
};

Result<std::unique_ptr<DeviceStaging>> DeviceStaging::create(Device& device, std::uint64_t bytes) {
  if (bytes < kDeviceStagingBytesMin) {
    return Status(Code::kInvalidArgument, "a staging buffer of " + std::to_string(bytes) +
                                              " bytes: at least " +
                                              std::to_string(kDeviceStagingBytesMin));
  }
  auto staging = std::make_unique<DeviceStaging>(device, bytes);
  for (Buffer& buffer : staging->buffers_) {
    DCR_ASSIGN(void* const pinned, device.allocate_pinned(bytes));
    buffer.pinned = static_cast<std::uint8_t*>(pinned);
    DCR_ASSIGN(void* const twin, device.allocate(bytes));
    buffer.twin = static_cast<std::uint8_t*>(twin);
  }
  for (unsigned i = 0; i < kDeviceMarks; ++i) {
    const Buffer& buffer = staging->buffers_[i % kDeviceStagingBuffers];
    const std::uint64_t offset = i / kDeviceStagingBuffers * staging->slice_bytes_;
    DeviceSlice::Place& place = staging->places_[i];
    place.mark = i;
    place.pinned = buffer.pinned + offset;
    place.twin = buffer.twin + offset;
  }
  return staging;
}

DeviceStaging::DeviceStaging(Device& device, std::uint64_t bytes)
    : device_(device), bytes_(bytes), slice_bytes_(device_slice_bytes(bytes)) {}

DeviceStaging::~DeviceStaging() {
  // What is on its way uses the buffers; a device that refuses has nothing on its way.
  static_cast<void>(device_.synchronize());
  for (const Buffer& buffer : buffers_) {
    if (buffer.twin != nullptr) device_.release(buffer.twin);
    if (buffer.pinned != nullptr) device_.release_pinned(buffer.pinned);
  }
}

Result<DeviceSlice> DeviceStaging::settled(DeviceSlice slice) {
  DCR_TRY(slice.wait());
  return slice;
}

std::optional<DeviceSlice> DeviceStaging::try_take() {
  const unsigned first = next_++;
  for (unsigned i = 0; i < kDeviceMarks; ++i) {
    DeviceSlice::Place& place = places_[(first + i) % kDeviceMarks];
    if (place.taken.exchange(true)) continue;
    Result<DeviceSlice> slice = settled({*this, place});
    if (!slice.ok()) return std::nullopt;
    return std::move(slice).value();
  }
  return std::nullopt;
}

Result<DeviceSlice> DeviceStaging::take() {
  if (std::optional<DeviceSlice> slice = try_take()) return std::move(*slice);
  DeviceSlice::Place& place = places_[next_++ % kDeviceMarks];
  while (place.taken.exchange(true)) place.taken.wait(true);
  return settled({*this, place});
}

Status DeviceStaging::read(const TensorView& view, const std::uint8_t* storage,
                           std::span<std::uint8_t> out) {
  if (out.empty()) return {};
  DeviceWords part = words_of(view, storage);
  const std::uint64_t chunk = slice_bytes_ / part.width;
  const std::uint64_t words = out.size() / part.width;
  // One part is taken out of its slice while the next is on its way.
  std::unique_ptr<SliceRead> coming;
  std::span<std::uint8_t> to;
  for (; part.first < words; part.first += part.count) {
    part.count = std::min(chunk, words - part.first);
    std::optional<DeviceSlice> slice = try_take();
    if (!slice) {
      if (coming) DCR_TRY(std::exchange(coming, nullptr)->finish(to));
      DCR_ASSIGN(slice, take());
    }
    DCR_TRY(send_out(*slice, part));
    if (coming) DCR_TRY(coming->finish(to));
    to = out.subspan(static_cast<std::size_t>(part.first * part.width),
                     static_cast<std::size_t>(part.count * part.width));
    coming = std::make_unique<SliceRead>(std::move(*slice), to.size());
  }
  return coming->finish(to);
}

std::unique_ptr<PendingRead> DeviceStaging::begin_read(const TensorView& view,
                                                       const std::uint8_t* storage) {
  const unsigned width = word_bytes(view.dtype);
  const std::uint64_t words = view_words(view);
  if (words == 0 || words > slice_bytes_ / width) return nullptr;
  std::optional<DeviceSlice> slice = try_take();
  if (!slice) return nullptr;
  DeviceWords all = words_of(view, storage);
  all.count = words;
  if (!send_out(*slice, all).ok()) return nullptr;
  return std::make_unique<SliceRead>(std::move(*slice), words * width);
}

Status DeviceStaging::write(const TensorView& view, std::uint8_t* storage,
                            std::span<const std::uint8_t> in) {
  if (in.empty()) return {};
  DeviceWords part = words_of(view, storage);
  const std::uint64_t chunk = slice_bytes_ / part.width;
  const std::uint64_t words = in.size() / part.width;
  for (; part.first < words; part.first += part.count) {
    part.count = std::min(chunk, words - part.first);
    DCR_ASSIGN(DeviceSlice slice, take());
    std::memcpy(slice.pinned(), in.data() + part.first * part.width,
                static_cast<std::size_t>(part.count * part.width));
    DCR_TRY(send_in(slice, part));
  }
  return {};
}

}  // namespace dcr
