#include "source/owner_group.h"

#include <gtest/gtest.h>

#include "source/test_random_refit.h"
#include "tests/support/campaign.h"
#include "tests/support/temp_directory.h"

namespace dcr {
namespace {

std::vector<Need> random_needs(RandomRefit* random) {
  std::vector<Need> needs;
  if (random->prng().below(2) == 0) return needs;
  for (std::uint32_t i = 0; i < random->refit.catalogue.size(); ++i) {
    needs.push_back(static_cast<Need>(random->prng().below(4)));
  }
  return needs;
}

void expect_tensors(const TestOwnerRefit& refit, const Tensors& found, const Tensors& expected,
                    const std::vector<Need>& needs, const std::string& where) {
  for (std::uint32_t i = 0; i < refit.catalogue.size(); ++i) {
    if (!needs.empty() && needs[i] == Need::kSkip) continue;
    ASSERT_TRUE(found[i] == expected[i]) << where << ": tensor " << refit.catalogue[i].name;
  }
}

std::uint64_t different_words(const TestOwnerRefit& refit, const Tensors& a, const Tensors& b) {
  std::uint64_t words = 0;
  for (std::uint32_t i = 0; i < refit.catalogue.size(); ++i) {
    const std::size_t width = word_bytes(refit.catalogue[i].dtype);
    for (std::size_t at = 0; at < a[i].size(); at += width) {
      if (std::memcmp(a[i].data() + at, b[i].data() + at, width) != 0) ++words;
    }
  }
  return words;
}

// Several transitions of one random refit: each attempt's payloads, applied to the version before,
// give the dense export, bit by bit.
void run_transitions(std::uint64_t seed) {
  RandomRefit random(seed, seed % 2 == 1);
  TestOwnerRefit& refit = random.refit;
  Prng& prng = random.prng();
  OwnerOptions options;
  options.bucket_bytes = std::array<std::uint64_t, 3>{1, 500, 1 << 20}[prng.below(3)];
  options.chunk_bytes = std::array<std::uint64_t, 3>{1, 800, 1 << 20}[prng.below(3)];
  const Status started = refit.start(static_cast<unsigned>(1 + prng.below(3)), options);
  ASSERT_TRUE(started.ok()) << started.message();
  Status status = refit.group->initialize(7);
  ASSERT_TRUE(status.ok()) << status.message();
  Tensors resident = refit.dense();
  for (std::uint64_t version = 7; version < 10; ++version) {
    random.change();
    const Tensors target = refit.dense();
    const std::string where = "seed " + std::to_string(seed) + ", base " + std::to_string(version);
    Attempt attempt = attempt_of(1, version, version, static_cast<AttemptMode>(prng.below(3)));
    attempt.needs = random_needs(&random);
    attempt.mixed = static_cast<EncodingChoice>(prng.below(4));
    Result<std::vector<PrepareResult>> prepared = refit.prepare(attempt);
    ASSERT_TRUE(prepared.ok()) << prepared.status().message();
    Tensors found = resident;
    for (std::size_t i = 0; i < found.size(); ++i) {  // of what comes whole nothing is needed
      const bool whole = attempt.mode == AttemptMode::kDense ||
                         (!attempt.needs.empty() && attempt.needs[i] == Need::kDense);
      if (whole) std::fill(found[i].begin(), found[i].end(), std::uint8_t{0xcc});
    }
    refit.apply(&found);
    expect_tensors(refit, found, target, attempt.needs, where);
    std::uint64_t changed = 0;
    for (const PrepareResult& result : *prepared) {
      changed += result.changed_projected_words + result.changed_residual_words;
      EXPECT_EQ(result.mode, attempt.mode);
    }
    EXPECT_EQ(changed, different_words(refit, resident, target)) << where;
    if (prng.below(2) == 0) {  // a retry finds any subset of the changes written
      for (std::size_t i = 0; i < found.size(); ++i) {
        const std::size_t width = word_bytes(refit.catalogue[static_cast<std::uint32_t>(i)].dtype);
        for (std::size_t at = 0; at < found[i].size(); at += width) {
          if (prng.below(2) == 0) std::memcpy(&found[i][at], &resident[i][at], width);
        }
      }
      refit.group->drop_attempt();
      attempt.mode = AttemptMode::kOverwrite;
      attempt.attempt = 2;
      prepared = refit.prepare(attempt);
      ASSERT_TRUE(prepared.ok()) << prepared.status().message();
      refit.apply(&found);
      expect_tensors(refit, found, target, attempt.needs, where + ", retry");
    }
    for (int repeat = 0; repeat < 2; ++repeat) {
      status = refit.group->commit(version + 1);
      ASSERT_TRUE(status.ok()) << status.message();
    }
    resident = target;
  }
}

TEST(OwnerGroup, EveryAttemptGivesTheDenseExport) {
  for (std::uint64_t seed = 0; seed < campaign_cases(4000); ++seed) {
    run_transitions(seed);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Payload bytes depend on neither threads nor chunks nor memory nor where the baseline lies.
TEST(OwnerGroup, PayloadsDoNotDependOnHowTheyAreMade) {
  const TempDirectory directory;
  for (std::uint64_t seed = 100; seed < 100 + campaign_cases(20); ++seed) {
    std::vector<Bytes> reference;
    for (const unsigned variant : {0u, 1u, 2u, 3u, 4u}) {
      RandomRefit random(seed, true);
      OwnerOptions options;
      options.bucket_bytes = 700;
      if (variant == 1) options.chunk_bytes = 1;
      if (variant == 2) options.chunk_bytes = 2000;
      if (variant == 3) options.memory_bytes_max = kGiB;
      const std::string arena = variant == 4 ? directory.at("arena") + std::to_string(seed) : "";
      ASSERT_TRUE(random.refit.start(1 + variant, options, arena).ok());
      ASSERT_TRUE(random.refit.group->initialize(0).ok());
      random.change();
      ASSERT_TRUE(random.refit.prepare(attempt_of(1, 1, 0)).ok());
      if (variant == 0) reference = random.refit.all_payloads();
      ASSERT_TRUE(random.refit.all_payloads() == reference) << "seed " << seed << " " << variant;
    }
  }
}

TEST(OwnerGroup, ItemsDoNotDependOnTheBucket) {
  for (std::uint64_t seed = 200; seed < 200 + campaign_cases(20); ++seed) {
    std::vector<std::vector<PlainItem>> reference;
    for (const std::uint64_t bucket : {std::uint64_t{1}, std::uint64_t{900}, kGiB}) {
      RandomRefit random(seed, true);
      OwnerOptions options;
      options.bucket_bytes = bucket;
      ASSERT_TRUE(random.refit.start(2, options).ok());
      ASSERT_TRUE(random.refit.group->initialize(0).ok());
      random.change();
      ASSERT_TRUE(random.refit.prepare(attempt_of(1, 1, 0)).ok());
      std::vector<std::vector<PlainItem>> items;
      for (std::size_t i = 0; i < random.refit.sinks.size(); ++i) {
        items.push_back(random.refit.items(i));
      }
      if (reference.empty()) reference = items;
      ASSERT_TRUE(items == reference) << "seed " << seed << ", bucket " << bucket;
    }
  }
}

}  // namespace
}  // namespace dcr
