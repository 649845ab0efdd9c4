// The memories on a device do what those of the host do, word for word: on a device that does
// everything as late as it may, and on CUDA where there is one.
#include "device/device_memory.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <deque>

#include "base/prng.h"
#include "device/load_device.h"
#include "device/test_device.h"
#include "receiver/host_memory.h"
#include "simd/words.h"
#include "tensor/view.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

constexpr std::uint64_t kSmallStaging = kDeviceStagingBytesMin;

// A storage on the device, and its bytes on the host.
class DeviceStorage {
 public:
  DeviceStorage(Device& device, const Bytes& bytes) : device_(device) {
    const Result<void*> memory = device.allocate(bytes.size());
    const Result<void*> pinned = device.allocate_pinned(bytes.size());
    EXPECT_TRUE(memory.ok() && pinned.ok());
    memory_ = *memory;
    pinned_ = *pinned;
    size_ = bytes.size();
    std::memcpy(pinned_, bytes.data(), bytes.size());
    EXPECT_TRUE(device.copy_in(memory_, pinned_, size_).ok());
    EXPECT_TRUE(device.synchronize().ok());
  }
  ~DeviceStorage() {
    device_.release(memory_);
    device_.release_pinned(pinned_);
  }
  DeviceStorage(const DeviceStorage&) = delete;
  DeviceStorage& operator=(const DeviceStorage&) = delete;

  void* memory() const { return memory_; }
  Bytes bytes() {
    EXPECT_TRUE(device_.copy_out(pinned_, memory_, size_).ok());
    EXPECT_TRUE(device_.synchronize().ok());
    const auto* const begin = static_cast<const std::uint8_t*>(pinned_);
    return {begin, begin + size_};
  }

 private:
  Device& device_;
  void* memory_ = nullptr;
  void* pinned_ = nullptr;
  std::uint64_t size_ = 0;
};

std::unique_ptr<DeviceStaging> small_staging(Device& device) {
  auto staging = DeviceStaging::create(device, kSmallStaging);
  EXPECT_TRUE(staging.ok()) << staging.status().message();
  return std::move(staging).value();
}

Bytes random_bytes(Prng& random, std::uint64_t size) {
  Bytes bytes(size);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.below(4));
  return bytes;
}

// Windows of a grid of up to three dimensions, and the words that they take.
TargetChanges random_changes(Prng& random, std::uint64_t* words) {
  TargetChanges target;
  target.width = static_cast<std::uint8_t>(1U << random.below(4));
  target.encoding = static_cast<Encoding>(random.below(3));
  std::uint64_t stride = 1 + random.below(2);
  std::uint64_t last = 0;
  const std::uint64_t long_one = 1 + random.below(6);
  for (std::uint64_t i = random.below(4); i > 0; --i) {
    TargetChanges::Dimension dim;
    dim.size = 1 + random.below(i == long_one ? 3000 : 12);
    dim.begin = random.below(dim.size + 1);
    dim.end = dim.begin + random.below(dim.size - dim.begin + 1);
    dim.stride = stride;
    stride *= dim.end - dim.begin + random.below(3) + 1;
    if (dim.end > dim.begin) last += (dim.end - dim.begin - 1) * dim.stride;
    target.dims.insert(target.dims.begin(), dim);
  }
  target.first = random.below(20);
  target.offset = random.below(10);
  *words = target.offset + last + 1 + random.below(5);
  return target;
}

// Some of the grid's and a few after it.
std::vector<std::uint32_t> random_positions(Prng& random, const TargetChanges& target) {
  std::uint64_t grid = 5;
  for (const TargetChanges::Dimension& dim : target.dims) grid *= dim.size;
  std::vector<std::uint32_t> positions;
  const std::uint64_t one_in = 1 + random.below(5);
  for (std::uint32_t i = 0; i < std::min<std::uint64_t>(grid, 9000); ++i) {
    if (random.below(one_in) == 0) positions.push_back(i);
  }
  return positions;
}

