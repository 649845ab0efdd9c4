#include "source/baseline.h"

#include <gtest/gtest.h>

#include <array>

#include "source/test_random_refit.h"
#include "tests/support/campaign.h"
#include "tests/support/temp_directory.h"

namespace dcr {
namespace {

// What a restore of `version` sends, and what it makes of tensors full of junk.
struct Restored {
  std::vector<Bytes> payloads;
  Tensors tensors;
};

Result<Restored> restore(TestOwnerRefit* refit, std::uint64_t version) {
  std::vector<TestSink> attempt = std::move(refit->sinks);
  refit->sinks.assign(refit->all_ranks.size(), TestSink());
  std::vector<PayloadSink*> pointers;
  pointers.reserve(refit->sinks.size());
  for (TestSink& sink : refit->sinks) pointers.push_back(&sink);
  RestoreHeader header;
  header.attempt = version + 1;
  header.version = version;
  const Result<std::vector<PipelineResult>> sent = refit->group->restore(header, pointers);
  Restored restored;
  restored.payloads = refit->all_payloads();
  restored.tensors = refit->dense();
  for (Bytes& tensor : restored.tensors) std::fill(tensor.begin(), tensor.end(), 0xcc);
  if (sent.ok()) refit->apply(&restored.tensors);
  refit->sinks = std::move(attempt);
  if (!sent.ok()) return sent.status();
  return restored;
}

// By owner and box, from plain canonical tensors, word by word.
std::vector<std::vector<Digest>> naive_digests(const TestOwnerRefit& refit,
                                               const Tensors& tensors) {
  std::vector<std::vector<Digest>> digests;
  for (const auto& owner : refit.owners) {
    std::vector<Digest>& of_owner = digests.emplace_back();
    for (const auto& [tensor, box] : owner->item_boxes()) {
      const std::size_t width = word_bytes(refit.catalogue[tensor].dtype);
      Bytes words;
      std::vector<std::uint64_t> index(box.dims.size(), 0);
      for (std::uint64_t i = 0; i < box.words(); ++i) {
        std::uint64_t at = box.offset;
        std::uint64_t rest = i;
        for (std::size_t d = box.dims.size(); d-- > 0;) {
          at += rest % box.dims[d].size * box.dims[d].stride;
          rest /= box.dims[d].size;
        }
        const auto from = tensors[tensor].begin() + static_cast<std::ptrdiff_t>(at * width);
        words.insert(words.end(), from, from + static_cast<std::ptrdiff_t>(width));
      }
      of_owner.push_back(tensor_digest(words));
    }
  }
  return digests;
}

void expect_baseline(TestOwnerRefit* refit, std::uint64_t version, const Tensors& expected,
                     const std::string& where) {
  const Result<Restored> restored = restore(refit, version);
  ASSERT_TRUE(restored.ok()) << where << ": " << restored.status().message();
  ASSERT_TRUE(restored->tensors == expected) << where;
  const Result<Restored> again = restore(refit, version);
  ASSERT_TRUE(again.ok() && again->payloads == restored->payloads) << where;
  const auto digests = refit->group->baseline_digests(version);
  ASSERT_TRUE(digests.ok()) << where << ": " << digests.status().message();
  ASSERT_TRUE(*digests == naive_digests(*refit, expected)) << where;
  EXPECT_EQ(restore(refit, version + 1).status().code(), Code::kMismatch) << where;
  EXPECT_EQ(refit->group->baseline_digests(version + 1).status().code(), Code::kMismatch) << where;
}

// Whatever the weights are meanwhile, restores send the committed bits, and an attempt that is
// prepared stays what it is.
void run_restores(std::uint64_t seed, const std::string& arena) {
  const std::string where = "seed " + std::to_string(seed);
  RandomRefit random(seed, seed % 2 == 1);
  TestOwnerRefit& refit = random.refit;
  OwnerOptions options;
  options.bucket_bytes = std::array<std::uint64_t, 3>{1, 500, 1 << 20}[random.prng().below(3)];
  options.chunk_bytes = std::array<std::uint64_t, 2>{1, 1 << 20}[random.prng().below(2)];
  ASSERT_TRUE(refit.start(static_cast<unsigned>(1 + random.prng().below(3)), options, arena).ok());
  EXPECT_EQ(restore(&refit, 0).status().code(), Code::kMismatch) << where;
  ASSERT_TRUE(refit.group->initialize(0).ok());
  const Tensors base = refit.dense();
  expect_baseline(&refit, 0, base, where + ", base");
  random.change();
  const Tensors target = refit.dense();
  expect_baseline(&refit, 0, base, where + ", changed");
  ASSERT_TRUE(refit.prepare(attempt_of(1, 1, 0)).ok());
  const std::vector<Bytes> payloads = refit.all_payloads();
  expect_baseline(&refit, 0, base, where + ", prepared");
  refit.group->drop_attempt();
  ASSERT_TRUE(refit.prepare(attempt_of(1, 1, 0)).ok());
  ASSERT_TRUE(refit.all_payloads() == payloads) << where;
  expect_baseline(&refit, 0, base, where + ", prepared again");
  const Status committed = refit.group->commit(1);
  ASSERT_TRUE(committed.ok()) << where << ": " << committed.message();
  expect_baseline(&refit, 1, target, where + ", committed");
}

TEST(Baseline, RestoresSendTheCommittedBits) {
  const TempDirectory directory;
  for (std::uint64_t seed = 0; seed < campaign_cases(400); ++seed) {
    const bool in_file = seed % 8 == 0;
    run_restores(seed, in_file ? directory.at("arena") + std::to_string(seed) : "");
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Baseline, NeedsAsManySinksAsOwners) {
  RandomRefit random(1, true);
  ASSERT_TRUE(random.refit.start().ok());
  ASSERT_TRUE(random.refit.group->initialize(0).ok());
  EXPECT_EQ(random.refit.group->restore({}, {}).status().code(), Code::kInvalidArgument);
}

// Cancels a prepare after so many steps of progress, be that in the scan or between rounds of
// conversion.
void cancel_at(std::uint64_t seed, std::uint64_t step) {
  const std::string where = "seed " + std::to_string(seed) + ", step " + std::to_string(step);
  RandomRefit random(seed, true);
  TestOwnerRefit& refit = random.refit;
  CancelToken cancel;
  std::uint64_t steps = step;  // none are counted before the prepare
  OwnerOptions options;
  options.bucket_bytes = 500;
  options.chunk_bytes = 1;
  options.cancel = &cancel;
  options.progress = [&](const char*, std::uint64_t) {
    if (++steps == step) cancel.cancel();
  };
  ASSERT_TRUE(refit.start(2, options).ok());
  ASSERT_TRUE(refit.group->initialize(0).ok());
  const Tensors base = refit.dense();
  random.change();
  const Tensors target = refit.dense();
  steps = 0;
  const auto prepared = refit.prepare(attempt_of(1, 1, 0));
  steps = step;
  if (cancel.cancelled()) {
    // The last step may be too late to matter.
    const Code code = prepared.ok() ? Code::kCancelled : prepared.status().code();
    ASSERT_EQ(code, Code::kCancelled) << where;
    refit.group->drop_attempt();
    cancel.reset();
  }
  expect_baseline(&refit, 0, base, where);
  Attempt retry = attempt_of(2, 1, 0);
  retry.mode = AttemptMode::kOverwrite;
  const auto again = refit.prepare(retry);
  ASSERT_TRUE(again.ok()) << where << ": " << again.status().message();
  Tensors found = base;
  refit.apply(&found);
  ASSERT_TRUE(found == target) << where;
  ASSERT_TRUE(refit.group->commit(1).ok()) << where;
  expect_baseline(&refit, 1, target, where);
}

TEST(Baseline, AGroupIsUsableAfterAPrepareThatWasCancelled) {
  for (std::uint64_t seed = 0; seed < campaign_cases(300); ++seed) {
    cancel_at(seed, 1 + seed % 17);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace dcr
