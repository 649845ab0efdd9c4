// Weights on a device through the public header: random refits by a loader that uses the device
// itself equal a dense load, and owners read what a stream has written. How the memories work:
// src/device.
#include "dcr/device.h"

#include <gtest/gtest.h>

#include <map>

#include "api/device_state.h"
#include "api/test_receiver.h"
#include "device/test_device.h"
#include "receiver/test_refit.h"

namespace dcr {
namespace {

constexpr std::uint64_t kSmallStagingBytes = kDeviceStagingBytesMin;
constexpr std::uint64_t kLargeStagingBytes = 4 * kMiB;  // a slice has room for hundreds of targets

std::shared_ptr<StagedDevice> late_device(std::uint64_t staging_bytes = kSmallStagingBytes) {
  return StagedDevice::State::open(std::make_unique<LateDevice>(), staging_bytes).value();
}

LateDevice::Uses uses_of(StagedDevice& device) {
  return static_cast<const LateDevice&>(*device.state().device).uses();
}

DeviceSpan span_of(const void* memory, std::uint64_t bytes) {
  return {reinterpret_cast<std::uintptr_t>(memory), bytes};
}

// A loader whose parameters lie on the device. It reads and writes them at once, as one that has
// the device to itself may, so whatever the core has left on its way there shows.
class LoaderOnDevice final : public Loader {
 public:
  LoaderOnDevice(TestLoader& loader, DeviceTargets& targets) : loader_(loader), targets_(targets) {
    for (const LoaderTarget& target : loader.all_targets) {
      const std::uint64_t storage = target.view.storage;
      const MutableByteSpan bytes = loader.memory().bytes(storage);
      if (!there_.contains(storage)) {
        // Not all of it need lie on the device.
        there_[storage] = there_.size() % 4 == 3
                              ? targets.add_host(bytes)
                              : targets.add_device(span_of(bytes.data(), bytes.size())).value();
      }
    }
  }

  std::vector<LoaderTarget> targets() override {
    std::vector<LoaderTarget> all = loader_.all_targets;
    for (LoaderTarget& target : all) target.view.storage = there_.at(target.view.storage);
    return all;
  }

  Result<LoadReport> load(std::string_view name, const TensorView& value,
                          LoaderHook& hook) override {
    DCR_ASSIGN(const MutableByteSpan bytes, targets_.find_host(value.storage));
    TensorView given = value;
    given.storage = loader_.memory().add(bytes);
    there_[given.storage] = value.storage;
    Translated translated(*this, hook);
    Result<LoadReport> report = loader_.load(name, given, translated);
    there_.erase(given.storage);
    DCR_TRY(loader_.memory().remove(given.storage));
    targets_.settle();
    return report;
  }

 private:
  // Temporaries lie on the device, too.
  class Translated final : public LoaderHook {
   public:
    Translated(LoaderOnDevice& loader, LoaderHook& hook) : loader_(loader), hook_(hook) {}

    Result<LoaderVerdict> on_event(const LoaderEvent& event) override {
      LoaderEvent there = event;
      there.destination.storage = loader_.there_.at(event.destination.storage);
      loader_.targets_.settle();
      if (!event.source) return hook_.on_event(there);
      const auto known = loader_.there_.find(event.source->storage);
      if (known != loader_.there_.end()) {
        there.source->storage = known->second;
        return hook_.on_event(there);
      }
      const MutableByteSpan bytes = loader_.loader_.memory().bytes(event.source->storage);
      DCR_ASSIGN(there.source->storage,
                 loader_.targets_.add_device(span_of(bytes.data(), bytes.size())));
      Result<LoaderVerdict> verdict = hook_.on_event(there);
      DCR_TRY(loader_.targets_.remove(there.source->storage));
      return verdict;
    }

   private:
    LoaderOnDevice& loader_;
    LoaderHook& hook_;
  };