// Strided, transposed and contiguous views alike, and the words that they take.
TensorView random_view(Prng& random, std::uint64_t* words) {
  constexpr Dtype kDtypes[] = {Dtype::kU8, Dtype::kBF16, Dtype::kF32, Dtype::kF64};
  TensorView view;
  view.dtype = kDtypes[random.below(4)];
  view.offset = random.below(20);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> dims;
  std::uint64_t stride = 1 + random.below(2) * random.below(3);
  std::uint64_t last = 0;
  for (std::uint64_t i = random.below(4); i > 0; --i) {
    const std::uint64_t size = random.below(8) == 0 ? 0 : 1 + random.below(60 / i);
    dims.emplace_back(size, stride);
    if (size > 0) last += (size - 1) * stride;
    stride *= std::max<std::uint64_t>(size, 1) + random.below(2) * random.below(3);
  }
  if (dims.size() > 1 && random.below(2) == 0) std::swap(dims.front(), dims.back());
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    view.sizes.push_back(dim->first);
    view.strides.push_back(dim->second);
  }
  *words = view.offset + last + 1 + random.below(5);
  return view;
}

void check_applications(Device& device, std::uint64_t cases) {
  for (std::uint64_t seed = 0; seed < cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng random(seed);
    std::uint64_t words = 0;
    TargetChanges target = random_changes(random, &words);
    const ApplyMode mode = random.below(3) == 0 ? ApplyMode::kVerify : ApplyMode::kWrite;
    if (mode == ApplyMode::kVerify) target.encoding = Encoding::kOverwrite;
    const std::vector<std::uint32_t> positions = random_positions(random, target);
    const Bytes values = random_bytes(random, positions.size() * target.width);
    Bytes wanted = random_bytes(random, words * target.width);
    DeviceStorage storage(device, wanted);
    HostMemory host(0);
    host.add(MutableByteSpan(wanted));
    ApplyCounts expected, counts;
    const Status on_host = host.apply(target, positions, values.data(), mode, &expected);
    {
      const auto staging = small_staging(device);
      DeviceTargetMemory memory(*staging);
      ASSERT_EQ(*memory.add(storage.memory(), wanted.size()), 0U);
      const Status status = memory.apply(target, positions, values.data(), mode, &counts);
      ASSERT_EQ(status.message(), on_host.message());
      ASSERT_TRUE(memory.synchronize().ok());
    }
    ASSERT_EQ(storage.bytes(), wanted);
    ASSERT_EQ(counts.words, expected.words);
    ASSERT_EQ(counts.different, expected.different);
  }
}

void check_views(Device& device, std::uint64_t cases) {
  for (std::uint64_t seed = 0; seed < cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng random(seed);
    std::uint64_t words = 0;
    const TensorView view = random_view(random, &words);
    const unsigned width = word_bytes(view.dtype);
    Bytes wanted = random_bytes(random, words * width);
    DeviceStorage storage(device, wanted);
    HostMemory host(0);
    host.add(MutableByteSpan(wanted));
    const Bytes in = random_bytes(random, view_words(view) * width);
    Bytes expected(in.size()), out(in.size());
    ASSERT_TRUE(host.read(view, expected).ok());
    {
      const auto staging = small_staging(device);
      DeviceTargetMemory memory(*staging);
      ASSERT_TRUE(memory.add(storage.memory(), wanted.size()).ok());
      ASSERT_TRUE(memory.read(view, out).ok());
      ASSERT_EQ(out, expected);
      ASSERT_TRUE(host.write(view, in).ok());
      ASSERT_TRUE(memory.write(view, in).ok());
    }
    ASSERT_EQ(storage.bytes(), wanted);
  }
}

