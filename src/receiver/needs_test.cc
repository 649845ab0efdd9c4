#include "receiver/needs.h"

#include <gtest/gtest.h>

#include <deque>

#include "receiver/test_refit.h"

namespace dcr {
namespace {

constexpr Need kNeeds[] = {Need::kSkip, Need::kAny, Need::kOverwrite, Need::kDense};

TEST(NeedsTest, TheStrongerOfEveryTwo) {
  for (std::size_t a = 0; a < std::size(kNeeds); ++a) {
    for (std::size_t b = 0; b < std::size(kNeeds); ++b) {
      std::vector<Need> needs = {kNeeds[a], Need::kDense, Need::kSkip};
      add_needs(std::vector<Need>{kNeeds[b], Need::kSkip, Need::kSkip}, &needs);
      EXPECT_EQ(needs[0], kNeeds[std::max(a, b)]);
      EXPECT_EQ(needs[1], Need::kDense);
      EXPECT_EQ(needs[2], Need::kSkip);
    }
  }
}

TEST(NeedsTest, OfClasses) {
  std::vector<TensorClass> classes(3);
  classes[0].need = Need::kOverwrite;
  classes[1] = {TensorPath::kDense, Need::kDense, false, "why"};
  EXPECT_EQ(needs_of(classes), (std::vector<Need>{Need::kOverwrite, Need::kDense, Need::kSkip}));
  EXPECT_TRUE(needs_of({}).empty());
}

// Two ranks of "w" and "u": the second one's loader of "w" talks to the first one.
class CollectivesTest : public testing::Test {
 public:
  struct Rank {
    TestRank model;
    std::unique_ptr<Receiver> receiver;
  };
  Catalogue catalogue;
  std::unique_ptr<Executor> executor = make_executor(1);
  Rank ranks[2];
  std::vector<Receiver*> receivers;

  void start(bool skips, bool opaque) {
    const Dtype dtype = opaque ? Dtype::kI8 : Dtype::kBF16;
    catalogue = make_catalogue({{"u", Dtype::kBF16, {4}}, {"w", dtype, {8}}});
    for (std::size_t number = 0; number < 2; ++number) {
      TestLoader& loader = ranks[number].model.loader;
      const TensorView u = loader.add_target("u", Dtype::kBF16, {4});
      loader.loads["u"] = [&loader, u](const TensorView& value,
                                       LoaderHook& hook) -> Result<LoadReport> {
        DCR_TRY(loader.copy(hook, u, value));
        return LoadReport::kLoaded;
      };
      if (number == 0 && skips) {
        loader.loads["w"] = [](const TensorView&, LoaderHook&) -> Result<LoadReport> {
          return LoadReport::kSkipped;
        };
      } else {
        const TensorView w = loader.add_target("w", dtype, {8});
        loader.loads["w"] = [&loader, w, number, opaque](const TensorView& value,
                                                         LoaderHook& hook) -> Result<LoadReport> {
          if (number == 1) DCR_TRY(loader.event(hook, LoaderEventKind::kCollective, value));
          if (number == 0 && opaque) {
            DCR_ASSIGN(const TensorView made,
                       loader.temporary(
                           value, [](std::uint64_t word, std::uint64_t) { return word ^ 0x80; }));
            DCR_TRY(loader.copy(hook, w, made));
          } else {
            DCR_TRY(loader.copy(hook, w, value));
          }
          return LoadReport::kLoaded;
        };
      }
      ReceiverOptions options;
      options.owners = {{{0, ItemBox::range(0, 4)}, {1, ItemBox::range(0, 8)}}};
      auto made = Receiver::create(catalogue, loader, ranks[number].model.memory, *executor,
                                   std::move(options));
      ASSERT_TRUE(made.ok()) << made.status().message();
      ranks[number].receiver = std::move(made).value();
      const Status status = ranks[number].receiver->prewarm();
      ASSERT_TRUE(status.ok()) << status.message();
      receivers.push_back(ranks[number].receiver.get());
    }
  }
};

TEST_F(CollectivesTest, AllRanksTakeTheScratchPath) {
  start(false, false);
  EXPECT_EQ(receivers[0]->classes()[1].path, TensorPath::kTraced);
  EXPECT_TRUE(receivers[1]->classes()[1].collective);
  ASSERT_TRUE(share_collectives(receivers).ok());
  for (const Receiver* receiver : receivers) {
    EXPECT_EQ(receiver->classes()[0].path, TensorPath::kTraced);
    EXPECT_EQ(receiver->classes()[1].path, TensorPath::kScratch);
  }
}

TEST_F(CollectivesTest, WhereARankSkipsItToo) {
  start(true, false);
  EXPECT_EQ(receivers[0]->classes()[1].path, TensorPath::kSkip);
  ASSERT_TRUE(share_collectives(receivers).ok());
  EXPECT_EQ(receivers[0]->classes()[1].path, TensorPath::kScratch);
}

TEST_F(CollectivesTest, TheRankThatCannotIsNamed) {
  start(false, true);
  EXPECT_EQ(share_collectives(receivers).message(),
            "receiver 0: tensor \"w\": its loader talks to other ranks, but here it cannot take "
            "the scratch path: the loader writes it by no plain copy");
}

TEST_F(CollectivesTest, ARankThatIsCalledAloneIsRefused) {
  start(false, false);
  EXPECT_TRUE(check_not_collective(*receivers[0]).ok());
  EXPECT_TRUE(check_not_refused(*receivers[1]).ok());
  const Status status = check_not_collective(*receivers[1]);
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_EQ(status.message(),
            "tensor \"w\" cannot be refitted exactly: its loader talks to other ranks");
  EXPECT_EQ(status.tensor(), "w");
}

TEST_F(CollectivesTest, OfNoRanks) { EXPECT_TRUE(share_collectives({}).ok()); }

}  // namespace
}  // namespace dcr
