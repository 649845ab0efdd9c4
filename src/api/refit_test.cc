#include "dcr/refit.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>

#include "api/refit_owners.h"
#include "dcr/delta.h"
#include "layout/layout_file.h"
#include "runtime/clock.h"
#include "runtime/threads.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/temp_directory.h"
#include "tests/support/test_checkpoint.h"

namespace dcr {
namespace {

// Two owners and two receivers of three tensors: "a" is cut on both sides, in different
// directions; "b" unevenly on owners; "c" is needed whole, as its loader writes by no plain copy.
constexpr const char* kOwners = R"({"format": 0, "ranks": 2, "rules": [
  {"match": "a", "class": "column"},
  {"match": "b", "class": "fsdp"},
  {"match": "c", "class": "replicated"}]})";
constexpr const char* kReceivers = R"({"format": 0, "ranks": 2, "rules": [
  {"match": "a", "class": "row"},
  {"match": "b", "class": "replicated", "behaviour": "contiguous"},
  {"match": "c", "class": "replicated", "behaviour": "index_put"}],
  "buffers": [{"name": "positions", "dtype": "U8", "shape": [3]}]})";

// A clock that goes on whenever somebody looks.
class TickClock final : public Clock {
 public:
  std::uint64_t nanoseconds() override { return now_.fetch_add(1'000'000'000); }

 private:
  std::atomic<std::uint64_t> now_{0};
};

class RefitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.files = &disk_;
    options_.threads = 1;
    options_.owners.file = "owners.json";
    options_.receivers.file = "receivers.json";
    put_text("owners.json", kOwners);
    put_text("receivers.json", kReceivers);
    Prng prng(1);
    old_.tensors["a"] = {Dtype::kBF16, {4, 6}, random_bytes(prng, 48), 0};
    old_.tensors["b"] = {Dtype::kF32, {5}, random_bytes(prng, 20), 0};
    old_.tensors["c"] = {Dtype::kI64, {}, random_bytes(prng, 8), 0};
    new_ = old_;
    new_.tensors["a"].bytes[0] ^= 1;    // element 0: of owner 0, for receiver 0
    new_.tensors["a"].bytes[47] ^= 4;   // element 23: of owner 1, for receiver 1
    new_.tensors["b"].bytes[16] ^= 16;  // element 4: of owner 1, for both
    put_both();
  }

  void put_text(const std::string& path, const std::string& text) {
    disk_.put(path, text_bytes(text));
  }
  void put(const std::string& path, const TestCheckpoint& checkpoint) {
    for (const auto& [name, content] : checkpoint.files(path)) disk_.put(name, content);
  }
  void put_both() {
    put("old", old_);
    put("new", new_);
  }

  Result<RefitResult> run() const { return refit("old", "new", options_); }

  // Runs it; the receivers must then hold what a dense load gives.
  RefitResult run_well() const {
    Result<RefitResult> made = run();
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (!made.ok()) return {};
    EXPECT_EQ(made->differing_bytes, 0U);
    EXPECT_EQ(made->differing, std::vector<std::string>());
    EXPECT_EQ(made->resident_different, 0U);
    EXPECT_GT(made->compared_bytes, 0U);
    return std::move(made).value();
  }

  void expect_error(Code code, const std::string& message, const std::string& tensor = {}) const {
    const Result<RefitResult> made = run();
    ASSERT_FALSE(made.ok()) << message;
    EXPECT_EQ(made.status().code(), code) << message;
    EXPECT_EQ(made.status().message(), message);
    EXPECT_EQ(made.status().tensor(), tensor) << message;
  }

  MemoryFileSystem disk_;
  TestCheckpoint old_, new_;
  RefitOptions options_;
};

