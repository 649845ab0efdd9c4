// Slices of pinned memory: what is read is what was there, whoever else reads, writes and waits;
// and reads that were begun are on their way while something else is done.
#include "device/device_staging.h"

#include <gtest/gtest.h>

#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/prng.h"
#include "device/device_memory.h"
#include "device/test_device.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

std::unique_ptr<DeviceStaging> staging_of(Device& device,
                                          std::uint64_t bytes = kDeviceStagingBytesMin) {
  auto staging = DeviceStaging::create(device, bytes);
  EXPECT_TRUE(staging.ok()) << staging.status().message();
  return std::move(staging).value();
}

// Memory on a LateDevice is memory like any other, but only for those who wait.
Bytes some_bytes(std::uint64_t seed, std::uint64_t size) {
  Prng random(seed);
  Bytes bytes(size);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
  return bytes;
}

TensorView bytes_view(std::uint64_t offset, std::uint64_t count, std::uint64_t stride = 1) {
  return {0, Dtype::kU8, offset, {count}, {stride}};
}

// Of how many pieces of memory these are the slices: as many in each, one right after the other.
std::size_t pieces(const std::set<std::uint8_t*>& slices, std::uint64_t slice_bytes) {
  std::size_t found = 0;
  for (std::uint8_t* const slice : slices) {
    if (slices.contains(slice - slice_bytes)) continue;
    ++found;
    const std::uint64_t each = slices.size() / kDeviceStagingBuffers;
    EXPECT_TRUE(slices.contains(slice + (each - 1) * slice_bytes));
  }
  return found;
}

TEST(DeviceStagingTest, CutsItsBuffersIntoSlices) {
  LateDevice device;
  const auto staging = staging_of(device, 101 * kKiB);
  EXPECT_EQ(staging->slice_bytes(), 6400U);
  EXPECT_EQ(device.allocated_bytes(), 4 * 101 * kKiB);
  std::vector<DeviceSlice> slices;
  std::set<std::uint8_t*> pinned, twins;
  while (std::optional<DeviceSlice> slice = staging->try_take()) {
    pinned.insert(slice->pinned());
    twins.insert(slice->twin());
    slices.push_back(std::move(*slice));
  }
  EXPECT_EQ(slices.size(), kDeviceMarks);
  EXPECT_EQ(pieces(pinned, staging->slice_bytes()), kDeviceStagingBuffers);
  EXPECT_EQ(pieces(twins, staging->slice_bytes()), kDeviceStagingBuffers);
  std::uint8_t* const given_back = slices[5].pinned();
  slices.erase(slices.begin() + 5);
  const auto again = staging->take();
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->pinned(), given_back);
}

// A thread that finds no slice waits until one is given back.
TEST(DeviceStagingTest, WaitsForASlice) {
  LateDevice device;
  const auto staging = staging_of(device);
  std::vector<DeviceSlice> slices;
  while (std::optional<DeviceSlice> slice = staging->try_take()) {
    slices.push_back(std::move(*slice));
  }
  const Bytes storage = some_bytes(1, 3 * staging->slice_bytes());
  EXPECT_EQ(staging->begin_read(bytes_view(0, 10), storage.data()), nullptr);
  Bytes out(storage.size());
  std::thread reader(
      [&] { EXPECT_TRUE(staging->read(bytes_view(0, storage.size()), storage.data(), out).ok()); });
  slices.clear();
  reader.join();
  EXPECT_EQ(out, storage);
}

TEST(DeviceStagingTest, AReadThatWasBegunIsOnItsWay) {
  LateDevice device;
  const auto staging = staging_of(device);
  const Bytes storage = some_bytes(2, 100);
  for (const std::uint64_t stride : {std::uint64_t{1}, std::uint64_t{3}}) {
    const TensorView view = bytes_view(1, 30, stride);
    Bytes expected;
    for (std::size_t i = 0; i < 30; ++i) expected.push_back(storage[1 + i * stride]);
    auto begun = staging->begin_read(view, storage.data());
    ASSERT_NE(begun, nullptr);
    EXPECT_EQ(device.on_their_way(), stride == 1 ? 1U : 2U);
    Bytes short_out(29);
    EXPECT_EQ(begun->finish(short_out).message(), "a view has another size than its buffer");
    Bytes out(30);
    const std::uint64_t waits = device.uses().waits;
    ASSERT_TRUE(begun->finish(out).ok());
    EXPECT_EQ(device.uses().waits, waits + 1);
    EXPECT_EQ(out, expected);
    // One that nobody takes reads nothing any more when it has ended.
    begun = staging->begin_read(view, storage.data());
    EXPECT_GT(device.on_their_way(), 0U);
    begun.reset();
    EXPECT_EQ(device.on_their_way(), 0U);
  }
  EXPECT_EQ(staging->begin_read(bytes_view(0, 0), storage.data()), nullptr);
  const Bytes large(staging->slice_bytes() + 1);
  EXPECT_NE(staging->begin_read(bytes_view(0, large.size() - 1), large.data()), nullptr);
  EXPECT_EQ(staging->begin_read(bytes_view(0, large.size()), large.data()), nullptr);
  device.fails_at = device.uses().operations;
  EXPECT_EQ(staging->begin_read(bytes_view(0, 1), storage.data()), nullptr);
}

