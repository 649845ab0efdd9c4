// A refit of a tensor above 2^32 bytes, and one of very many tensors. Release builds only: it
// needs nine gigabytes of disk for its arenas.
//
// Weights and parameters lie in mapped arenas and a sparse file, so that what is measured as
// allocated is what owners and receivers take beside them.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "dcr/refit.h"
#include "layout/owner_plan.h"
#include "layout/receiver_plan.h"
#include "layout/reference_loader.h"
#include "receiver/host_memory.h"
#include "receiver/receiver.h"
#include "runtime/arena.h"
#include "source/host_source_memory.h"
#include "source/owner_group.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/temp_directory.h"
#include "tests/support/test_allocations.h"
#include "tests/support/test_checkpoint.h"
#include "tests/support/test_memory.h"

namespace dcr {
namespace {

constexpr std::uint64_t kRows = (std::uint64_t{1} << 21) + 3;
constexpr std::uint64_t kColumns = 1024;
constexpr std::uint64_t kWords = kRows * kColumns;
constexpr std::uint64_t kBytes = 2 * kWords;  // 2^32 and three rows
constexpr std::uint64_t kBlock = 4 * kMiB;

class Sink final : public PayloadSink {
 public:
  Status send(std::uint64_t, std::span<const std::uint8_t> bytes) override {
    payloads.emplace_back(bytes.begin(), bytes.end());
    return {};
  }
  std::vector<Bytes> payloads;
};

// One owner whose weights are a sparse file of zeros, one receiver that holds them in an arena.
class RefitLargeTest : public testing::Test {
 protected:
  void SetUp() override {
    file_ = posix_file_system().create(directory_.at("weights"), 0600).value();
    ASSERT_TRUE(file_->resize(kBytes).ok());
    weights_.add_file(*file_, 0, kBytes);
    catalogue_ = test_catalogue({{"w", Dtype::kBF16, {kRows, kColumns}, 0}});
  }

  void make_owner() {
    const OwnerPlan plan =
        OwnerPlan::make(catalogue_, parse_owner_layout(R"({"format": 0, "ranks": 1,
            "rules": [{"match": "w", "class": "fsdp"}]})")
                                        .value())
            .value();
    const OwnerInput input{0, plan.rank(catalogue_, 0).tasks, {}, {}, &weights_, nullptr};
    const std::vector<OwnerDeclaration> declared = {declare_owner(input).value()};
    owner_ = Owner::create(Geometry::make(catalogue_, declared).value(), input,
                           directory_.at("baseline"))
                 .value();
    options_.memory_bytes_max = 256 * kMiB;
    group_ = OwnerGroup::create({owner_.get()}, *executor_, options_).value();
  }

  void make_receiver() {
    const ReceiverPlan plan =
        ReceiverPlan::make(catalogue_, parse_receiver_layout(R"({"format": 0, "ranks": 1,
            "rules": [{"match": "w", "class": "vocabulary", "multiple": 64}]})")
                                           .value())
            .value();
    const ReceiverRank rank = plan.rank(catalogue_, 0).value();
    ASSERT_EQ(rank.storage_bytes.size(), 1U);
    ASSERT_EQ(rank.storage_bytes[0], kBytes + 61 * 2 * kColumns);
    parameter_ = Arena::mapped(directory_.at("parameter"), rank.storage_bytes[0]).value();
    parameters_.add(parameter_.bytes());
    loader_ = std::make_unique<ReferenceLoader>(catalogue_, rank, parameters_, 0);
    ReceiverOptions options;
    options.decoded_bytes_max = 64 * kMiB;
    options.owners.resize(1);
    for (auto& [tensor, box] : owner_->item_boxes()) options.owners[0].push_back({tensor, box});
    receiver_ = Receiver::create(catalogue_, *loader_, parameters_, *executor_, options).value();
  }

  // Words around every border that four bytes have, and at both ends.
  void train(std::uint16_t word) {
    for (const std::uint64_t at : borders()) {
      std::uint8_t bytes[2];
      store_little(bytes, word);
      ASSERT_TRUE(file_->write(2 * at, bytes).ok());
    }
  }
  static std::vector<std::uint64_t> borders() {
    std::vector<std::uint64_t> words = {0, 1, kColumns, kWords - 1, kWords - 2};
    for (const unsigned bits : {29U, 30U, 31U}) {
      for (const std::uint64_t near : {0U, 1U, 2U}) words.push_back((1ULL << bits) - 1 + near);
    }
    return words;
  }