// Several at once are what they are one after the other.
void check_batches(Device& device, std::uint64_t cases) {
  for (std::uint64_t seed = 0; seed < cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng random(seed);
    const auto staging = small_staging(device);
    DeviceTargetMemory memory(*staging, 0, 100);
    HostMemory host(0);
    std::vector<std::unique_ptr<DeviceStorage>> storages;
    std::deque<Bytes> wanted;
    std::vector<TargetChanges> targets(1 + random.below(40));
    std::deque<std::vector<std::uint32_t>> positions;
    std::deque<Bytes> values;
    const ApplyMode mode = random.below(3) == 0 ? ApplyMode::kVerify : ApplyMode::kWrite;
    std::vector<TargetApplication> here, there;
    for (TargetChanges& target : targets) {
      std::uint64_t words = 0;
      target = random_changes(random, &words);
      if (mode == ApplyMode::kVerify) target.encoding = Encoding::kOverwrite;
      wanted.push_back(random_bytes(random, words * target.width));
      storages.push_back(std::make_unique<DeviceStorage>(device, wanted.back()));
      ASSERT_TRUE(memory.add(storages.back()->memory(), wanted.back().size()).ok());
      target.storage = host.add(MutableByteSpan(wanted.back()));
      positions.push_back(random_positions(random, target));
      values.push_back(random_bytes(random, positions.back().size() * target.width));
      here.push_back({&target, positions.back(), values.back().data(), {}});
    }
    std::size_t failed = 0;
    ASSERT_TRUE(host.apply_all(here, mode, &failed).ok());
    ASSERT_EQ(failed, here.size());
    std::vector<TargetChanges> moved = targets;
    for (std::size_t i = 0; i < moved.size(); ++i) {
      moved[i].storage += 100;
      there.push_back({&moved[i], positions[i], values[i].data(), {7, 9}});
    }
    ASSERT_TRUE(memory.apply_all(there, mode, &failed).ok());
    ASSERT_TRUE(memory.synchronize().ok());
    ASSERT_EQ(failed, there.size());
    for (std::size_t i = 0; i < there.size(); ++i) {
      ASSERT_EQ(storages[i]->bytes(), wanted[i]);
      ASSERT_EQ(there[i].counts.words, here[i].counts.words + 7);
      ASSERT_EQ(there[i].counts.different, here[i].counts.different + 9);
    }
  }
}

TEST(DeviceMemoryTest, AppliesAsTheHostDoes) {
  LateDevice device;
  check_applications(device, campaign_cases(2000));
}

TEST(DeviceMemoryTest, AppliesSeveralAsTheHostDoes) {
  LateDevice device;
  check_batches(device, campaign_cases(100));
}

// What a bucket of many tensors takes: as many kernels and waits as its changes fill slices, not as
// it has targets.
TEST(DeviceMemoryTest, SeveralTakeOneKernelAndOneWait) {
  constexpr std::size_t kTargets = 500;
  constexpr std::uint64_t kWords = 8;
  LateDevice device;
  const auto staging = DeviceStaging::create(device, 16 * kMiB);
  ASSERT_TRUE(staging.ok());
  ASSERT_EQ((*staging)->slice_bytes(), kMiB);
  std::vector<std::uint16_t> words(kTargets * kWords);
  DeviceTargetMemory memory(**staging);
  const std::uint32_t positions[] = {1, 6};
  const std::uint16_t values[] = {0, 2};  // one less than what is added to zeros by xor
  std::vector<TargetChanges> targets(kTargets);
  std::vector<TargetApplication> applications;
  for (std::size_t i = 0; i < kTargets; ++i) {
    const auto id = memory.add(words.data() + i * kWords, kWords * sizeof(words[0]));
    ASSERT_TRUE(id.ok());
    targets[i].storage = *id;
    targets[i].width = sizeof(words[0]);
    targets[i].encoding = Encoding::kXor;
    targets[i].dims = {{kWords, 1, 0, kWords}};
    applications.push_back({&targets[i], positions, values, {}});
  }
  std::size_t failed = 0;
  const auto uses_of = [&](std::span<TargetApplication> some) {
    const LateDevice::Uses before = device.uses();
    EXPECT_TRUE(memory.apply_all(some, ApplyMode::kWrite, &failed).ok());
    LateDevice::Uses uses = device.uses();
    uses.operations -= before.operations;
    uses.copies_in -= before.copies_in;
    uses.copies_out -= before.copies_out;
    uses.kernels -= before.kernels;
    uses.waits -= before.waits;
    return uses;
  };
  // The first of all waits until the device is idle.
  EXPECT_EQ(uses_of(std::span(applications).first(1)), (LateDevice::Uses{6, 1, 1, 1, 2}));
  EXPECT_EQ(uses_of(std::span(applications).first(1)), (LateDevice::Uses{5, 1, 1, 1, 1}));
  EXPECT_EQ(words, std::vector<std::uint16_t>(words.size()));  // twice is not at all
  EXPECT_EQ(uses_of(applications), (LateDevice::Uses{5, 1, 1, 1, 1}));
  for (std::size_t i = 0; i < words.size(); ++i) {
    ASSERT_EQ(words[i], i % kWords == 1 ? 1 : i % kWords == 6 ? 3 : 0);
  }
  EXPECT_EQ(applications[0].counts.words, 6U);
  EXPECT_EQ(applications[kTargets - 1].counts.words, 2U);
  // What reaches nothing takes nothing.
  for (TargetChanges& target : targets) target.dims[0].end = 1;
  EXPECT_EQ(uses_of(applications), LateDevice::Uses());
  EXPECT_EQ(failed, kTargets);
}

