// What goes wrong, and what owners of one process promise besides exact payloads: frozen
// candidates, failed attempts, memory, many small tensors.
#include "source/owner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "source/test_owner_refit.h"
#include "tests/support/temp_directory.h"

namespace dcr {
namespace {

Attempt attempt_from(std::uint64_t candidate, std::uint64_t base, AttemptMode mode) {
  return attempt_of(1 + candidate * 10 + base, candidate, base, mode);
}

// Weights that come from far: each block can be begun while the one before is looked at. Says what
// was done.
class FarMemory final : public SourceMemory {
 public:
  explicit FarMemory(SourceMemory& memory) : memory_(memory) {}

  std::string done;
  bool refuses = false;       // to begin
  std::size_t finishes = 99;  // that succeed

  Status read(const TensorView& view, std::span<std::uint8_t> out) override {
    done += "r";
    EXPECT_EQ(open_, 0U);
    return memory_.read(view, out);
  }
  std::unique_ptr<PendingRead> begin_read(const TensorView& view) override {
    EXPECT_EQ(open_, 0U);
    if (refuses) return nullptr;
    done += "b";
    return std::make_unique<Read>(*this, view);
  }
  std::size_t open() const { return open_; }

 private:
  class Read final : public PendingRead {
   public:
    Read(FarMemory& memory, TensorView view) : of_(memory), view_(std::move(view)) { ++of_.open_; }
    ~Read() override { --of_.open_; }
    Status finish(std::span<std::uint8_t> out) override {
      of_.done += "f";
      if (of_.finishes-- == 0) return {Code::kIo, "it went away"};
      return of_.memory_.read(view_, out);
    }

   private:
    FarMemory& of_;
    const TensorView view_;
  };

  SourceMemory& memory_;
  std::size_t open_ = 0;
};

// Two ranks; "a" on rank 0 and "b" on rank 1 are projected, "made" is converted from the tracked
// source "s" of rank 1: each byte of it twice.
class OwnerTest : public testing::Test {
 protected:
  void make(OwnerOptions options = {}, const std::string& arena = {}) {
    refit_ = std::make_unique<TestOwnerRefit>(2);
    refit_->set_catalogue({{"a", Dtype::kBF16, {100}, 0},
                           {"b", Dtype::kBF16, {100}, 0},
                           {"made", Dtype::kU8, {20}, 0}});
    const Box all = {0, 0, {{100, 1, 1}}};
    refit_->add_task("task.a", {0}, Bytes(200), {0, Dtype::kBF16, 0, {100}, {1}}, {{0, all}});
    refit_->add_task("task.b", {1}, Bytes(200), {0, Dtype::kBF16, 0, {100}, {1}}, {{1, all}});
    refit_->add_tracked("s", {1}, Bytes(10), Dtype::kU8);
    for (std::uint32_t r = 0; r < 2; ++r) {
      TestConverter* const converter = refit_->add_converter(r);
      converter->declaration = {"double", {"s"}, false, false, {"made"}, {}};
      converter->body = [this](std::uint64_t, std::uint64_t first, std::uint64_t count,
                               std::span<std::uint8_t> out) {
        for (std::uint64_t i = 0; i < count; ++i) out[i] = bytes_of("s")[(first + i) % 10];
        return Status();
      };
    }
    refit_->all_ranks[1].converters[0]->declaration.parts = {{"made", 0, {20}, {1}}};
    const Status status = refit_->start(1, std::move(options), arena);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(refit_->group->initialize(0).ok());
    resident_ = refit_->dense();
    made_owner_ = refit_->geometry->residual_owner(2);
  }

  Bytes& bytes_of(const std::string& name) {
    TestOwnerRank& rank = refit_->all_ranks[name == "task.a" ? 0 : 1];
    return rank.storages[name == "s" ? 1 : 0];
  }

  Status prepare(const Attempt& attempt) {
    Result<std::vector<PrepareResult>> made = refit_->prepare(attempt);
    if (made.ok()) results_ = *made;
    return made.status();
  }

  // The payloads that were made last bring a receiver at the version before to the weights of now.
  void expect_exact() {
    refit_->apply(&resident_);
    EXPECT_TRUE(resident_ == refit_->dense());
  }

