#include "receiver/rank_coverage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "base/prng.h"
#include "receiver/test_refit.h"

namespace dcr {
namespace {

using Texts = std::vector<std::string>;

constexpr const char* kMissing = ", which is missing";

Texts texts(const std::vector<UnevenTensor>& found) {
  Texts texts;
  for (const UnevenTensor& one : found) {
    texts.push_back(std::to_string(one.tensor) + ": " + one.reason + (one.missing ? kMissing : ""));
  }
  return texts;
}

RankShare traced(std::vector<PlacedBox> boxes) {
  return {TensorPath::kTraced, false, std::move(boxes)};
}

PlacedBox part(std::uint64_t offset,
               const std::vector<std::pair<std::uint64_t, std::uint64_t>>& dims) {
  PlacedBox box;
  box.word_bytes = 2;
  box.tensor_offset = offset;
  for (const auto& [size, stride] : dims) box.dimensions.push_back({size, stride, 1});
  return box;
}

// The shares of ranks of one tensor of 4 rows of 6.
Texts of_shares(std::vector<RankShare> shares) {
  const Catalogue catalogue = make_catalogue({{"w", Dtype::kBF16, {4, 6}}});
  std::vector<std::vector<RankShare>> ranks;
  ranks.reserve(shares.size());
  for (RankShare& share : shares) ranks.push_back({std::move(share)});
  return texts(uneven_tensors(catalogue, ranks));
}

TEST(RankCoverage, Shards) {
  const RankShare all = traced({part(0, {{24, 1}})});
  const RankShare top = traced({part(0, {{12, 1}})}), bottom = traced({part(12, {{12, 1}})});
  const RankShare left = traced({part(0, {{4, 6}, {3, 1}})});
  const RankShare right = traced({part(3, {{4, 6}, {3, 1}})});
  EXPECT_EQ(of_shares({}), Texts{});
  EXPECT_EQ(of_shares({all}), Texts{});
  EXPECT_EQ(of_shares({all, all, all}), Texts{});
  EXPECT_EQ(of_shares({top, bottom}), Texts{});
  EXPECT_EQ(of_shares({right, left}), Texts{});
  EXPECT_EQ(of_shares({top, bottom, top, bottom}), Texts{});
  EXPECT_EQ(of_shares({{}, all, {}}), Texts{});       // another stage's
  EXPECT_EQ(of_shares({all, top, bottom}), Texts{});  // not the same boxes, but as often
  EXPECT_EQ(of_shares({left, right, top, bottom}), Texts{});
  EXPECT_EQ(of_shares({traced({part(12, {{12, 1}}), part(0, {{12, 1}})}), all}), Texts{});
}

TEST(RankCoverage, WhatIsMissingOrUneven) {
  const RankShare all = traced({part(0, {{24, 1}})});
  const RankShare top = traced({part(0, {{12, 1}})}), bottom = traced({part(12, {{12, 1}})});
  const RankShare left = traced({part(0, {{4, 6}, {3, 1}})});
  EXPECT_EQ(of_shares({{}, {}}), Texts{"0: every rank's loader skips it"});
  EXPECT_EQ(of_shares({top}), Texts{"0: element 12 lies on no rank, which is missing"});
  EXPECT_EQ(of_shares({top, top}), Texts{"0: element 12 lies on no rank, which is missing"});
  EXPECT_EQ(of_shares({bottom, {}}), Texts{"0: element 0 lies on no rank, which is missing"});
  EXPECT_EQ(of_shares({left, top}), Texts{"0: element 15 lies on no rank, which is missing"});
  // Of which nothing is taken, as of one that is skipped.
  EXPECT_EQ(of_shares({traced({}), {}}), Texts{"0: element 0 lies on no rank"});
  EXPECT_EQ(of_shares({traced({part(5, {{0, 1}})})}), Texts{"0: element 0 lies on no rank"});
  EXPECT_EQ(of_shares({top, bottom, bottom}),
            Texts{"0: element 12 lies on 2 ranks, element 0 on 1 rank"});
  EXPECT_EQ(of_shares({all, left}), Texts{"0: element 3 lies on 1 rank, element 0 on 2 ranks"});
  EXPECT_EQ(of_shares({traced({part(0, {}), part(1, {{23, 1}})})}), Texts{});
}

TEST(RankCoverage, TwiceOnOneRankIsOnce) {
  EXPECT_EQ(of_shares({traced({part(0, {{24, 1}}), part(0, {{6, 1}})})}), Texts{});
}

TEST(RankCoverage, WhereElementsAreNotKnownNothingIsSaid) {
  const RankShare top = traced({part(0, {{12, 1}})});
  for (const TensorPath path : {TensorPath::kScratch, TensorPath::kDense, TensorPath::kRefused}) {
    EXPECT_EQ(of_shares({top, {path, false, {}}}), Texts{});
  }
  EXPECT_EQ(of_shares({top, {TensorPath::kSkip, true, {}}}), Texts{});
}

// A share of 4 rows of 6, with its dimensions in any order and some repeated, and which elements
// those are.
struct Drawn {
  std::vector<PlacedBox> boxes;
  std::vector<bool> has = std::vector<bool>(24);

