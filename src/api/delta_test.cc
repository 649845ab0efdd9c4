#include "dcr/delta.h"

#include <gtest/gtest.h>

#include "runtime/threads.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/test_checkpoint.h"

namespace dcr {
namespace {

class DeltaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.files = &disk_;
    options_.threads = 2;
    TestCheckpoint before;
    before.tensors["l.0.w"] = {Dtype::kBF16, {4}, {1, 0, 2, 0, 3, 0, 4, 0}, 0};
    before.tensors["gone"] = {Dtype::kU8, {1}, {1}, 0};
    before.tensors["grown"] = {Dtype::kU8, {1}, {1}, 0};
    before.others = {{"config.json", "{}"}, {"same.txt", "same"}};
    TestCheckpoint after = before;
    after.tensors["l.0.w"].bytes[2] = 3;
    after.tensors.erase("gone");
    after.tensors["grown"] = {Dtype::kU8, {2}, {1, 2}, 0};
    after.tensors["more"] = {Dtype::kU8, {1}, {1}, 0};
    after.others["config.json"] = "{ }";
    after.others["weights.pt"] = "pickled";
    put("old", before);
    put("new", after);
  }

  void put(const std::string& path, const TestCheckpoint& checkpoint) {
    for (const auto& [name, content] : checkpoint.files(path)) disk_.put(name, content);
  }

  static void expect_left_out(const std::vector<LeftOut>& files) {
    ASSERT_EQ(files.size(), 1U);
    EXPECT_EQ(files[0].name, "weights.pt");
    EXPECT_EQ(files[0].reason, "pickle");
  }

  MemoryFileSystem disk_;
  DeltaOptions options_;
};

TEST_F(DeltaTest, DiffSaysWhatChanged) {
  const Result<DiffResult> made = diff("old", "new", "d.dcr", options_);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->tensors, 1U);
  EXPECT_EQ(made->elements, 4U);
  EXPECT_EQ(made->changed, 1U);
  EXPECT_EQ(made->delta_bytes, disk_.get("d.dcr").size());
  EXPECT_GT(made->payload_bytes, 0U);
  EXPECT_LT(made->payload_bytes, made->delta_bytes);
  EXPECT_EQ(made->added, std::vector<std::string>{"more"});
  EXPECT_EQ(made->removed, std::vector<std::string>{"gone"});
  EXPECT_EQ(made->replaced, std::vector<std::string>{"grown"});
  EXPECT_EQ(made->carried_files, std::vector<std::string>{"config.json"});
  expect_left_out(made->left_out);
  std::uint64_t items = 0;
  for (const auto& [name, count] : made->encodings) items += count;
  EXPECT_EQ(items, 3U);
}

TEST_F(DeltaTest, InspectSaysTheSame) {
  const Result<DiffResult> made = diff("old", "new", "d.dcr", options_);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const Result<InspectResult> seen = inspect("d.dcr", options_);
  ASSERT_TRUE(seen.ok()) << seen.status().message();
  EXPECT_EQ(seen->format_version, kFormatVersion);
  EXPECT_EQ(seen->delta_bytes, made->delta_bytes);
  EXPECT_EQ(seen->payloads, 1U);
  EXPECT_EQ(seen->items, 3U);
  EXPECT_EQ(seen->tensors, made->tensors);
  EXPECT_EQ(seen->elements, made->elements);
  EXPECT_EQ(seen->changed, made->changed);
  EXPECT_EQ(seen->encodings, made->encodings);
  EXPECT_EQ(seen->added, made->added);
  EXPECT_EQ(seen->removed, made->removed);
  EXPECT_EQ(seen->replaced, made->replaced);
  EXPECT_EQ(seen->base_identity.size(), 32U);
  EXPECT_NE(seen->base_identity, seen->target_identity);
  ASSERT_EQ(seen->groups.size(), 3U);
  EXPECT_EQ(seen->groups[1].name, "l.*.w");
  EXPECT_EQ(seen->groups[1].changed, 1U);
  expect_left_out(seen->left_out);
  ASSERT_EQ(seen->files.size(), 3U);
  EXPECT_EQ(seen->files[0].name, "config.json");
  EXPECT_EQ(seen->files[0].source, "carried");
  EXPECT_EQ(seen->files[0].bytes, 3U);
  EXPECT_EQ(seen->files[2].name, "same.txt");
  EXPECT_EQ(seen->files[2].source, "base");
  EXPECT_EQ(seen->files[2].stored_bytes, 0U);
  EXPECT_EQ(seen->streams[0].kind, "items");
}

