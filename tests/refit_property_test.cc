// Bit equality with a dense load for random layouts on both sides, random tensors, changes,
// encodings, buckets and attempts that fail half way: every byte of every receiver, padding and
// neighbours included.
//
// A failure prints its seed; DCR_SEED=n runs that one alone.
#include <gtest/gtest.h>

#include <cstdlib>

#include "dcr/refit.h"
#include "tests/random_refit.h"
#include "tests/support/campaign.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/test_checkpoint.h"

namespace dcr {
namespace {

// One random model through refit() itself. What went wrong, or nothing.
std::string refit_files(std::uint64_t seed) {
  Prng prng(seed);
  const RandomModel model(prng);
  RandomWords words(prng, model);
  MemoryFileSystem disk;
  const auto put = [&](const std::string& path) {
    TestCheckpoint checkpoint;
    checkpoint.directory = false;
    for (std::uint32_t t = 0; t < model.catalogue.size(); ++t) {
      const CanonicalTensor& tensor = model.catalogue[t];
      checkpoint.tensors[tensor.name] = {tensor.dtype, tensor.shape, words.tensors[t], 0};
    }
    disk.put(path, checkpoint.files(path)[path]);
  };
  put("old");
  words.change();
  put("new");
  disk.put("owners.json", text_bytes(model.owners));
  disk.put("receivers.json", text_bytes(model.receivers));
  RefitOptions options;
  options.files = &disk;
  options.owners.file = "owners.json";
  options.receivers.file = "receivers.json";
  options.threads = 1 + static_cast<unsigned>(prng.below(30) / 28);
  options.construction = static_cast<RefitConstruction>(prng.below(3));
  options.prefer_scratch = prng.below(4) == 0;
  options.verify = prng.below(8) == 0;
  options.post_apply_checks = prng.below(4) == 0;
  options.bucket_bytes = prng.below(2) == 0 ? 100 : std::uint64_t{1} << 20;
  const Result<RefitResult> result = refit("old", "new", options);
  const std::string text = "\n" + model.text();
  if (!result.ok()) return result.status().message() + text;
  if (result->differing_bytes != 0) return "differs: " + result->differing[0] + text;
  const bool changed = result->canonical_changed != 0 || options.verify;
  return changed || result->encodings.empty() || result->paths.contains("dense")
             ? ""
             : "something was sent of no change" + text;
}

// The seeds to run: `cases` of them from `first` on, or the one that DCR_SEED names.
std::pair<std::uint64_t, std::uint64_t> seeds(std::uint64_t first, std::uint64_t cases) {
  const char* seed = std::getenv("DCR_SEED");  // NOLINT(concurrency-mt-unsafe): one thread
  if (seed == nullptr) return {first, first + campaign_cases(cases)};
  const std::uint64_t only = std::strtoull(seed, nullptr, 10);
  return {only, only + 1};
}

TEST(RefitProperty, EveryByteIsADenseLoads) {
  const auto [first, last] = seeds(0, 20'000);
  for (std::uint64_t seed = first; seed < last; ++seed) {
    RandomRefit refit(seed);
    const std::string fault = refit.run();
    ASSERT_EQ(fault, "") << "DCR_SEED=" << seed << "\n" << refit.layouts();
  }
  if (last - first < 20'000) return;
  // All of it happened, and often.
  EXPECT_GT(seen_refits.commits, 2 * (last - first) - 1000);
  for (const std::uint64_t count :
       {seen_refits.partly, seen_refits.dropped, seen_refits.broken, seen_refits.verified,
        seen_refits.encodings["add"], seen_refits.encodings["xor"],
        seen_refits.encodings["overwrite"], seen_refits.paths["traced"],
        seen_refits.paths["scratch"], seen_refits.paths["dense"], seen_refits.paths["skip"]}) {
    EXPECT_GT(count, 3000U);
  }
}

TEST(RefitProperty, FilesToo) {
  const auto [first, last] = seeds(1'000'000, 2000);
  for (std::uint64_t seed = first; seed < last; ++seed) {
    ASSERT_EQ(refit_files(seed), "") << "DCR_SEED=" << seed;
  }
}

}  // namespace
}  // namespace dcr