// Whatever of several is wrong, it is said of which, and nothing is written.
TEST(DeviceMemoryTest, SeveralAreCheckedFirst) {
  LateDevice device;
  const auto staging = small_staging(device);
  DeviceTargetMemory memory(*staging);
  std::uint64_t words[2] = {};
  const auto id = memory.add(words, sizeof(words));
  ASSERT_TRUE(id.ok());
  const std::uint32_t position = 0;
  const std::uint64_t value = 5;
  TargetChanges targets[3];
  std::vector<TargetApplication> applications;
  for (TargetChanges& target : targets) {
    target.storage = *id;
    target.width = 8;
    applications.push_back({&target, {&position, 1}, &value, {}});
  }
  std::size_t failed = 0;
  const auto message = [&] {
    return memory.apply_all(applications, ApplyMode::kWrite, &failed).message();
  };
  targets[2].offset = 2;
  EXPECT_EQ(message(), "target of changes: a word past the end of storage 0 of 16 bytes");
  EXPECT_EQ(failed, 2U);
  targets[1].storage = 3;
  EXPECT_EQ(message(), "there is no storage 3");
  EXPECT_EQ(failed, 1U);
  EXPECT_EQ(words[0], 0U);
  targets[1].storage = *id;
  targets[2].offset = 1;
  device.fails_at = device.uses().operations + 2;
  EXPECT_EQ(message(), "the device has gone");
  EXPECT_EQ(failed, 3U);
}

TEST(DeviceMemoryTest, ReadsAndWritesAsTheHostDoes) {
  LateDevice device;
  check_views(device, campaign_cases(2000));
}

TEST(DeviceMemoryTest, RefusesWhatTheHostRefuses) {
  LateDevice device;
  DeviceStorage storage(device, Bytes(64));
  const auto staging = small_staging(device);
  DeviceTargetMemory memory(*staging);
  ASSERT_TRUE(memory.add(storage.memory(), 64).ok());
  HostMemory host(0);
  host.add(64);
  const std::uint32_t positions[] = {0, 31};
  const std::uint64_t values[] = {1, 2};
  const auto both = [&](const TargetChanges& target, ApplyMode mode) {
    ApplyCounts counts;
    const Status status = memory.apply(target, positions, values, mode, &counts);
    EXPECT_EQ(status.message(), host.apply(target, positions, values, mode, &counts).message());
    return status.code();
  };
  TargetChanges target;
  target.width = 2;
  target.dims = {{32, 1, 0, 32}};
  EXPECT_EQ(both(target, ApplyMode::kWrite), Code::kOk);
  target.offset = 1;  // one word past the end
  EXPECT_EQ(both(target, ApplyMode::kWrite), Code::kInvalidArgument);
  target = {.storage = 1, .width = 2, .dims = {{32, 1, 0, 32}}};
  EXPECT_EQ(both(target, ApplyMode::kWrite), Code::kNotFound);
  target = {.width = 2, .encoding = Encoding::kXor, .dims = {{32, 1, 0, 32}}};
  EXPECT_EQ(both(target, ApplyMode::kVerify), Code::kInvalidArgument);
  Bytes out(64);
  EXPECT_EQ(memory.read({0, Dtype::kU8, 1, {64}, {1}}, out).message(),
            "a view of storage 0 leaves it");
  EXPECT_EQ(memory.write({0, Dtype::kU8, 0, {63}, {1}}, out).message(),
            "a view of storage 0 has another size than its buffer");
  EXPECT_EQ(memory.add(static_cast<std::uint8_t*>(storage.memory()) + 2, 8).status().message(),
            "a storage on a device is not aligned to 8 bytes");
  EXPECT_EQ(DeviceStaging::create(device, kSmallStaging - 1).status().message(),
            "a staging buffer of 16383 bytes: at least 16384");
}