// What is larger than a slice: one is on its way while the one before is taken out.
TEST(DeviceStagingTest, ALargeReadKeepsTheDeviceBusy) {
  LateDevice device;
  const auto staging = staging_of(device);
  const Bytes storage = some_bytes(3, 10 * staging->slice_bytes());
  Bytes out(storage.size());
  ASSERT_TRUE(staging->read(bytes_view(0, storage.size()), storage.data(), out).ok());
  EXPECT_EQ(out, storage);
  const LateDevice::Uses uses = device.uses();
  EXPECT_EQ(uses.copies_out, 10U);
  EXPECT_EQ(uses.waits, 10U);
  // The same where no second slice is free.
  std::vector<DeviceSlice> slices;
  while (std::optional<DeviceSlice> slice = staging->try_take()) {
    slices.push_back(std::move(*slice));
  }
  slices.pop_back();
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  ASSERT_TRUE(staging->read(bytes_view(0, storage.size()), storage.data(), out).ok());
  EXPECT_EQ(out, storage);
}

// Threads that read and change storages of their own, all through few slices, and one that has the
// device follow a stream meanwhile.
TEST(DeviceStagingTest, ThreadsShareTheSlices) {
  constexpr std::size_t kThreads = 6;
  LateDevice device;
  const auto staging = staging_of(device);
  DeviceTargetMemory memory(*staging);
  const std::uint64_t size = 3 * staging->slice_bytes() + 40;
  std::vector<Bytes> storages, wanted;
  std::vector<std::uint64_t> ids;
  for (std::size_t i = 0; i < kThreads; ++i) {
    storages.push_back(some_bytes(i, size));
    const auto id = memory.add(storages.back().data(), size);
    ASSERT_TRUE(id.ok());
    ids.push_back(*id);
  }
  wanted = storages;
  const auto work = [&](std::size_t thread) {
    Prng random(thread);
    Bytes& bytes = wanted[thread];
    std::vector<std::uint32_t> every(size);
    for (std::uint32_t i = 0; i < size; ++i) every[i] = i;
    TargetChanges target;
    target.storage = ids[thread];
    target.dims = {{size, 1, 0, size}};
    for (std::uint64_t round = 0; round < campaign_cases(400); ++round) {
      const std::uint64_t count = 1 + random.below(round % 2 == 0 ? 200 : size);
      const std::uint64_t offset = random.below(size - count + 1);
      TensorView view = bytes_view(offset, count);
      auto begun = staging->begin_read(view, storages[thread].data());
      const ByteSpan expected = ByteSpan(bytes).subspan(offset, count);
      Bytes out(count);
      if (random.below(4) == 0) begun.reset();
      const Status read =
          begun ? begun->finish(out) : staging->read(view, storages[thread].data(), out);
      ASSERT_TRUE(read.ok()) << read.message();
      ASSERT_TRUE(std::equal(out.begin(), out.end(), expected.begin()));
      begun.reset();
      const Bytes in = some_bytes(round, count);
      ApplyCounts counts;
      view.storage = ids[thread];
      const auto positions = std::span(every).subspan(offset, count);
      const Status changed =
          round % 3 == 0 ? memory.write(view, in)
                         : memory.apply(target, positions, in.data(), ApplyMode::kWrite, &counts);
      ASSERT_TRUE(changed.ok()) << changed.message();
      ASSERT_EQ(counts.words, round % 3 == 0 ? 0 : count);
      std::copy(in.begin(), in.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset));
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  for (std::uint64_t i = 0; i < campaign_cases(400); ++i) {
    const std::lock_guard<std::mutex> lock(staging->turns());
    EXPECT_TRUE(device.follow(nullptr).ok());
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(memory.synchronize().ok());
  EXPECT_EQ(storages, wanted);
}

}  // namespace
}  // namespace dcr