TEST_F(RefitTest, CountsWhatItDid) {
  const RefitResult result = run_well();
  EXPECT_EQ(result.owners, 2U);
  EXPECT_EQ(result.receivers, 2U);
  EXPECT_EQ(result.tensors, 3U);
  EXPECT_EQ(result.elements, 30U);
  EXPECT_EQ(result.changed, 3U);
  EXPECT_EQ(result.canonical_elements, 30U);
  EXPECT_EQ(result.canonical_changed, 3U);
  EXPECT_EQ(result.model_bytes, 76U);
  EXPECT_EQ(result.payloads, 2U);
  std::uint64_t items = 0;
  for (const auto& [name, count] : result.encodings) items += count;
  EXPECT_EQ(items, 4U);
  EXPECT_EQ(result.destinations, 6U);  // a 1 + 1, b 2, c whole on both
  // Owner 0: 24 bytes of a, 12 of b; owner 1: 24 and 8; one of them c.
  EXPECT_EQ(result.owned_bytes_mean, 38.0);
  EXPECT_TRUE(result.owned_bytes_max == 44 || result.owned_bytes_max == 40);
  EXPECT_EQ(result.paths, (std::map<std::string, std::uint64_t>{{"traced", 4}, {"dense", 2}}));
  ASSERT_EQ(result.not_traced.size(), 2U);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(result.not_traced[rank].tensor, "c");
    EXPECT_EQ(result.not_traced[rank].rank, rank);
    EXPECT_EQ(result.not_traced[rank].path, "dense");
    EXPECT_EQ(result.not_traced[rank].reason, "the loader writes it by no plain copy");
  }
  EXPECT_TRUE(result.uneven.empty());
  EXPECT_EQ(result.compared_bytes, 2U * (24 + 20 + 8 + 3));
  EXPECT_LT(result.owner_memory_bytes, 100'000'000U);
  EXPECT_GT(result.receiver_memory_bytes, 0U);
  EXPECT_LT(result.receiver_memory_bytes, 100'000U);
  EXPECT_TRUE(result.stages.empty() || result.stages[0].busy == 0);
  EXPECT_EQ(result.refit_seconds, 0.0);
}

TEST_F(RefitTest, TimesEveryStage) {
  TickClock clock;
  options_.clock = &clock;
  std::vector<std::string> reported;
  options_.progress = [&](const Progress& progress) {
    EXPECT_LE(progress.bytes_done, progress.bytes_total);
    if (reported.empty() || reported.back() != progress.stage) reported.push_back(progress.stage);
  };
  const RefitResult result = run_well();
  std::vector<std::string> stages;
  for (const RefitStage& stage : result.stages) {
    stages.push_back(stage.name);
    EXPECT_GT(stage.wall, 0) << stage.name;
    EXPECT_GT(stage.busy, 0) << stage.name;
  }
  EXPECT_EQ(stages, (std::vector<std::string>{"load", "initialize", "prewarm", "audit", "scan",
                                              "compress", "send", "decode", "apply", "commit"}));
  EXPECT_GT(result.startup_seconds, 0);
  EXPECT_GT(result.refit_seconds, 0);
  EXPECT_EQ(reported, (std::vector<std::string>{"load", "initialize", "load", "prewarm", "audit",
                                                "load", "scan", "commit", "compare"}));
}

TEST_F(RefitTest, NoChangeSendsNothing) {
  new_ = old_;
  put_both();
  options_.receivers = {"", "fused-tp:2"};
  const RefitResult result = run_well();
  EXPECT_EQ(result.changed, 0U);
  EXPECT_EQ(result.canonical_changed, 0U);
  EXPECT_EQ(result.payloads, 0U);
  EXPECT_EQ(result.payload_bytes, 0U);
  EXPECT_EQ(result.destinations, 0U);
}

TEST_F(RefitTest, OneElement) {
  new_ = old_;
  new_.tensors["b"].bytes[0] ^= 1;
  put_both();
  options_.receivers = {"", "fused-tp:2"};
  const RefitResult result = run_well();
  EXPECT_EQ(result.changed, 1U);
  EXPECT_EQ(result.payloads, 1U);
  EXPECT_EQ(result.destinations, 2U);  // it is replicated
}

TEST_F(RefitTest, Everything) {
  new_ = old_;
  for (auto& [name, tensor] : new_.tensors) {
    for (std::uint8_t& byte : tensor.bytes) byte = static_cast<std::uint8_t>(~byte);
  }
  put_both();
  const RefitResult result = run_well();
  EXPECT_EQ(result.changed, 30U);
  EXPECT_EQ(result.canonical_changed, 30U);
  EXPECT_EQ(result.destinations, 24U + 10 + 2);
}

TEST_F(RefitTest, ReplicasCountOnce) {
  put_text("owners.json", R"({"format": 0, "ranks": 4, "rules": [
    {"match": "a", "class": "column", "shards": 2},
    {"match": "b", "class": "replicated"},
    {"match": "c", "class": "replicated"}]})");
  const RefitResult result = run_well();
  EXPECT_EQ(result.owners, 4U);
  EXPECT_EQ(result.elements, 30U);
  EXPECT_EQ(result.changed, 3U);
  EXPECT_EQ(result.owned_bytes_mean, 19.0);
}

