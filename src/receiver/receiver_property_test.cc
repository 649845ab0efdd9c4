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
  bool compares = false;    // samples, before it applies
  unsigned threads = 1;
};

// Samples of the version that is resident and of the next one, whole: the comparison writes
// nothing, finds no difference where there is none, and those of traced tensors where there are
// some.
std::string compare_samples(std::uint64_t seed, const TestRefit& refit, TestRank* rank,
                            Receiver* receiver, bool new_differs) {
  const std::vector<Bytes> before = rank->parameters();
  const bool traced = std::all_of(
      receiver->classes().begin(), receiver->classes().end(), [](const TensorClass& one) {
        return one.path == TensorPath::kTraced || one.path == TensorPath::kSkip;
      });
  for (const bool other : {false, true}) {
    TestRefit sampled(seed);
    if (!other) sampled.new_words = refit.old_words;
    const AttemptHeader sample{{9}, 5, 4, 4};
    std::uint64_t different = 0;
    for (const SentPayload& payload : sampled.send(sample, receiver->classes(), true)) {
      for (const AttemptHeader& wrong : {AttemptHeader{{8}, 5, 4, 4}, AttemptHeader{{9}, 6, 4, 4},
                                         AttemptHeader{{9}, 5, 5, 5}}) {
        const auto refused = receiver->compare(payload.bytes, payload.header.owner, wrong);
        if (refused.status().code() != Code::kMismatch) return "a sample of something else";
      }
      const std::uint32_t owner = payload.header.owner;
      if (receiver->compare(payload.bytes, owner + 1, sample).status().code() != Code::kMismatch) {
        return "another owner's sample";
      }
      Bytes damaged = payload.bytes;
      damaged.back() ^= 1;
      if (receiver->compare(damaged, owner, sample).ok()) return "a damaged sample";
      const Result<ReceiverCounts> counts = receiver->compare(payload.bytes, owner, sample);
      if (!counts.ok()) return "compare: " + counts.status().message();
      if ((counts->different != 0) != counts->different_tensor.has_value()) return "no name";
      different += counts->different;
    }
    if (rank->parameters() != before) return "a comparison changed parameters";
    if (!other && different != 0) return "a difference where there is none";
    if (other && different != 0 && !new_differs) return "a difference where there is none";
    if (other && traced && different == 0 && new_differs) return "a difference was not seen";
  }
  return "";
}

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
  if (options.compares) {
    std::string fault =
        compare_samples(seed, refit, &rank, &receiver, before != dense.parameters());
    if (!fault.empty()) return fault;
  }
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

TEST(ReceiverPropertyTest, SamplesAreComparedWithinAnAttempt) {
  RefitOptions options;
  options.compares = true;
  campaign(1000, 800'000, options);
}

TEST(ReceiverPropertyTest, OnThreads) {
  RefitOptions options;
  options.threads = 3;
  campaign(300, 700'000, options);
}

}  // namespace
}  // namespace dcr