  std::unique_ptr<TestOwnerRefit> refit_;
  Tensors resident_;
  std::vector<PrepareResult> results_;
  std::uint32_t made_owner_ = 0;
};

TEST_F(OwnerTest, SizesAndResults) {
  make();
  const OwnerSizes& first = refit_->owners[0]->sizes();
  EXPECT_EQ(first.source_elements, 100u);
  EXPECT_EQ(refit_->owners[1]->sizes().source_elements, 110u);
  EXPECT_EQ(first.projected_bytes, 200u);
  EXPECT_EQ(refit_->owners[1]->sizes().tracked_bytes, 10u);
  EXPECT_EQ(refit_->owners[made_owner_]->sizes().residual_bytes, 20u);
  EXPECT_EQ(refit_->owners[0]->item_boxes()[0],
            (std::pair<std::uint32_t, ItemBox>(0, ItemBox::range(0, 100))));
  bytes_of("task.a")[4] = 1;
  bytes_of("s")[3] = 9;
  ASSERT_TRUE(prepare(attempt_from(1, 0, AttemptMode::kMixed)).ok());
  EXPECT_EQ(results_[0].changed_source_elements, 1u);
  EXPECT_EQ(results_[1].changed_source_elements, 1u);  // of what only the converter reads
  EXPECT_EQ(results_[made_owner_].changed_residual_words, 2u);
  EXPECT_EQ(results_[made_owner_].converted_bytes, 20u);
  expect_exact();
}

TEST_F(OwnerTest, WithoutAChangeNothingIsSentOrConverted) {
  make();
  const std::uint64_t calls = refit_->all_ranks[1].converters[0]->calls;
  ASSERT_TRUE(prepare(attempt_from(1, 0, AttemptMode::kMixed)).ok());
  for (const TestSink& sink : refit_->sinks) EXPECT_TRUE(sink.payloads.empty());
  EXPECT_EQ(refit_->all_ranks[1].converters[0]->calls, calls);
  EXPECT_TRUE(refit_->group->commit(1).ok());
  EXPECT_EQ(refit_->owners[0]->baseline_version(), 1u);
}

// Blocks of a piece are begun one ahead, in every phase and mode, with a cast and without; each
// piece's first one is read.
TEST(OwnerReadsAhead, BlocksOfAPiece) {
  constexpr std::uint64_t kWords = 300'000;  // five blocks of 65,536, in one piece
  TestOwnerRefit refit(1);
  refit.set_catalogue({{"cast", Dtype::kBF16, {kWords}, 0}, {"plain", Dtype::kF32, {kWords}, 0}});
  const Box all = {0, 0, {{kWords, 1, 1}}};
  Prng random(3);
  Bytes floats;
  for (std::uint64_t i = 0; i < kWords; ++i) {  // numbers, of which a cast is exact
    for (const std::uint64_t byte : {std::uint64_t{0}, std::uint64_t{0}, random.below(128)}) {
      floats.push_back(static_cast<std::uint8_t>(byte));
    }
    floats.push_back(0x3f);
  }
  const TensorView view = {0, Dtype::kF32, 0, {kWords}, {1}};
  refit.add_task("task.cast", {0}, floats, view, {{0, all}});
  refit.add_task("task.plain", {0}, floats, view, {{1, all}});
  FarMemory memory(refit.all_ranks[0].memory);
  refit.all_ranks[0].input.memory = &memory;
  ASSERT_TRUE(refit.start().ok());
  const auto done = [&memory] { return std::exchange(memory.done, {}); };
  const std::string piece = "rbfbfbfbf";
  ASSERT_TRUE(refit.group->initialize(0).ok());
  EXPECT_EQ(done(), piece + piece);
  Tensors resident = refit.dense();
  for (std::uint64_t version = 1; version < 4; ++version) {
    Bytes& words = refit.all_ranks[0].storages[version % 2];
    for (std::size_t i = 2; i < words.size(); i += 40'000) words[i] ^= 0x15;
    memory.refuses = version == 3;
    ASSERT_TRUE(
        refit.prepare(attempt_from(version, version - 1, static_cast<AttemptMode>(version - 1)))
            .ok());
    EXPECT_EQ(done(), version == 3 ? "rrrrrrrrrr" : piece + piece);
    refit.apply(&resident);
    EXPECT_TRUE(resident == refit.dense()) << version;
    ASSERT_TRUE(refit.group->commit(version).ok());
    EXPECT_EQ(done(), version == 3 ? "rrrrr" : piece);  // of what changed
  }
  // Whatever becomes of one that was begun, the error names the task and nothing stays open.
  memory.refuses = false;
  memory.finishes = 2;
  const auto failed = refit.prepare(attempt_from(9, 3, AttemptMode::kMixed));
  EXPECT_EQ(failed.status().message(), "task \"task.cast\": it went away");
  EXPECT_EQ(memory.open(), 0U);
}

// A dense refit sends residual tensors that no change reaches.
TEST_F(OwnerTest, DenseIsEverything) {
  make();
  for (Bytes& tensor : resident_) tensor.assign(tensor.size(), 0xcc);
  bytes_of("task.b")[7] = 5;
  ASSERT_TRUE(prepare(attempt_from(1, 0, AttemptMode::kDense)).ok());
  EXPECT_EQ(results_[1].changed_source_elements, 1u);
  EXPECT_EQ(results_[1].pipeline.changed, 0u);
  expect_exact();
}

TEST_F(OwnerTest, ChangedBetweenAttempts) {
  make();
  bytes_of("task.a")[0] = 1;
  ASSERT_TRUE(prepare(attempt_from(1, 0, AttemptMode::kMixed)).ok());
  refit_->group->drop_attempt();
  bytes_of("task.b")[6] = 1;  // a tensor that had no change
  const Status status = prepare(attempt_from(1, 0, AttemptMode::kOverwrite));
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_EQ(status.message(),
            "owner 1: task \"task.b\" (tensor \"b\", from word 0 on) changed while the candidate "
            "had to stay fixed; the owner's baseline is void and its next refit is dense");
  EXPECT_EQ(status.tensor(), "b");
  EXPECT_TRUE(refit_->owners[0]->baseline_valid());
  EXPECT_FALSE(refit_->owners[1]->baseline_valid());
  // The next one is dense where the baseline is void, and mends it.
  ASSERT_TRUE(prepare(attempt_from(2, 0, AttemptMode::kMixed)).ok());
  EXPECT_EQ(results_[0].mode, AttemptMode::kMixed);
  EXPECT_EQ(results_[1].mode, AttemptMode::kDense);
  resident_[1].assign(200, 0xcc);
  expect_exact();
  ASSERT_TRUE(refit_->group->commit(1).ok());
  EXPECT_EQ(refit_->owners[1]->baseline_version(), 1u);
  bytes_of("task.b")[8] = 1;
  ASSERT_TRUE(prepare(attempt_from(3, 1, AttemptMode::kMixed)).ok());
  EXPECT_EQ(results_[1].mode, AttemptMode::kMixed);
  EXPECT_EQ(results_[1].pipeline.changed, 1u);
  expect_exact();
}

TEST_F(OwnerTest, AnotherCandidateMayChangeAnything) {
  make();
  bytes_of("task.a")[0] = 1;
  ASSERT_TRUE(prepare(attempt_from(1, 0, AttemptMode::kMixed)).ok());
  refit_->group->drop_attempt();
  bytes_of("task.a")[0] = 2;
  bytes_of("task.a")[2] = 3;
  ASSERT_TRUE(prepare(attempt_from(2, 0, AttemptMode::kOverwrite)).ok());
  expect_exact();
  EXPECT_EQ(results_[0].pipeline.items_by_encoding[0], 1u);
}

TEST_F(OwnerTest, ChangedBetweenScanAndBaselineUpdate) {
  make();
  bytes_of("task.a")[0] = 1;
  ASSERT_TRUE(prepare(attempt_from(1, 0, AttemptMode::kMixed)).ok());
  bytes_of("task.a")[199] = 1;
  const Status status = refit_->group->commit(1);
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_EQ(status.message(),
            "owner 0: task \"task.a\" (tensor \"a\", from word 0 on) changed while the candidate "
            "had to stay fixed; the owner's baseline is void and its next refit is dense");
  EXPECT_FALSE(refit_->owners[0]->baseline_valid());
  const Status again = refit_->group->commit(1);
  EXPECT_EQ(again.message(), "owner 0: version 1 is not the one that was prepared last");
}

TEST_F(OwnerTest, AConvertersInputChangedUnderTheRefit) {
  make();
  bytes_of("s")[3] = 1;
  ASSERT_TRUE(prepare(attempt_from(1, 0, AttemptMode::kMixed)).ok());
  // Not seen by the digests of "s" itself: the converter reads something else.
  refit_->all_ranks[1].converters[0]->body = [](std::uint64_t, std::uint64_t, std::uint64_t,
                                                std::span<std::uint8_t> out) {
    std::fill(out.begin(), out.end(), std::uint8_t{42});
    return Status();
  };
  const Status status = refit_->group->commit(1);
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_EQ(status.message(),
            "owner " + std::to_string(made_owner_) +
                ": tensor \"made\": part 0 from rank 1, word 0: what it is converted from changed "
                "while the candidate had to stay fixed; the owner's baseline is void and its next "
                "refit is dense");
  EXPECT_FALSE(refit_->owners[made_owner_]->baseline_valid());
}

TEST_F(OwnerTest, CommitNeedsItsPrepare) {
  make();
  EXPECT_TRUE(refit_->group->commit(0).ok());  // what it is at already
  EXPECT_EQ(refit_->group->commit(1).message(),
            "owner 0: version 1 is not the one that was prepared last");
  ASSERT_TRUE(prepare(attempt_from(1, 0, AttemptMode::kMixed)).ok());
  EXPECT_EQ(refit_->group->commit(2).message(),
            "owner 0: version 2 is not the one that was prepared last");
  refit_->group->drop_attempt();
  EXPECT_EQ(refit_->group->commit(1).code(), Code::kMismatch);
}

// A baseline of another version than the attempt's base is no baseline for it.
TEST_F(OwnerTest, AnotherBaseVersionIsDense) {
  make();
  bytes_of("task.b")[9] = 4;
  bytes_of("s")[2] = 7;
  ASSERT_TRUE(prepare(attempt_from(1, 5, AttemptMode::kMixed)).ok());
  EXPECT_EQ(results_[0].mode, AttemptMode::kDense);
  EXPECT_EQ(results_[0].changed_source_elements, 0u);
  for (Bytes& tensor : resident_) tensor.assign(tensor.size(), 0xcc);
  expect_exact();
  ASSERT_TRUE(refit_->group->commit(6).ok());
  EXPECT_EQ(refit_->owners[1]->baseline_version(), 6u);
  bytes_of("s")[2] = 0;  // back to what the baseline was before
  ASSERT_TRUE(prepare(attempt_from(2, 6, AttemptMode::kMixed)).ok());
  EXPECT_EQ(results_[made_owner_].changed_residual_words, 2u);
  EXPECT_EQ(results_[1].changed_source_elements, 1u);
  expect_exact();
}

TEST_F(OwnerTest, ErrorsOfSinksAndConvertersEndTheAttemptOnly) {
  make();
  bytes_of("task.a")[0] = 1;
  bytes_of("s")[0] = 1;
  refit_->failing_payload = 0;
  EXPECT_EQ(prepare(attempt_from(1, 0, AttemptMode::kMixed)).message(), "the sink is full");
  refit_->failing_payload = ~std::uint64_t{0};
  TestConverter& converter = *refit_->all_ranks[1].converters[0];
  const auto body = converter.body;
  converter.body = [](std::uint64_t, std::uint64_t, std::uint64_t, std::span<std::uint8_t>) {
    return Status(Code::kIo, "no scale");
  };
  EXPECT_EQ(prepare(attempt_from(1, 0, AttemptMode::kOverwrite)).message(),
            "owner 1: converter \"double\": no scale");
  EXPECT_EQ(refit_->group->commit(1).code(), Code::kMismatch);
  converter.body = body;
  ASSERT_TRUE(prepare(attempt_from(1, 0, AttemptMode::kOverwrite)).ok());
  expect_exact();
  // A commit that could not read is repeated.
  converter.body = [](std::uint64_t, std::uint64_t, std::uint64_t, std::span<std::uint8_t>) {
    return Status(Code::kIo, "no scale");
  };
  EXPECT_EQ(refit_->group->commit(1).code(), Code::kIo);
  EXPECT_FALSE(refit_->owners[0]->baseline_valid());
  converter.body = body;
  ASSERT_TRUE(refit_->group->commit(1).ok());
  EXPECT_EQ(refit_->owners[0]->baseline_version(), 1u);
  ASSERT_TRUE(prepare(attempt_from(2, 1, AttemptMode::kMixed)).ok());
  for (const TestSink& sink : refit_->sinks) EXPECT_TRUE(sink.payloads.empty());
}

TEST_F(OwnerTest, UnreadableWeightsNameTheTask) {
  make();
  refit_->all_ranks[0].input.tasks[0].view.offset = 50;
  EXPECT_TRUE(refit_->start().ok());
  EXPECT_EQ(refit_->group->initialize(0).message(),
            "task \"task.a\": source memory: a view reaches word 149 of storage 0, which has 100");
  EXPECT_FALSE(refit_->owners[0]->baseline_valid());
}

TEST_F(OwnerTest, PartsThatNobodyExpects) {
  make();
  ResidualShare& share = refit_->owners[made_owner_]->residual();
  const std::string owner = "owner " + std::to_string(made_owner_) + ": ";
  const Bytes words(20);
  EXPECT_EQ(share.receive({7, 1, 2, 0, 0}, words).message(),
            owner + "a part of attempt 7 from rank 1 belongs to no attempt under way");
  share.begin({nullptr, nullptr, ResidualUse::kCompare, 7, true, false, {}});
  EXPECT_EQ(share.receive({7, 0, 2, 0, 0}, words).message(),
            owner +
                "a part of tensor index 2 from rank 0 (part 0, word 0) is none that was "
                "declared");
  EXPECT_EQ(share.receive({7, 1, 2, 0, 0}, Bytes(19)).message(),
            owner + "tensor \"made\": part 0 from rank 1, word 0: 19 bytes instead of 20");
  const std::vector<std::uint32_t> round = {0};
  EXPECT_EQ(share.take_round(round, 1, 1, nullptr).message(),
            owner + "tensor \"made\": part 0 from rank 1, word 0 did not come");
  share.begin({});
}

TEST_F(OwnerTest, PartsThatComeTwice) {
  make();
  TestConverter& converter = *refit_->all_ranks[1].converters[0];
  const auto body = converter.body;
  converter.body = [&](std::uint64_t part, std::uint64_t first, std::uint64_t count,
                       std::span<std::uint8_t> out) {
    DCR_TRY(body(part, first, count, out));
    return refit_->owners[made_owner_]->residual().receive(
        {attempt_from(1, 0, AttemptMode::kMixed).attempt, 1, 2, 0, 0}, out);
  };
  bytes_of("s")[0] = 1;
  EXPECT_EQ(prepare(attempt_from(1, 0, AttemptMode::kMixed)).message(),
            "owner " + std::to_string(made_owner_) +
                ": tensor \"made\": part 0 from rank 1, word 0 came twice");
}

TEST_F(OwnerTest, SpansOfEveryStage) {
  SpanRecorder spans(&monotonic_clock());
  OwnerOptions options;
  options.spans = &spans;
  std::uint64_t scanned = 0;
  options.progress = [&scanned](const char* stage, std::uint64_t bytes) {
    if (std::string(stage) == kStageScan) scanned += bytes;
  };
  make(options);
  bytes_of("task.a")[0] = 1;
  bytes_of("s")[0] = 1;
  ASSERT_TRUE(prepare(attempt_from(1, 0, AttemptMode::kMixed)).ok());
  ASSERT_TRUE(refit_->group->commit(1).ok());
  EXPECT_EQ(scanned, 200u + 200u + 10u);
  std::set<std::string> stages;
  for (const Span& span : spans.take()) {
    stages.insert(span.stage);
    EXPECT_LE(span.begin_ns, span.end_ns);
  }
  EXPECT_EQ(stages, (std::set<std::string>{"assemble", "commit", "compress", "convert", "flags",
                                           "initialize", "scan", "send"}));
}

TEST_F(OwnerTest, Cancelled) {
  CancelToken cancel;
  OwnerOptions options;
  options.cancel = &cancel;
  make(options);
  cancel.cancel();
  EXPECT_EQ(prepare(attempt_from(1, 0, AttemptMode::kMixed)).code(), Code::kCancelled);
}

TEST_F(OwnerTest, GroupsAreChecked) {
  make();
  Attempt attempt = attempt_from(1, 0, AttemptMode::kMixed);
  attempt.needs.resize(2);
  EXPECT_EQ(prepare(attempt).message(), "needs of 2 tensors for a catalogue of 3");
  EXPECT_EQ(refit_->group->prepare(attempt_from(1, 0, AttemptMode::kMixed), {}).status().message(),
            "0 sinks for 2 owners");
  EXPECT_EQ(OwnerGroup::create({}, *refit_->executor, {}).status().message(),
            "a group without owners");
  const auto input = [&](std::uint32_t rank) {
    OwnerInput copy = refit_->all_ranks[rank].input;
    copy.collective = nullptr;
    return copy;
  };
  const auto alone = Owner::create(refit_->geometry, input(1), "").value();
  EXPECT_EQ(OwnerGroup::create({alone.get()}, *refit_->executor, {}).status().message(),
            "owner 1 has no collective");
}

}  // namespace
}  // namespace dcr