TEST_F(RefitTest, VerifyComparesAndWritesNothing) {
  options_.verify = true;
  Result<RefitResult> result = run();
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->resident_different, 4U);  // a 1 + 1, b on both
  EXPECT_EQ(result->destinations, 24U + 10 + 2);
  EXPECT_EQ(result->differing_bytes, 0U);
  EXPECT_EQ(result->encodings.size(), 1U);
  EXPECT_TRUE(result->encodings.contains("overwrite"));
  EXPECT_EQ(result->payloads, 2U);

  new_ = old_;
  put_both();
  result = run();
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->resident_different, 0U);
  EXPECT_EQ(result->differing_bytes, 0U);
}

TEST_F(RefitTest, VerifyThroughTheScratchPath) {
  options_.verify = true;
  options_.prefer_scratch = true;
  const Result<RefitResult> result = run();
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->resident_different, 4U);
  EXPECT_EQ(result->differing_bytes, 0U);
}

TEST_F(RefitTest, OverwriteOnly) {
  options_.construction = RefitConstruction::kOverwrite;
  const RefitResult result = run_well();
  EXPECT_EQ(result.encodings, (std::map<std::string, std::uint64_t>{{"overwrite", 4}}));
  EXPECT_EQ(result.changed, 3U);
}

TEST_F(RefitTest, FullConversionGivesTheSameBits) {
  options_.construction = RefitConstruction::kFullConversion;
  const RefitResult result = run_well();
  EXPECT_EQ(result.encodings.size(), 1U);
  EXPECT_TRUE(result.encodings.contains("overwrite"));
  EXPECT_EQ(result.elements, 30U);
  EXPECT_EQ(result.changed, 3U);
  EXPECT_EQ(result.canonical_changed, 3U);
  EXPECT_EQ(result.destinations, 6U);
  EXPECT_EQ(result.canonical_elements, 30U);
}

TEST_F(RefitTest, WhatNoReceiverHasIsNamed) {
  put_text("receivers.json", R"({"format": 0, "ranks": 2, "rules": [
    {"match": "a", "class": "row"},
    {"match": "b", "class": "none", "behaviour": "skip"},
    {"match": "c", "class": "none", "behaviour": "claim_loaded"}]})");
  const RefitResult result = run_well();
  ASSERT_EQ(result.uneven.size(), 2U);
  EXPECT_EQ(result.uneven[0].tensor, "b");
  EXPECT_EQ(result.uneven[0].reason, "every rank's loader skips it");
  EXPECT_EQ(result.uneven[1].tensor, "c");
  EXPECT_EQ(result.uneven[1].reason, "every rank's loader skips it");
  EXPECT_EQ(result.paths, (std::map<std::string, std::uint64_t>{{"traced", 2}, {"skip", 4}}));
  EXPECT_EQ(result.payloads, 2U);  // of a
}

TEST_F(RefitTest, ScratchGivesTheSameBits) {
  options_.prefer_scratch = true;
  const RefitResult result = run_well();
  EXPECT_EQ(result.paths, (std::map<std::string, std::uint64_t>{{"scratch", 4}, {"dense", 2}}));
  EXPECT_EQ(result.destinations, 6U);
  ASSERT_EQ(result.not_traced.size(), 6U);
  EXPECT_EQ(result.not_traced[0].reason, "as configured");
}

// More tensors that the loader needs whole than a few of the largest, cut over owners: parts of all
// of them come with the first payloads.
TEST_F(RefitTest, ManyTensorsAreNeededWhole) {
  Prng prng(3);
  old_.tensors.clear();
  for (int i = 0; i < 60; ++i) {
    old_.tensors["t." + std::to_string(i)] = {
        Dtype::kU8, {64, 1024}, random_bytes(prng, 64 * 1024), 0};
  }
  new_ = old_;
  for (auto& [name, tensor] : new_.tensors) tensor.bytes[17] ^= 1;
  put_both();
  options_.owners = {"", "fsdp:8"};
  put_text("receivers.json", R"({"format": 0, "ranks": 1, "rules": [
    {"match": "t.{i}", "class": "replicated", "behaviour": "index_put"}]})");
  const RefitResult result = run_well();
  EXPECT_EQ(result.paths, (std::map<std::string, std::uint64_t>{{"dense", 60}}));
}