  void refit(AttemptMode mode, std::uint64_t version, std::uint64_t changes) {
    Attempt attempt;
    attempt.attempt = version;
    attempt.candidate = version;
    attempt.base_version = version;
    attempt.target_version = version + 1;
    attempt.mode = mode;
    Sink sink;
    PayloadSink* const sinks[] = {&sink};
    const auto prepared = group_->prepare(attempt, sinks);
    ASSERT_TRUE(prepared.ok()) << prepared.status().message();
    EXPECT_EQ((*prepared)[0].changed_source_elements, changes);
    ASSERT_TRUE(
        receiver_->begin_attempt({attempt.run, version, version, version + 1, ApplyMode::kWrite})
            .ok());
    ASSERT_TRUE(receiver_->end_of_owner(0, sink.payloads.size()).ok());
    for (const Bytes& payload : sink.payloads) {
      ASSERT_EQ(receiver_->ingest(payload).value(), Ingested::kQueued);
      const auto applied = receiver_->apply();
      ASSERT_TRUE(applied.ok()) << applied.status().message();
    }
    const auto counts = receiver_->finish();
    ASSERT_TRUE(counts.ok()) << counts.status().message();
    EXPECT_EQ(counts->destinations, changes);
    ASSERT_TRUE(group_->commit(version + 1).ok());
  }

  // Every byte of the parameter is the file's, its padding zero.
  void expect_equal() const {
    Bytes block(kBlock);
    const ByteSpan found = parameter_.bytes();
    for (std::uint64_t at = 0; at < found.size(); at += kBlock) {
      const std::uint64_t size = std::min<std::uint64_t>(kBlock, found.size() - at);
      const std::uint64_t there = at < kBytes ? std::min(size, kBytes - at) : 0;
      std::fill(block.begin(), block.end(), std::uint8_t{0});
      ASSERT_TRUE(file_->read(at, MutableByteSpan(block).first(there)).ok());
      ASSERT_TRUE(std::equal(block.begin(), block.begin() + static_cast<std::ptrdiff_t>(size),
                             found.begin() + static_cast<std::ptrdiff_t>(at)))
          << at;
    }
  }

  TempDirectory directory_;
  std::unique_ptr<File> file_;
  HostSourceMemory weights_;
  Catalogue catalogue_;
  std::unique_ptr<Executor> executor_ = make_executor(2);
  OwnerOptions options_;
  std::unique_ptr<Owner> owner_;
  std::unique_ptr<OwnerGroup> group_;
  Arena parameter_;
  HostMemory parameters_{kBytes + 64 * kMiB};
  std::unique_ptr<ReferenceLoader> loader_;
  std::unique_ptr<Receiver> receiver_;
};

TEST_F(RefitLargeTest, ATensorAboveTheBordersOfFourBytes) {
  make_owner();
  if (HasFatalFailure()) return;
  EXPECT_LE(peak_allocation([this] { ASSERT_TRUE(group_->initialize(1).ok()); }),
            options_.memory_bytes_max);
  make_receiver();
  if (HasFatalFailure()) return;
  // The probe is as large as the tensor; nothing else grows with it.
  EXPECT_LE(peak_allocation([this] {
              const Status warmed = receiver_->prewarm();
              ASSERT_TRUE(warmed.ok()) << warmed.message();
            }),
            kBytes + 32 * kMiB);
  ASSERT_EQ(receiver_->classes()[0].path, TensorPath::kTraced) << receiver_->classes()[0].reason;
  EXPECT_EQ(parameters_.scratch_bytes(), 0U);
  const auto base = [this](std::uint32_t, std::uint64_t first, MutableByteSpan out) {
    return file_->read(2 * first, out);
  };
  const Status audited = receiver_->audit(base);
  ASSERT_TRUE(audited.ok()) << audited.message();
  train(0x8001);
  EXPECT_LE(peak_allocation([this] { refit(AttemptMode::kMixed, 1, borders().size()); }),
            options_.memory_bytes_max + 64 * kMiB);
  if (HasFatalFailure()) return;
  expect_equal();
  train(0x7fc0);
  refit(AttemptMode::kOverwrite, 2, borders().size());
  if (HasFatalFailure()) return;
  refit(AttemptMode::kMixed, 3, 0);
  if (HasFatalFailure()) return;
  expect_equal();
}

TEST(RefitManyTest, TwentyThousandTinyTensors) {
  Prng prng(5);
  TestCheckpoint before;
  before.directory = false;
  for (unsigned i = 0; i < 20'000; ++i) {
    before.tensors["model.layers." + std::to_string(i / 4) + ".part" + std::to_string(i % 4)] = {
        Dtype::kBF16, {1 + i % 5}, random_bytes(prng, 2 * (1 + i % 5)), 0};
  }
  TestCheckpoint after = before;
  std::uint64_t changed = 0;
  for (auto& [name, tensor] : after.tensors) {
    if (prng.below(3) != 0) continue;
    tensor.bytes[0] ^= 1;
    ++changed;
  }
  MemoryFileSystem disk;
  disk.put("old", before.files("old")["old"]);
  disk.put("new", after.files("new")["new"]);
  RefitOptions options;
  options.files = &disk;
  options.threads = 2;
  for (const char* owners : {"fsdp:4", "tp:2,dp:2"}) {
    options.owners.generate = owners;
    options.receivers.generate = "fused-tp:2";
    const Result<RefitResult> result = refit("old", "new", options);
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result->tensors, 20'000U);
    EXPECT_EQ(result->changed, changed);
    EXPECT_EQ(result->differing_bytes, 0U);
    EXPECT_EQ(result->paths, (std::map<std::string, std::uint64_t>{{"traced", 40'000}}));
  }
}

}  // namespace
}  // namespace dcr