  TestLoader& loader_;
  DeviceTargets& targets_;
  std::map<std::uint64_t, std::uint64_t> there_;
};

TEST(DeviceTargetsTest, RefitsEqualDenseLoads) {
  std::uint64_t plain_kernels = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    TestRefit refit(seed);
    TestRank dense, rank;
    refit.add_loads(&dense);
    refit.add_loads(&rank);
    ASSERT_TRUE(load_dense(dense.loader, refit.catalogue, refit.new_words).ok());
    ASSERT_TRUE(load_dense(rank.loader, refit.catalogue, refit.old_words).ok());
    const bool large = seed % 4 < 2;
    const auto device = late_device(large ? kLargeStagingBytes : kSmallStagingBytes);
    const auto targets = DeviceTargets::create(device, std::uint64_t{1} << 26);
    LoaderOnDevice loader(rank.loader, *targets);
    EmbeddedReceiverOptions options;
    options.owners = public_boxes(refit);
    options.threads = seed % 2 == 0 ? 1 : 3;
    options.post_apply_checks = seed % 3 == 0;
    auto made = EmbeddedReceiver::create(refit.catalogue.tensors(), loader, *targets, options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EmbeddedReceiver& receiver = **made;
    const Status prewarmed = receiver.prewarm();
    ASSERT_TRUE(prewarmed.ok()) << prewarmed.message();
    ASSERT_TRUE(receiver.audit(read_from(refit.old_words, refit.catalogue)).ok());
    const AttemptHeader header{{1, 2, 3}, 7, 4, 5, ApplyMode::kWrite};
    ASSERT_TRUE(receiver.begin_attempt({header.run, 7, 4, 5}).ok());
    for (const SentPayload& payload : refit.send(header, receiver.classes(), false)) {
      ASSERT_TRUE(receiver.ingest(payload.bytes).ok());
    }
    for (std::uint32_t owner = 0; owner < refit.owners(); ++owner) {
      ASSERT_TRUE(receiver.end_of_owner(owner, refit.payloads(owner)).ok());
    }
    const LateDevice::Uses before = uses_of(*device);
    const auto applied = receiver.apply();
    ASSERT_TRUE(applied.ok());
    const std::uint64_t kernels = uses_of(*device).kernels - before.kernels;
    const auto is_plain = [](const TensorClass& one) {
      return one.path == TensorPath::kTraced || one.path == TensorPath::kSkip;
    };
    const auto classes = receiver.classes();
    if (large && options.threads == 1 && !options.post_apply_checks &&
        std::all_of(classes.begin(), classes.end(), is_plain)) {
      // One for all targets of a payload, or none.
      EXPECT_LE(kernels, *applied);
      plain_kernels += kernels;
    }
    ASSERT_TRUE(receiver.finish().ok());
    EXPECT_EQ(rank.parameters(), dense.parameters());
    ASSERT_TRUE(receiver.audit(read_from(refit.new_words, refit.catalogue)).ok());
  }
  EXPECT_GT(plain_kernels, 5U);
}

// Those in host memory and those on the device in one call, each with its counts and its error.
TEST(DeviceTargetsTest, AppliesSeveralWhereverTheyAre) {
  const auto device = late_device(kLargeStagingBytes);
  const auto targets = DeviceTargets::create(device, 0);
  alignas(8) std::uint8_t words[4][8] = {};
  const std::uint64_t ids[] = {
      targets->add_device(span_of(words[0], 8)).value(), targets->add_host(words[1]),
      targets->add_device(span_of(words[2], 8)).value(), targets->add_host(words[3])};
  TargetChanges changes[4];
  const std::uint32_t positions[] = {0, 2, 5};
  const std::uint8_t values[] = {7, 8, 9};
  std::vector<TargetApplication> all;
  for (std::size_t i = 0; i < 4; ++i) {
    changes[i].storage = ids[i];
    changes[i].dims = {{8, 1, 0, 3 + i}};
    all.push_back({&changes[i], positions, values, {}});
  }
  std::size_t failed = 0;
  const std::uint64_t kernels = uses_of(*device).kernels;
  ASSERT_TRUE(targets->apply_all(all, ApplyMode::kWrite, &failed).ok());
  EXPECT_EQ(failed, 4U);
  EXPECT_EQ(uses_of(*device).kernels, kernels + 1);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(all[i].counts.words, i == 3 ? 3U : 2U) << i;
    EXPECT_EQ(words[i][2], 8) << i;
    EXPECT_EQ(words[i][5], i == 3 ? 9 : 0) << i;
  }
  const auto failing = [&](std::size_t which, std::uint64_t storage) {
    changes[which].storage = storage;
    EXPECT_EQ(targets->apply_all(all, ApplyMode::kWrite, &failed).code(), Code::kNotFound);
    changes[which].storage = ids[which];
    return failed;
  };
  EXPECT_EQ(failing(2, ids[2] + 100), 2U);
  EXPECT_EQ(failing(3, ids[3] + 100), 3U);
  EXPECT_EQ(failing(0, ids[2] + 100), 0U);
}

TEST(DeviceTargetsTest, NamesWhatIsMissing) {
  const auto targets = DeviceTargets::create(late_device(), 100);
  alignas(8) std::uint8_t words[16] = {};
  const std::uint64_t host = targets->add_host(words);
  const auto device = targets->add_device(span_of(words, sizeof(words)));
  ASSERT_TRUE(device.ok());
  EXPECT_NE(host, *device);
  EXPECT_EQ(*targets->storage_bytes(host), 16U);
  EXPECT_EQ(*targets->storage_bytes(*device), 16U);
  EXPECT_EQ(targets->find_host(host)->data(), words);
  EXPECT_EQ(targets->find_host(*device).status().code(), Code::kNotFound);
  EXPECT_EQ(targets->add_device(span_of(words + 4, 4)).status().code(), Code::kInvalidArgument);
  ASSERT_TRUE(targets->remove(*device).ok());
  EXPECT_EQ(targets->storage_bytes(*device).status().code(), Code::kNotFound);
  EXPECT_EQ(targets->remove(*device).code(), Code::kNotFound);
  const auto scratch = targets->allocate(60);
  ASSERT_TRUE(scratch.ok());
  EXPECT_EQ(targets->allocate(60).status().code(), Code::kTooLarge);
  EXPECT_TRUE(targets->find_host(*scratch).ok());
  EXPECT_TRUE(targets->release(*scratch).ok());
}

std::uint16_t stepped[3] = {1, 2, 3};

TEST(DeviceStoragesTest, ReadsWhatTheStreamWasGiven) {
  const auto device = late_device();
  const std::uint16_t host[3] = {7, 8, 9};
  const auto bytes_of = [](const std::uint16_t* words) {
    return reinterpret_cast<const std::uint8_t*>(words);
  };
  DeviceStorages storages(2);
  storages.set_host(0, {bytes_of(host), sizeof(host)});
  storages.set_device(1, device, span_of(stepped, sizeof(stepped)));
  const auto read = [&](std::uint64_t storage, std::uint64_t stride) {
    std::uint16_t out[2] = {};
    const Status status = storages.read({storage, Dtype::kBF16, 0, {2}, {stride}},
                                        {reinterpret_cast<std::uint8_t*>(out), sizeof(out)});
    EXPECT_TRUE(status.ok()) << status.message();
    return std::pair(out[0], out[1]);
  };
  EXPECT_EQ(read(0, 2), (std::pair<std::uint16_t, std::uint16_t>(7, 9)));
  EXPECT_EQ(read(1, 2), (std::pair<std::uint16_t, std::uint16_t>(1, 3)));
  const LateStream step = [] { stepped[0] = 4; };
  ASSERT_TRUE(device->follow(reinterpret_cast<void*>(step)).ok());
  EXPECT_EQ(read(1, 1), (std::pair<std::uint16_t, std::uint16_t>(4, 2)));
  // To where it was offloaded, one element on, and away.
  storages.set_host(1, {bytes_of(host), sizeof(host)});
  EXPECT_EQ(read(1, 1), (std::pair<std::uint16_t, std::uint16_t>(7, 8)));
  storages.set_device(0, device, span_of(stepped + 1, 4));
  EXPECT_EQ(read(0, 1), (std::pair<std::uint16_t, std::uint16_t>(2, 3)));
  std::uint8_t out[4];
  EXPECT_EQ(storages.read({0, Dtype::kU8, 1, {4}, {1}}, out).message(),
            "a view of storage 0 leaves it");
  storages.set_device(0, device, span_of(bytes_of(stepped) + 1, 4));
  EXPECT_EQ(storages.read({0, Dtype::kBF16, 0, {2}, {1}}, out).message(),
            "storage 0 on a device is not aligned to its elements");
  EXPECT_EQ(storages.begin_read({0, Dtype::kBF16, 0, {2}, {1}}), nullptr);
  storages.clear();
  EXPECT_EQ(storages.read({1, Dtype::kU8, 0, {4}, {1}}, out).code(), Code::kInvalidArgument);
}

// What is begun after follow() comes after what the stream was given; what cannot be begun says so.
TEST(DeviceStoragesTest, BeginsAfterWhatTheStreamWasGiven) {
  const auto device = late_device();
  std::uint8_t host[4] = {1, 2, 3, 4};
  DeviceStorages storages(2);
  storages.set_host(0, host);
  storages.set_device(1, device, span_of(stepped, sizeof(stepped)));
  EXPECT_EQ(storages.begin_read({0, Dtype::kU8, 0, {4}, {1}}), nullptr);
  EXPECT_EQ(storages.begin_read({2, Dtype::kU8, 0, {4}, {1}}), nullptr);
  EXPECT_EQ(storages.begin_read({1, Dtype::kU8, 3, {4}, {1}}), nullptr);
  stepped[1] = 20;
  const LateStream step = [] { stepped[1] = 21; };
  ASSERT_TRUE(device->follow(reinterpret_cast<void*>(step)).ok());
  const auto begun = storages.begin_read({1, Dtype::kBF16, 1, {2}, {1}});
  ASSERT_NE(begun, nullptr);
  EXPECT_EQ(stepped[1], 20);  // nothing waits
  std::uint16_t out[2] = {};
  ASSERT_TRUE(begun->finish({reinterpret_cast<std::uint8_t*>(out), sizeof(out)}).ok());
  EXPECT_EQ(out[0], 21);
  EXPECT_EQ(out[1], 3);
}

// Owners read ahead in blocks; what they send is what they send of host memory.
TEST(DeviceStoragesTest, OwnersSendTheSame) {
  constexpr std::uint64_t kFlat = 700'000, kLines = 700, kWords = 500, kLine = 1'001;
  RankDeclaration declaration{0, 1, {}, {}};
  declaration.tensors = {{"columns", Dtype::kBF16, {kLines, kWords}, 0},
                         {"flat", Dtype::kBF16, {kFlat}, 0}};
  declaration.tasks = {{"columns",
                        Dtype::kBF16,
                        {kLines, kWords},
                        {kLine, 2},
                        {{0, {0, 0, {{kLines, kWords, kWords}, {kWords, 1, 1}}}}}},
                       {"flat", Dtype::kBF16, {kFlat}, {1}, {{1, {0, 0, {{kFlat, 1, 1}}}}}}};
  const std::vector<std::uint8_t> encoded = encode_declaration(declaration);
  const std::vector<std::span<const std::uint8_t>> all = {encoded};
  std::vector<std::uint16_t> weights[2] = {std::vector<std::uint16_t>(kLines * kLine),
                                           std::vector<std::uint16_t>(kFlat)};
  Prng random(1);
  for (auto& words : weights) {
    for (std::uint16_t& word : words) word = static_cast<std::uint16_t>(random.next());
  }
  const auto device = late_device(kLargeStagingBytes);
  DeviceStorages there(2);
  HostStorages here(2);
  for (std::size_t i = 0; i < 2; ++i) {
    const std::uint64_t bytes = weights[i].size() * 2;
    there.set_device(i, device, span_of(weights[i].data(), bytes));
    here.set(i, {reinterpret_cast<const std::uint8_t*>(weights[i].data()), bytes});
  }
  struct Sink final : PayloadSink {
    Status send(std::uint64_t /*number*/, std::span<const std::uint8_t> bytes) override {
      sent.emplace_back(bytes.begin(), bytes.end());
      return {};
    }
    std::vector<std::vector<std::uint8_t>> sent;
  };
  EmbeddedOwnerOptions options;
  options.threads = 1;
  const auto on_host = EmbeddedOwner::create(all, 0, here, options);
  options.threads = 3;
  const auto on_device = EmbeddedOwner::create(all, 0, there, options);
  ASSERT_TRUE(on_host.ok() && on_device.ok());
  for (std::uint64_t version = 1; version <= 3; ++version) {
    OwnerAttempt attempt;
    attempt.attempt = attempt.candidate = attempt.target_version = version;
    attempt.base_version = version - 1;
    Sink expected, found;
    ASSERT_TRUE((*on_host)->prepare(attempt, expected).ok());
    ASSERT_TRUE((*on_device)->prepare(attempt, found).ok());
    EXPECT_FALSE(found.sent.empty());
    EXPECT_TRUE(found.sent == expected.sent);
    ASSERT_TRUE((*on_host)->commit(version).ok());
    ASSERT_TRUE((*on_device)->commit(version).ok());
    for (auto& words : weights) {
      for (std::size_t i = random.below(97); i < words.size(); i += 97) words[i] ^= 5;
    }
  }
}

TEST(StagedDeviceTest, OpensOrSaysWhyNot) {
  const auto device = StagedDevice::open(DCR_LATE_DEVICE_LIBRARY, 1);
  ASSERT_TRUE(device.ok()) << device.status().message();
  EXPECT_EQ((*device)->name(), "none");
  EXPECT_EQ((*device)->staging_bytes(), 64U << 20);
  const auto none = StagedDevice::open("/nowhere/libdcr_device.so", 0);
  EXPECT_EQ(none.status().code(), Code::kNotFound);
  EXPECT_EQ(none.status().message().rfind("device 0: /nowhere/libdcr_device.so", 0), 0U)
      << none.status().message();
  EXPECT_EQ(StagedDevice::open(DCR_LATE_DEVICE_LIBRARY, 2).status().message(),
            "device 2: there is no device 2");
  EXPECT_EQ(StagedDevice::open(DCR_LATE_DEVICE_LIBRARY, 0, 100).status().message(),
            "device 0: a staging buffer of 100 bytes: at least 16384");
}

}  // namespace
}  // namespace dcr