TEST_F(RefitTest, MappedFilesLeaveNothingBehind) {
  const TempDirectory directory;
  options_.arena_directory = directory.path();
  const RefitResult result = run_well();
  EXPECT_EQ(result.changed, 3U);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  options_.arena_directory = directory.at("missing");
  const Result<RefitResult> refused = run();
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("missing"), std::string::npos)
      << refused.status().message();
}

TEST_F(RefitTest, PostApplyChecksCompareWhatWasWritten) {
  EXPECT_EQ(run_well().checked, 0U);
  options_.post_apply_checks = true;
  const RefitResult result = run_well();
  EXPECT_GT(result.destinations, 0U);
  EXPECT_GE(result.checked, result.destinations);  // untouched neighbours too
}

TEST_F(RefitTest, TensorsWithoutElements) {
  for (TestCheckpoint* checkpoint : {&old_, &new_}) {
    checkpoint->tensors["empty"] = {Dtype::kBF16, {0, 4}, {}, 0};
    checkpoint->tensors["hollow"] = {Dtype::kF32, {3, 0, 2}, {}, 0};
  }
  put_both();
  options_.owners = {"", "fsdp:2"};
  options_.receivers = {"", "fused-tp:2"};
  const RefitResult result = run_well();
  EXPECT_EQ(result.tensors, 5U);
  EXPECT_EQ(result.changed, 3U);
  EXPECT_EQ(result.paths, (std::map<std::string, std::uint64_t>{{"skip", 4}, {"traced", 6}}));
}

// A model whose names say what its tensors are.
TestCheckpoint small_model(Prng& prng) {
  TestCheckpoint made;
  const auto add = [&](const std::string& name, const Shape& shape) {
    std::uint64_t words = 1;
    for (const std::uint64_t size : shape) words *= size;
    made.tensors[name] = {Dtype::kBF16, shape, random_bytes(prng, 2 * words), 0};
  };
  add("model.embed_tokens.weight", {70, 8});
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    add(layer + "input_layernorm.weight", {8});
    add(layer + "self_attn.q_proj.weight", {16, 8});
    add(layer + "self_attn.k_proj.weight", {8, 8});
    add(layer + "self_attn.v_proj.weight", {8, 8});
    add(layer + "self_attn.o_proj.weight", {8, 16});
    for (const std::string expert : {"0.", "1.", "2."}) {
      add(layer + "mlp.experts." + expert + "gate_proj.weight", {12, 8});
      add(layer + "mlp.experts." + expert + "up_proj.weight", {12, 8});
      add(layer + "mlp.experts." + expert + "down_proj.weight", {8, 12});
    }
  }
  return made;
}

TEST_F(RefitTest, GeneratedLayouts) {
  Prng prng(2);
  old_ = small_model(prng);
  new_ = old_;
  for (auto& [name, tensor] : new_.tensors) change_words(prng, &tensor, 5);
  put_both();
  for (const char* owners : {"fsdp:8", "fsdp:3", "tp:4", "tp:2,dp:2", "tp:2,ep:3", "fsdp:1"}) {
    for (const char* receivers : {"fused-tp:4", "fused-tp:2,ep", "fused-tp:1"}) {
      options_.owners = {"", owners};
      options_.receivers = {"", receivers};
      const RefitResult result = run_well();
      EXPECT_EQ(result.paths.contains("scratch"), false) << owners << " to " << receivers;
      EXPECT_EQ(result.paths.contains("dense"), false) << owners << " to " << receivers;
    }
  }
}

// FP32 masters of BF16 tensors: a master's change below what BF16 holds sends nothing. (NaN would
// lose its payload in the cast, so these are numbers.)
TEST_F(RefitTest, CastsOnOwners) {
  for (TestCheckpoint* checkpoint : {&old_, &new_}) {
    std::uint8_t word = 0;
    for (std::size_t i = 1; i < 48; i += 2) {
      checkpoint->tensors["a"].bytes[i - 1] = ++word;
      checkpoint->tensors["a"].bytes[i] = 0x3f;
    }
  }
  new_.tensors["a"].bytes[20] ^= 0x40;
  put_both();
  options_.owners = {"", "fsdp:3,f32"};
  const RefitResult result = run_well();
  EXPECT_EQ(result.changed, 2U);  // of a and of b
}

