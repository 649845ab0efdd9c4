// Owners of several processes, each with a group of its own, played by threads.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "source/owner_group.h"
#include "source/test_random_refit.h"

namespace dcr {
namespace {

// Ranks that wait for each other, as processes of a training cluster do.
class WaitingRanks {
 public:
  explicit WaitingRanks(std::uint32_t count) : locals(count) {}

  void reduce(std::span<std::uint8_t> flags) {
    std::unique_lock<std::mutex> lock(mutex_);
    const std::uint64_t round = round_;
    merged_.resize(flags.size(), 0);
    for (std::size_t i = 0; i < flags.size(); ++i) merged_[i] = std::max(merged_[i], flags[i]);
    if (++arrived_ == locals.count()) {
      result_ = std::exchange(merged_, {});
      arrived_ = 0;
      ++round_;
      wake_.notify_all();
    } else {
      wake_.wait(lock, [&] { return round_ != round; });
    }
    std::copy(result_.begin(), result_.end(), flags.begin());
  }

  LocalRanks locals;

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  Bytes merged_, result_;
  std::uint32_t arrived_ = 0;
  std::uint64_t round_ = 0;
};

class WaitingCollective final : public Collective {
 public:
  WaitingCollective(WaitingRanks& ranks, std::uint32_t rank)
      : ranks_(ranks), local_(ranks.locals, rank) {}
  std::uint32_t rank() const override { return local_.rank(); }
  std::uint32_t size() const override { return local_.size(); }
  Status all_reduce_flags(std::span<std::uint8_t> flags) override {
    ranks_.reduce(flags);
    return {};
  }
  Status send_part(std::uint32_t to, const PartHeader& header,
                   std::span<const std::uint8_t> bytes) override {
    return local_.send_part(to, header, bytes);
  }

 private:
  WaitingRanks& ranks_;
  LocalCollective local_;
};

struct LoneRank {
  std::unique_ptr<Owner> owner;
  std::unique_ptr<WaitingCollective> collective;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<OwnerGroup> group;
};

// One group per rank, each on a thread of its own, makes the payloads that one group of all makes;
// and where one rank fails, all end.
TEST(OwnerRanks, AGroupPerRank) {
  for (std::uint64_t seed = 301; seed < 311; seed += 2) {
    RandomRefit random(seed, true);
    TestOwnerRefit& refit = random.refit;
    OwnerOptions options;
    options.bucket_bytes = 700;
    ASSERT_TRUE(refit.start(1, options).ok());
    ASSERT_TRUE(refit.group->initialize(0).ok());
    WaitingRanks ranks(static_cast<std::uint32_t>(refit.all_ranks.size()));
    std::vector<LoneRank> lone(refit.all_ranks.size());
    for (std::size_t r = 0; r < lone.size(); ++r) {
      const auto rank = static_cast<std::uint32_t>(r);
      lone[r].collective = std::make_unique<WaitingCollective>(ranks, rank);
      OwnerInput input = refit.all_ranks[r].input;
      input.collective = lone[r].collective.get();
      lone[r].owner = Owner::create(refit.geometry, input, "").value();
      ranks.locals.connect(rank, lone[r].owner->residual());
      lone[r].executor = make_executor(2);
      lone[r].group = OwnerGroup::create({lone[r].owner.get()}, *lone[r].executor, options).value();
    }
    const auto on_all = [&](const std::function<void(std::size_t)>& body) {
      std::vector<std::thread> threads;
      for (std::size_t r = 0; r < lone.size(); ++r) threads.emplace_back(body, r);
      for (std::thread& thread : threads) thread.join();
    };
    on_all([&](std::size_t r) { EXPECT_TRUE(lone[r].group->initialize(0).ok()); });
    random.change();
    ASSERT_TRUE(refit.prepare(attempt_on(1, AttemptMode::kMixed)).ok());
    const std::vector<Bytes> reference = refit.all_payloads();
    refit.sinks.assign(lone.size(), TestSink());
    on_all([&](std::size_t r) {
      PayloadSink* const sink = &refit.sinks[r];
      EXPECT_TRUE(lone[r].group->prepare(attempt_on(1, AttemptMode::kMixed), {&sink, 1}).ok());
      EXPECT_TRUE(lone[r].group->commit(1).ok());
    });
    ASSERT_TRUE(refit.all_payloads() == reference) << seed;
    if (lone.size() == 1) continue;
    refit.all_ranks[0].converters[0]->body = [](std::uint64_t, std::uint64_t, std::uint64_t,
                                                std::span<std::uint8_t>) {
      return Status(Code::kIo, "no scale");
    };
    on_all([&](std::size_t r) {
      refit.sinks[r] = TestSink();
      PayloadSink* const sink = &refit.sinks[r];
      const auto failed = lone[r].group->prepare(attempt_on(2, AttemptMode::kDense), {&sink, 1});
      EXPECT_EQ(failed.status().message(), r == 0 ? "owner 0: converter \"made.9\": no scale"
                                                  : "another owner failed; its error says why");
    });
  }
}

}  // namespace
}  // namespace dcr
