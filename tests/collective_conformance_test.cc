#include "tests/collective_conformance.h"

#include <algorithm>

#include "source/local_collective.h"

namespace dcr {
namespace {

// Owners of one process: their group merges their flags, and nobody waits.
class LocalWorld final : public CollectiveWorld {
 public:
  LocalWorld() : ranks_(kRanks), sinks_(kRanks) {
    for (std::uint32_t i = 0; i < kRanks; ++i) {
      ranks_.connect(i, sinks_[i]);
      collectives_.push_back(std::make_unique<LocalCollective>(ranks_, i));
    }
  }
  Collective& rank(std::uint32_t number) override { return *collectives_[number]; }
  TestPartSink& sink(std::uint32_t number) override { return sinks_[number]; }
  void round(const Send& send, std::vector<Bytes>* flags) override {
    for (std::uint32_t i = 0; i < kRanks; ++i) EXPECT_TRUE(send(i, rank(i)).ok());
    Bytes merged((*flags)[0].size());
    for (const Bytes& of_rank : *flags) {
      for (std::size_t i = 0; i < merged.size(); ++i) merged[i] = std::max(merged[i], of_rank[i]);
    }
    EXPECT_TRUE(rank(0).all_reduce_flags(merged).ok());
    flags->assign(kRanks, merged);
  }

 private:
  LocalRanks ranks_;
  std::vector<TestPartSink> sinks_;
  std::vector<std::unique_ptr<LocalCollective>> collectives_;
};

// A process for each.
class ChannelWorld final : public CollectiveWorld {
 public:
  ChannelWorld() {
    ranks_.start_all();
    ranks_.begin_all({9, false});
  }
  Collective& rank(std::uint32_t number) override { return *ranks_.ranks[number]; }
  TestPartSink& sink(std::uint32_t number) override { return ranks_.sinks[number]; }
  void round(const Send& send, std::vector<Bytes>* flags) override {
    ranks_.on_all([&](std::uint32_t number) {
      // Nobody sends before all are ready for it.
      std::uint8_t ready = 0;
      Status status = rank(number).all_reduce_flags({&ready, 1});
      if (status.ok()) status = send(number, rank(number));
      EXPECT_TRUE(status.ok()) << status.message();
      status = rank(number).all_reduce_flags((*flags)[number]);
      EXPECT_TRUE(status.ok()) << status.message();
    });
  }

 private:
  CollectiveRanks ranks_{kRanks};
};

template <typename World>
std::unique_ptr<CollectiveWorld> make_world() {
  return std::make_unique<World>();
}

INSTANTIATE_TEST_SUITE_P(InProcess, CollectiveConformanceTest,
                         ::testing::Values(MakeCollectiveWorld{make_world<LocalWorld>}));
INSTANTIATE_TEST_SUITE_P(OverChannels, CollectiveConformanceTest,
                         ::testing::Values(MakeCollectiveWorld{make_world<ChannelWorld>}));

}  // namespace
}  // namespace dcr