  void add(Prng& prng, std::uint64_t row, std::uint64_t column, std::uint64_t rows,
           std::uint64_t columns) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> dims = {{rows, 6}, {columns, 1}};
    if (prng.below(3) == 0) dims.emplace_back(1 + prng.below(3), 0);
    if (prng.below(2) == 0) std::reverse(dims.begin(), dims.end());
    boxes.push_back(part(row * 6 + column, dims));
    for (std::uint64_t i = row; i < row + rows; ++i) {
      for (std::uint64_t j = column; j < column + columns; ++j) has[i * 6 + j] = true;
    }
  }
};

Drawn draw(Prng& prng) {
  Drawn drawn;
  switch (prng.below(4)) {
    case 0:
      drawn.add(prng, 0, 0, 4, 6);
      break;
    case 1:
      drawn.add(prng, prng.below(2) * 2, 0, 2, 6);
      break;
    case 2:
      drawn.add(prng, 0, prng.below(2) * 3, 4, 3);
      break;
    default:
      for (std::uint64_t i = prng.below(3); i > 0; --i) {
        const std::uint64_t row = prng.below(4), column = prng.below(6);
        drawn.add(prng, row, column, 1 + prng.below(4 - row), 1 + prng.below(6 - column));
      }
  }
  return drawn;
}

// By counting every element.
Texts expected(const std::vector<Drawn>& ranks) {
  std::vector<std::uint64_t> count(24);
  for (const Drawn& rank : ranks) {
    for (std::size_t i = 0; i < count.size(); ++i) count[i] += std::uint64_t{rank.has[i]};
  }
  const auto text = [](std::uint64_t one) {
    return std::to_string(one) + (one == 1 ? " rank" : " ranks");
  };
  const auto at = [&](auto found) { return "0: element " + std::to_string(found - count.begin()); };
  const auto missing = std::find(count.begin(), count.end(), 0U);
  if (missing != count.end()) {
    const bool taken = std::any_of(count.begin(), count.end(), [](auto one) { return one > 0; });
    return {at(missing) + " lies on no rank" + (taken ? kMissing : "")};
  }
  const auto other =
      std::find_if(count.begin(), count.end(), [&](auto one) { return one != count[0]; });
  if (other == count.end()) return {};
  return {at(other) + " lies on " + text(*other) + ", element 0 on " + text(count[0])};
}

TEST(RankCoverage, RandomShares) {
  Prng prng(1);
  std::size_t even = 0;
  for (unsigned round = 0; round < 20'000; ++round) {
    std::vector<Drawn> ranks;
    std::vector<RankShare> shares;
    for (std::uint64_t rank = 1 + prng.below(4); rank > 0; --rank) {
      const bool again = !ranks.empty() && prng.below(3) == 0;
      ranks.push_back(again ? ranks[prng.below(ranks.size())] : draw(prng));
      shares.push_back(traced(ranks.back().boxes));
    }
    const Texts texts = expected(ranks);
    even += std::size_t{texts.empty()};
    ASSERT_EQ(of_shares(shares), texts) << "round " << round;
  }
  EXPECT_GT(even, 1000U);
}

// As loaders that permute have them: no element is looked at.
TEST(RankCoverage, LargeAndTransposed) {
  constexpr std::uint64_t kSide = 1 << 16;
  const Catalogue catalogue = make_catalogue({{"w", Dtype::kU8, {kSide, kSide}}});
  const auto whole = std::vector<RankShare>{traced({part(0, {{kSide, kSide}, {kSide, 1}})})};
  const auto turned = std::vector<RankShare>{traced({part(0, {{kSide, 1}, {kSide, kSide}})})};
  const auto most = std::vector<RankShare>{traced({part(0, {{kSide, 1}, {kSide - 1, kSide}})})};
  using Ranks = std::vector<std::vector<RankShare>>;
  EXPECT_EQ(texts(uneven_tensors(catalogue, Ranks{whole, turned})), Texts{});
  EXPECT_EQ(texts(uneven_tensors(catalogue, Ranks{most})),
            Texts{"0: element 4294901760 lies on no rank, which is missing"});
  EXPECT_EQ(texts(uneven_tensors(catalogue, Ranks{turned, most})),
            Texts{"0: element 4294901760 lies on 1 rank, element 0 on 2 ranks"});
}

TEST(RankCoverage, WhatIsInTooManyPiecesIsSaid) {
  constexpr std::uint64_t kPieces = std::uint64_t{1} << 23;
  const Catalogue catalogue = make_catalogue({{"w", Dtype::kU8, {2 * kPieces}}});
  const auto every_second = [&](std::uint64_t first) {
    return std::vector<RankShare>{traced({part(first, {{kPieces, 2}})})};
  };
  using Ranks = std::vector<std::vector<RankShare>>;
  EXPECT_EQ(texts(uneven_tensors(catalogue, Ranks{every_second(0), every_second(1)})), Texts{});
  EXPECT_EQ(texts(uneven_tensors(catalogue, Ranks{every_second(0), every_second(0)})),
            Texts{"0: its elements lie on ranks in too many pieces to be counted"});
}

// One or two ranks of "a" [4], "b" [4] and "c" [0]; each loads the names that it is given, "b" to
// the bytes of "a" where that is given too.
Texts uneven(const std::vector<std::vector<std::string>>& loaded) {
  const Catalogue catalogue = make_catalogue(
      {{"a", Dtype::kBF16, {4}}, {"b", Dtype::kBF16, {4}}, {"c", Dtype::kBF16, {0}}});
  const std::unique_ptr<Executor> executor = make_executor(1);
  std::deque<TestRank> models(loaded.size());
  std::vector<std::unique_ptr<Receiver>> owned;
  std::vector<Receiver*> receivers;
  for (std::size_t rank = 0; rank < loaded.size(); ++rank) {
    TestLoader& loader = models[rank].loader;
    for (const char* name : {"a", "b", "c"}) {
      loader.loads[name] = [](const TensorView&, LoaderHook&) -> Result<LoadReport> {
        return LoadReport::kLoaded;  // which is no evidence
      };
    }
    const TensorView p =
        loaded[rank].empty() ? TensorView() : loader.add_target("p", Dtype::kBF16, {4});
    for (const std::string& name : loaded[rank]) {
      loader.loads[name] = [&loader, p](const TensorView& value,
                                        LoaderHook& hook) -> Result<LoadReport> {
        DCR_TRY(loader.copy(hook, p, value));
        return LoadReport::kLoaded;
      };
    }
    ReceiverOptions options;
    options.owners = {{{0, ItemBox::range(0, 4)}, {1, ItemBox::range(0, 4)}}};
    auto made = Receiver::create(catalogue, loader, models[rank].memory, *executor, options);
    EXPECT_TRUE(made.ok());
    EXPECT_TRUE((*made)->prewarm().ok());
    receivers.push_back(made->get());
    owned.push_back(std::move(made).value());
  }
  return texts(uneven_tensors(receivers));
}

TEST(RankCoverage, OfReceivers) {
  const std::string a = "0: every rank's loader skips it", b = "1: every rank's loader skips it";
  EXPECT_EQ(texts(uneven_tensors(std::span<Receiver* const>())), Texts{});
  EXPECT_EQ(uneven({{"a"}, {"b"}}), Texts{});
  EXPECT_EQ(uneven({{"a"}, {"a"}}), Texts{b});
  EXPECT_EQ(uneven({{"a"}, {}}), Texts{b});
  EXPECT_EQ(uneven({{}, {}}), (Texts{a, b}));
}

TEST(RankCoverage, TiedTensorsHaveAPlace) {
  EXPECT_EQ(uneven({{"a", "b"}}), Texts{});
  EXPECT_EQ(uneven({{"a", "b"}, {}}), Texts{});
}

}  // namespace
}  // namespace dcr