TEST_F(DeltaTest, ApplyAndVerifyGoTogether) {
  ASSERT_TRUE(diff("old", "new", "d.dcr", options_).ok());
  const Result<ApplyResult> copied = apply({"d.dcr"}, "old", "copy", options_);
  ASSERT_TRUE(copied.ok()) << copied.status().message();
  EXPECT_EQ(copied->tensors, 3U);
  EXPECT_FALSE(copied->already_target);
  EXPECT_EQ(copied->files,
            (std::vector<std::string>{"config.json", "model.safetensors", "same.txt"}));
  const Result<VerifyResult> same = verify("new", "copy", {.files = true}, options_);
  ASSERT_TRUE(same.ok()) << same.status().message();
  EXPECT_EQ(same->differing, 0U);
  EXPECT_EQ(same->tensors, 3U);
  EXPECT_EQ(same->files, 3U);
  const Result<VerifyResult> other = verify("old", "copy", {}, options_);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(other->differing, 4U);
  ASSERT_EQ(other->differences.size(), 4U);
  EXPECT_EQ(other->differences[0].kind, "missing");
  EXPECT_EQ(other->differences[1].kind, "shape");
  EXPECT_EQ(other->differences[2].kind, "extra");
  EXPECT_EQ(other->differences[3].kind, "bits");
  EXPECT_EQ(other->differences[3].tensor, "l.0.w");
}

TEST_F(DeltaTest, ApplyInPlaceReachesTheSameState) {
  ASSERT_TRUE(diff("old", "new", "d.dcr", options_).ok());
  const Result<ApplyResult> changed = apply_in_place({"d.dcr"}, "old", options_);
  ASSERT_TRUE(changed.ok()) << changed.status().message();
  EXPECT_EQ(verify("new", "old", {.files = true}, options_)->differing, 0U);
  const Result<ApplyResult> again = apply_in_place({"d.dcr"}, "old", options_);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_TRUE(again->already_target);
}

TEST_F(DeltaTest, OnlyTheFirstDifferencesAreKept) {
  TestCheckpoint many;
  for (unsigned i = 0; i < 150; ++i) {
    many.tensors["t" + std::to_string(i)] = {Dtype::kU8, {1}, {0}, 0};
  }
  put("a", many);
  for (auto& [name, tensor] : many.tensors) tensor.bytes[0] = 1;
  put("b", many);
  const Result<VerifyResult> result = verify("a", "b", {}, options_);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->differing, 150U);
  EXPECT_EQ(result->differences.size(), 100U);
}

TEST_F(DeltaTest, OptionsAreJudged) {
  DeltaOptions options = options_;
  options.memory_bytes_max = kMemoryBytesMin - 1;
  EXPECT_EQ(diff("old", "new", "d.dcr", options).status().code(), Code::kInvalidArgument);
  options = options_;
  options.threads = 1025;
  EXPECT_EQ(verify("old", "new", {}, options).status().code(), Code::kInvalidArgument);
}

TEST_F(DeltaTest, ProgressAndCancelReachTheCaller) {
  std::string stages;
  options_.progress = [&](const Progress& progress) {
    if (!stages.ends_with(progress.stage)) stages += std::string(" ") + progress.stage;
    EXPECT_LE(progress.bytes_done, progress.bytes_total);
  };
  ASSERT_TRUE(diff("old", "new", "d.dcr", options_).ok());
  ASSERT_TRUE(apply({"d.dcr"}, "old", "copy", options_).ok());
  ASSERT_TRUE(verify("new", "copy", {}, options_).ok());
  EXPECT_EQ(stages, " diff check apply verify");
  CancelToken cancel;
  cancel.cancel();
  options_.cancel = &cancel;
  options_.force = true;
  EXPECT_EQ(diff("old", "new", "d.dcr", options_).status().code(), Code::kCancelled);
  EXPECT_EQ(apply({"d.dcr"}, "old", "copy", options_).status().code(), Code::kCancelled);
}

}  // namespace
}  // namespace dcr
