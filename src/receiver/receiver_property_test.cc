// Bit equality with a dense load, for random tensors, owners, loaders, changes and encodings.
#include <gtest/gtest.h>

#include "receiver/test_refit.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

struct RefitOptions {
  ReceiverOptions receiver;
  ApplyMode mode = ApplyMode::kWrite;
  bool everything = false;  // a dense refit
  unsigned threads = 1;
};

// What went wrong, or nothing.
std::string refit_once(std::uint64_t seed, RefitOptions options) {
  TestRefit refit(seed);
  TestRank dense, rank;
  refit.add_loads(&dense);
  refit.add_loads(&rank);
  Status status = load_dense(dense.loader, refit.catalogue, refit.new_words);
  const bool verify = options.mode == ApplyMode::kVerify;
  const bool other = verify && refit.random().below(2) == 0;  // verify what is another version
  if (status.ok()) {
    const auto& resident = verify && !other ? refit.new_words : refit.old_words;
    status = load_dense(rank.loader, refit.catalogue, resident);
  }
  if (!status.ok()) return status.message();
  const std::vector<Bytes> before = rank.parameters();
  options.receiver.owners = refit.boxes;
  const std::unique_ptr<Executor> executor = make_executor(options.threads);
  auto made =
      Receiver::create(refit.catalogue, rank.loader, rank.memory, *executor, options.receiver);
  if (!made.ok()) return made.status().message();
  Receiver& receiver = **made;
  status = receiver.prewarm();
  if (!status.ok()) return "prewarm: " + status.message();
  if (rank.parameters() != before) return "prewarm changed parameters";
  for (const TensorClass& one : receiver.classes()) {
    if (one.path == TensorPath::kRefused) return "refused: " + one.reason;
  }
  AttemptHeader attempt{{1, 2, 3}, 7, 4, 5, options.mode};
  status = receiver.begin_attempt(attempt);
  if (!status.ok()) return status.message();
  std::vector<SentPayload> sent = refit.send(attempt, receiver.classes(), options.everything);
  for (const SentPayload& payload : sent) {
    for (std::uint64_t times = 1 + refit.random().below(2); times > 0; --times) {
      const Result<Ingested> ingested = receiver.ingest(payload.bytes);
      if (!ingested.ok()) return "ingest: " + ingested.status().message();
    }
    const auto applied = receiver.apply();
    if (!applied.ok()) return "apply: " + applied.status().message();
  }
  for (std::uint32_t owner = 0; owner < refit.owners(); ++owner) {
    status = receiver.end_of_owner(owner, refit.payloads(owner));
    if (!status.ok()) return status.message();
  }
  const auto last = receiver.apply();
  if (!last.ok()) return "apply: " + last.status().message();
  const auto counts = receiver.finish();
  if (!counts.ok()) return "finish: " + counts.status().message();
  if (counts->payloads != sent.size()) return "another number of payloads";
  if (rank.memory.scratch_bytes() > rank.memory.scratch_bytes_peak()) return "scratch";
  if (verify) {
    if (rank.parameters() != before) return "verifying changed parameters";
    return (counts->different != 0) == (before != dense.parameters()) ? "" : "a wrong verdict";
  }
  return rank.parameters() == dense.parameters() ? "" : "parameters differ from a dense load";
}

void campaign(std::uint64_t cases, std::uint64_t first, const RefitOptions& options) {
  for (std::uint64_t seed = first; seed < first + campaign_cases(cases); ++seed) {
    const std::string fault = refit_once(seed, options);
    ASSERT_EQ(fault, "") << "seed " << seed;
  }
}

TEST(ReceiverPropertyTest, TracedEqualsDense) { campaign(10'000, 0, {}); }

TEST(ReceiverPropertyTest, ScratchEqualsDense) {
  RefitOptions options;
  options.receiver.prefer_scratch = true;
  campaign(5000, 100'000, options);
}

TEST(ReceiverPropertyTest, DenseRefits) {
  RefitOptions options;
  options.everything = true;
  campaign(1000, 200'000, options);
}

TEST(ReceiverPropertyTest, WithPostApplyChecks) {
  RefitOptions options;
  options.receiver.post_apply_checks = true;
  campaign(2000, 300'000, options);
  options.receiver.prefer_scratch = true;
  campaign(1000, 400'000, options);
}

TEST(ReceiverPropertyTest, VerifyWritesNothingAndSeesEveryDifference) {
  RefitOptions options;
  options.everything = true;
  options.mode = ApplyMode::kVerify;
  campaign(2000, 500'000, options);
  options.receiver.prefer_scratch = true;
  campaign(1000, 600'000, options);
}

TEST(ReceiverPropertyTest, OnThreads) {
  RefitOptions options;
  options.threads = 3;
  campaign(300, 700'000, options);
}

}  // namespace
}  // namespace dcr