TEST(DeviceMemoryTest, ScratchIsZeroedBoundedAndGivenBack) {
  LateDevice device;
  const auto staging = small_staging(device);
  DeviceTargetMemory memory(*staging, 100);
  const std::uint64_t before = device.allocated_bytes();
  const auto scratch = memory.allocate(60);
  ASSERT_TRUE(scratch.ok());
  Bytes out(60, 1);
  ASSERT_TRUE(memory.read({*scratch, Dtype::kU8, 0, {60}, {1}}, out).ok());
  EXPECT_EQ(out, Bytes(60, 0));
  EXPECT_EQ(memory.allocate(41).status().message(),
            "scratch of 41 bytes beside the 60 in use is above the limit of 100");
  ASSERT_TRUE(memory.release(*scratch).ok());
  EXPECT_EQ(memory.release(*scratch).code(), Code::kNotFound);
  EXPECT_EQ(device.allocated_bytes(), before);
  // What is not released ends with the memory.
  EXPECT_TRUE(memory.allocate(100).ok());
}

// Whichever operation fails first, its error comes out, and nothing stays allocated.
TEST(DeviceMemoryTest, EveryOperationMayFail) {
  for (std::uint64_t fails_at = 0;; ++fails_at) {
    LateDevice device;
    Bytes bytes(8 * kKiB);  // whose changes take more slices than there are
    Bytes storage(bytes.size());
    device.fails_at = fails_at;
    const auto all = [&]() -> Status {
      DCR_ASSIGN(const auto staging, DeviceStaging::create(device, kSmallStaging));
      DeviceTargetMemory memory(*staging, 100);
      DCR_ASSIGN(const std::uint64_t id, memory.add(storage.data(), storage.size()));
      const TensorView view{id, Dtype::kU8, 0, {storage.size() / 2}, {2}};
      DCR_TRY(memory.read(view, MutableByteSpan(bytes).first(storage.size() / 2)));
      DCR_TRY(memory.write(view, ByteSpan(bytes).first(storage.size() / 2)));
      DCR_ASSIGN(const std::uint64_t scratch, memory.allocate(10));
      std::vector<std::uint32_t> positions(storage.size());
      for (std::uint32_t i = 0; i < positions.size(); ++i) positions[i] = i;
      TargetChanges target;
      target.storage = id;
      target.dims = {{storage.size(), 1, 0, storage.size()}};
      ApplyCounts counts;
      DCR_TRY(memory.apply(target, positions, bytes.data(), ApplyMode::kWrite, &counts));
      DCR_TRY(memory.release(scratch));
      return memory.synchronize();
    };
    const Status status = all();
    EXPECT_EQ(device.allocated_bytes(), 0U);
    if (status.ok()) {
      EXPECT_GT(fails_at, 200U);
      return;
    }
    ASSERT_EQ(status.message(), "the device has gone");
  }
}

TEST(DeviceMemoryTest, AStorageMayGo) {
  LateDevice device;
  const auto staging = small_staging(device);
  DeviceTargetMemory memory(*staging, 8);
  std::uint64_t word = 1;
  const auto id = memory.add(&word, sizeof(word));
  ASSERT_TRUE(id.ok());
  const std::uint64_t other = 2;
  Bytes in(sizeof(word));
  std::memcpy(in.data(), &other, sizeof(other));
  ASSERT_TRUE(memory.write({*id, Dtype::kU64, 0, {1}, {1}}, in).ok());
  ASSERT_TRUE(memory.remove(*id).ok());
  EXPECT_EQ(word, 2U);  // nothing is on its way to what is no longer there
  EXPECT_EQ(memory.remove(*id).message(), "there is no storage 0");
  const auto scratch = memory.allocate(8);
  ASSERT_TRUE(scratch.ok());
  EXPECT_EQ(memory.remove(*scratch).code(), Code::kNotFound);
}