// What owners send does not depend on threads.
std::vector<Bytes> payloads_of(const RefitOptions& options, unsigned threads) {
  const Checkpoint old_one = open_checkpoint(*options.files, "old").value();
  const Checkpoint new_one = open_checkpoint(*options.files, "new").value();
  std::vector<CanonicalTensor> tensors;
  for (const CheckpointTensor& tensor : old_one.tensors) {
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape, 0});
  }
  const Catalogue catalogue = Catalogue::make(std::move(tensors)).value();
  const std::unique_ptr<Executor> executor = make_executor(threads);
  SpanRecorder spans;
  const RefitContext context{options, catalogue, *executor, spans};
  const Layout layout = parse_owner_layout(kOwners).value();
  const std::unique_ptr<RefitOwners> owners = RefitOwners::create(context, layout).value();
  struct Sink final : PayloadSink {
    Status send(std::uint64_t, std::span<const std::uint8_t> bytes) override {
      payloads.emplace_back(bytes.begin(), bytes.end());
      return {};
    }
    std::vector<Bytes> payloads;
  };
  std::vector<Sink> sinks(owners->ranks());
  std::vector<PayloadSink*> pointers;
  for (Sink& sink : sinks) pointers.push_back(&sink);
  EXPECT_TRUE(owners->load(old_one).ok());
  EXPECT_TRUE(owners->group().initialize(1).ok());
  EXPECT_TRUE(owners->load(new_one).ok());
  Attempt attempt;
  attempt.base_version = 1;
  attempt.target_version = 2;
  EXPECT_TRUE(owners->group().prepare(attempt, pointers).ok());
  std::vector<Bytes> all;
  for (Sink& sink : sinks) {
    all.insert(all.end(), sink.payloads.begin(), sink.payloads.end());
    all.emplace_back();
  }
  return all;
}

TEST_F(RefitTest, PayloadsDoNotDependOnThreads) {
  options_.bucket_bytes = 8;
  const std::vector<Bytes> one = payloads_of(options_, 1);
  EXPECT_GT(one.size(), 4U);
  EXPECT_TRUE(payloads_of(options_, 2) == one);
  EXPECT_TRUE(payloads_of(options_, 5) == one);
  const RefitResult first = run_well();
  for (const unsigned threads : {2U, 5U}) {
    options_.threads = threads;
    const RefitResult result = run_well();
    EXPECT_EQ(result.payloads, first.payloads);
    EXPECT_EQ(result.payload_bytes, first.payload_bytes);
    EXPECT_EQ(result.encodings, first.encodings);
    EXPECT_EQ(result.destinations, first.destinations);
  }
  EXPECT_EQ(first.payloads, 4U);
}

TEST_F(RefitTest, CheckpointsMustHaveTheSameTensors) {
  new_.tensors.erase("b");
  put_both();
  expect_error(Code::kMismatch, "the new checkpoint has no tensor b", "b");
  new_ = old_;
  new_.tensors["aa"] = {Dtype::kU8, {1}, {0}, 0};
  put_both();
  expect_error(Code::kMismatch, "the old checkpoint has no tensor aa", "aa");
  new_ = old_;
  new_.tensors["z"] = {Dtype::kU8, {1}, {0}, 0};
  put_both();
  expect_error(Code::kMismatch, "the old checkpoint has no tensor z", "z");
  new_ = old_;
  new_.tensors["a"].dtype = Dtype::kF16;
  put_both();
  expect_error(Code::kMismatch,
               "a is BF16 [4, 6] in the old checkpoint and F16 [4, 6] in the new one", "a");
  new_ = old_;
  new_.tensors["a"].shape = {6, 4};
  put_both();
  expect_error(Code::kMismatch,
               "a is BF16 [4, 6] in the old checkpoint and BF16 [6, 4] in the new one", "a");
}

TEST_F(RefitTest, RefusedTensorsAreNamedWithTheReason) {
  put_text("receivers.json", R"({"format": 0, "ranks": 2, "rules": [
    {"match": "a", "class": "replicated", "behaviour": "normalise"},
    {"match": "b", "class": "fsdp"},
    {"match": "c", "class": "replicated"}]})");
  expect_error(Code::kUnsupported,
               "receiver 0: tensor \"a\" cannot be refitted exactly: an element of a parameter "
               "depends on several of the tensor's",
               "a");
}

