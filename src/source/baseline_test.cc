#include "source/baseline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

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

// What applying a sample makes of `tensors`; the words that it has.
std::uint64_t apply_sample(TestOwnerRefit* refit, const std::vector<Bytes>& samples,
                           Tensors* tensors) {
  std::vector<TestSink> attempt = std::move(refit->sinks);
  refit->sinks.assign(refit->all_ranks.size(), TestSink());
  for (std::size_t owner = 0; owner < samples.size(); ++owner) {
    if (samples[owner].empty()) continue;
    EXPECT_LE(samples[owner].size(), kSampleBytesMax);
    refit->sinks[owner].payloads.push_back(samples[owner]);
  }
  const Tensors before = *tensors;
  refit->apply(tensors);
  refit->sinks = std::move(attempt);
  std::uint64_t words = 0;
  for (std::uint32_t tensor = 0; tensor < before.size(); ++tensor) {
    const std::size_t width = word_bytes(refit->catalogue[tensor].dtype);
    for (std::size_t at = 0; at < before[tensor].size(); at += width) {
      const auto first = static_cast<std::ptrdiff_t>(at);
      const auto last = first + static_cast<std::ptrdiff_t>(width);
      if (!std::equal(before[tensor].begin() + first, before[tensor].begin() + last,
                      (*tensors)[tensor].begin() + first)) {
        ++words;
      }
    }
  }
  return words;
}

void run_samples(std::uint64_t seed, std::uint64_t* counted) {
  const std::string where = "seed " + std::to_string(seed);
  RandomRefit random(seed, seed % 2 == 1);
  TestOwnerRefit& refit = random.refit;
  OwnerOptions options;
  options.bucket_bytes = 1;
  ASSERT_TRUE(refit.start(1, options).ok());
  const RestoreHeader header{{}, 1, 0};
  EXPECT_EQ(refit.group->sample(header, seed).status().code(), Code::kMismatch) << where;
  ASSERT_TRUE(refit.group->initialize(0).ok());
  const Tensors base = refit.dense();
  random.change();
  ASSERT_TRUE(refit.prepare(attempt_of(1, 1, 0)).ok());
  const auto samples = refit.group->sample(header, seed);
  ASSERT_TRUE(samples.ok()) << where << ": " << samples.status().message();
  ASSERT_TRUE(*refit.group->sample(header, seed) == *samples) << where;
  Tensors same = base;
  EXPECT_EQ(apply_sample(&refit, *samples, &same), 0U) << where;
  ASSERT_TRUE(same == base) << where;
  // Over what is the base in no word: as many words as runs of whole pieces have, all of them
  // right.
  std::uint64_t expected = 0;
  for (const auto& owner : refit.owners) {
    std::vector<std::uint64_t> runs;
    for (const auto& [tensor, box] : owner->item_boxes()) {
      runs.push_back(std::min(kSampleWords, box.dims.empty() ? 1 : box.dims.back().size));
    }
    if (runs.size() > kSamplePieces) return;  // which ones is not known here
    for (const std::uint64_t run : runs) expected += run;
  }
  Tensors found = base;
  for (Bytes& tensor : found) {
    for (std::uint8_t& byte : tensor) byte = static_cast<std::uint8_t>(~byte);
  }
  EXPECT_EQ(apply_sample(&refit, *samples, &found), expected) << where;
  ++*counted;
}

TEST(Baseline, SamplesAreWordsOfIt) {
  std::uint64_t counted = 0;
  for (std::uint64_t seed = 0; seed < campaign_cases(400); ++seed) {
    run_samples(seed, &counted);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(counted, campaign_cases(400) / 4);
}

// Every word has its turn, and of many pieces so many are drawn, each once.
TEST(Baseline, ASampleMayBeOfAnyWord) {
  std::vector<BaselinePiece> pieces;
  for (std::uint64_t i = 0; i < 2 * kSamplePieces; ++i) {
    pieces.push_back({0, 2, {i * 1000, {{3, 300}, {2, 100}, {kSampleWords + 2, 1}}}, i * 4096});
  }
  std::set<std::uint64_t> words;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const std::vector<BaselinePiece> drawn = sample_pieces(pieces, seed);
    ASSERT_EQ(drawn.size(), kSamplePieces);
    std::set<std::uint64_t> of;
    for (const BaselinePiece& piece : drawn) {
      ASSERT_EQ(piece.box.words(), kSampleWords);
      const std::uint64_t index = piece.box.offset / 1000;
      const std::uint64_t within = piece.box.offset % 1000;
      ASSERT_EQ(piece.arena_offset,
                index * 4096 + 2 * ((within / 300 * 2 + within % 300 / 100) * (kSampleWords + 2) +
                                    within % 100));
      of.insert(index);
      for (std::uint64_t i = 0; i < kSampleWords; ++i) words.insert(piece.box.offset + i);
    }
    ASSERT_EQ(of.size(), kSamplePieces);
  }
  EXPECT_EQ(words.size(), pieces.size() * 6 * (kSampleWords + 2));
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