// What others do with storages is done before and after what the memory does, not meanwhile.
TEST(DeviceMemoryTest, BeginsWhenTheDeviceIsIdle) {
  LateDevice device;
  const auto staging = small_staging(device);
  DeviceTargetMemory memory(*staging);
  std::uint64_t word = 1;
  const auto id = memory.add(&word, sizeof(word));
  ASSERT_TRUE(id.ok());
  const TensorView view{*id, Dtype::kU64, 0, {1}, {1}};
  const auto read = [&] {
    Bytes out(sizeof(word));
    EXPECT_TRUE(memory.read(view, out).ok());
    return load_word<std::uint64_t>(out.data(), 0);
  };
  device.others = [&] { word = 2; };
  EXPECT_EQ(read(), 2U);
  device.others = [&] { word = 3; };
  EXPECT_EQ(read(), 2U);  // nobody said so
  memory.settle();
  EXPECT_EQ(read(), 3U);
  const std::uint64_t other = 5;
  Bytes in(sizeof(word));
  std::memcpy(in.data(), &other, sizeof(other));
  ASSERT_TRUE(memory.write(view, in).ok());
  ASSERT_TRUE(memory.synchronize().ok());
  EXPECT_EQ(word, 5U);
  device.others = [&] { word = 6; };
  memory.settle();
  ASSERT_TRUE(memory.synchronize().ok());
  EXPECT_EQ(word, 6U);  // though the memory itself had nothing to do
  word = 5;
  device.others = [&] { word += 1; };
  const std::uint32_t position = 0;
  const std::uint64_t two = 3;  // zig-zagged and less one
  ApplyCounts counts;
  TargetChanges target;
  target.storage = *id;
  target.width = 8;
  target.encoding = Encoding::kAdd;
  ASSERT_TRUE(memory.apply(target, {&position, 1}, &two, ApplyMode::kWrite, &counts).ok());
  EXPECT_EQ(word, 8U);
}

TEST(LoadDeviceTest, SaysWhatIsMissing) {
  const auto none = load_device("/nowhere/libdcr_device.so", 0);
  EXPECT_EQ(none.status().code(), Code::kNotFound);
  EXPECT_NE(none.status().message().find("/nowhere/libdcr_device.so"), std::string::npos);
  EXPECT_NE(none.status().message().find("install DCR again"), std::string::npos);
  const auto other = load_device("libm.so.6", 0);
  EXPECT_EQ(other.status().message(), "libm.so.6 is no library of DCR's devices");
}

TEST(LoadDeviceTest, OpensWhatIsThere) {
  {
    const auto device = load_device(DCR_LATE_DEVICE_LIBRARY, 0);
    ASSERT_TRUE(device.ok()) << device.status().message();
    EXPECT_EQ((*device)->name(), "none");
    check_applications(**device, 20);
  }
  EXPECT_EQ(load_device(DCR_LATE_DEVICE_LIBRARY, 7).status().message(), "there is no device 7");
  EXPECT_EQ(load_device(DCR_LATE_DEVICE_LIBRARY, 1).status().code(), Code::kOk);
}

#ifdef DCR_DEVICE_LIBRARY
TEST(CudaDeviceTest, DoesAsTheHostDoes) {
  const auto device = load_device(DCR_DEVICE_LIBRARY, 0);
  if (!device.ok()) {
    // The library is there; it must be the driver or the device that is not.
    ASSERT_EQ(device.status().code(), Code::kUnavailable) << device.status().message();
    GTEST_SKIP() << "no CUDA device: " << device.status().message();
  }
  std::printf("on %s\n", (*device)->name().c_str());
  // What fails is not held against what comes next.
  EXPECT_EQ((*device)->allocate(std::uint64_t{1} << 60).status().code(), Code::kTooLarge);
  EXPECT_TRUE((*device)->follow(nullptr).ok());  // the default stream
  check_applications(**device, campaign_cases(2000));
  check_batches(**device, campaign_cases(100));
  check_views(**device, campaign_cases(2000));
}
#endif

}  // namespace
}  // namespace dcr