// The halves of a parameter were exchanged after loading: what is resident is not what the loader
// makes of the base.
TEST_F(RefitTest, ResidentWeightsMustBeTheLoadersOwn) {
  put_text("receivers.json", R"({"format": 0, "ranks": 1, "rules": [
    {"match": "a", "class": "replicated", "behaviour": "swap_after_load"},
    {"match": "b", "class": "replicated"},
    {"match": "c", "class": "replicated"}]})");
  expect_error(Code::kMismatch,
               "receiver 0: tensor \"a\": 24 of 24 resident words are not what its loader makes of "
               "the base",
               "a");
}

// Buffers of 2^64 bytes together, which would be none.
TEST_F(RefitTest, LayoutsTooLargeForMemoryAreRefused) {
  std::string buffers = R"({"name": "rest", "dtype": "F64", "shape": [134217728]})";
  for (int i = 0; i < 8192; ++i) {
    buffers += R"(, {"name": "b)" + std::to_string(i) +
               R"(", "dtype": "F64", "shape": [1099511627712, 256]})";
  }
  put_text("receivers.json", R"({"format": 0, "ranks": 1, "rules": [
    {"match": "a", "class": "replicated"}, {"match": "b", "class": "replicated"},
    {"match": "c", "class": "replicated"}], "buffers": [)" +
                                 buffers + "]}");
  const Result<RefitResult> refused = run();
  EXPECT_EQ(refused.status().code(), Code::kIo);
  EXPECT_TRUE(
      refused.status().message().starts_with("cannot make an arena of 18446744073709551615 bytes"))
      << refused.status().message();
}

TEST_F(RefitTest, LayoutErrorsNameFileAndRule) {
  put_text("owners.json", R"({"format": 0, "ranks": 2, "rules": [
    {"match": "a", "class": "column"}, {"match": "b", "class": "fsdb"}]})");
  expect_error(Code::kUnsupported,
               "owners.json: rule 2 has an unknown class \"fsdb\" (did you mean \"fsdp\"?)");
  put_text("owners.json", R"({"format": 0, "ranks": 2, "rules": [
    {"match": "a", "class": "column"}, {"match": "b", "class": "fsdp"}]})");
  expect_error(Code::kMismatch, "tensor \"c\" has no rule in the layout; add one that matches it",
               "c");
  put_text("owners.json", kOwners);
  put_text("receivers.json", "{");
  EXPECT_EQ(run().status().code(), Code::kCorrupt);
  EXPECT_TRUE(run().status().message().starts_with("receivers.json: layout file"))
      << run().status().message();
  options_.receivers = {"", "fused-tp:two"};
  expect_error(Code::kInvalidArgument,
               "layout \"fused-tp:two\": \"two\" is not a number from 1 to 16384");
  options_.receivers = {"absent.json", ""};
  EXPECT_EQ(run().status().code(), Code::kNotFound);
}

TEST_F(RefitTest, OptionsAreJudged) {
  options_.memory_bytes_max = kMemoryBytesMin - 1;
  expect_error(Code::kInvalidArgument,
               "a memory limit of 268435455 bytes is too small; at least 268435456 are needed");
  options_.memory_bytes_max = kMemoryBytesMin;
  options_.threads = 1025;
  expect_error(Code::kInvalidArgument, "1025 threads are above the limit of 1024");
  options_.threads = 1;
  options_.owners = {"", "fsdp:40"};  // the limit is of each owner
  EXPECT_EQ(run_well().owners, 40U);
}

TEST_F(RefitTest, CancelEndsIt) {
  for (const char* stage : {"load", "initialize", "prewarm", "audit", "scan", "commit"}) {
    CancelToken cancel;
    options_.cancel = &cancel;
    options_.progress = [&](const Progress& progress) {
      if (std::string(stage) == progress.stage) cancel.cancel();
    };
    const Result<RefitResult> result = run();
    EXPECT_EQ(result.status().code(), Code::kCancelled) << stage;
  }
  CancelToken cancel;
  cancel.cancel();
  options_.cancel = &cancel;
  options_.progress = {};
  EXPECT_EQ(run().status().code(), Code::kCancelled);
}

}  // namespace
}  // namespace dcr
