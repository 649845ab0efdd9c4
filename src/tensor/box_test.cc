#include "tensor/box.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>
#include <set>
#include <utility>

#include "base/limits.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

// Cases per property. RC_PARAMS in the environment overrides it and gives the seed of a failure.
const int kConfigured =  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread runs before main
    ::setenv("RC_PARAMS", ("max_success=" + std::to_string(campaign_cases(2000))).c_str(), 0);

// Uniform in [low, high) from the first case on; RapidCheck's ranges begin small.
std::uint64_t pick(std::uint64_t low, std::uint64_t high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high));
}

using Pairs = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

// The map of a box by its definition, in the box's order.
Pairs pairs_of(const Box& box) {
  Pairs pairs = {{box.src_offset, box.dst_offset}};
  for (const BoxDimension& dim : box.dims) {
    Pairs next;
    for (const auto& [src, dst] : pairs) {
      for (std::uint64_t i = 0; i < dim.size; ++i) {
        next.emplace_back(src + i * dim.src_stride, dst + i * dim.dst_stride);
      }
    }
    pairs = std::move(next);
  }
  return pairs;
}

std::set<std::pair<std::uint64_t, std::uint64_t>> set_of(const std::vector<Box>& boxes) {
  std::set<std::pair<std::uint64_t, std::uint64_t>> set;
  for (const Box& box : boxes) {
    for (const auto& pair : pairs_of(box)) set.insert(pair);
  }
  return set;
}

bool injective(const Box& box) {
  std::set<std::uint64_t> seen;
  for (const auto& [src, dst] : pairs_of(box)) {
    if (!seen.insert(dst).second) return false;
  }
  return true;
}

// Strides for sizes that reach no index twice: each beyond the reach of the ones before, in a
// random order, exactly (as in a dense tensor) or with a gap.
std::vector<std::uint64_t> nested_strides(const std::vector<std::uint64_t>& sizes) {
  std::vector<std::size_t> order(sizes.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
    std::swap(order[i], order[pick(0, i + 1)]);
  }
  const bool dense = *rc::gen::arbitrary<bool>();
  std::vector<std::uint64_t> strides(sizes.size(), 1);
  std::uint64_t stride = dense ? 1 : pick(1, 4);
  for (const std::size_t i : order) {
    strides[i] = stride;
    stride *= std::max<std::uint64_t>(sizes[i], 1);
    if (!dense) stride += pick(0, 4);
  }
  return strides;
}

// Any strides, 0 included: the box may reach an index twice.
std::vector<std::uint64_t> free_strides(std::size_t rank) {
  std::vector<std::uint64_t> strides(rank);
  for (std::uint64_t& stride : strides) stride = pick(0, 12);
  return strides;
}

struct BoxKind {
  std::uint64_t size_min = 0;
  bool injective = true;
  std::uint64_t offset_max = 20;
};

Box any_box(BoxKind kind = {}) {
  std::vector<std::uint64_t> sizes(pick(0, 5));
  // Mostly 1 to 5; now and then the least, which makes an empty box if it is 0.
  for (std::uint64_t& size : sizes) {
    size = pick(0, 15) == 14 ? kind.size_min : pick(1, 6);
  }
  const auto src = nested_strides(sizes);
  const auto dst = kind.injective ? nested_strides(sizes) : free_strides(sizes.size());
  Box box;
  box.src_offset = pick(0, kind.offset_max);
  box.dst_offset = pick(0, kind.offset_max);
  for (std::size_t i = 0; i < sizes.size(); ++i) box.dims.push_back({sizes[i], src[i], dst[i]});
  if (!kind.injective) return box;
  // Sometimes strides that are injective without being nested: (2, 3), (3, 2).
  Box free = box;
  const auto strides = free_strides(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) free.dims[i].dst_stride = strides[i];
  for (BoxDimension& dim : free.dims) dim.dst_stride = std::max<std::uint64_t>(dim.dst_stride, 1);
  return injective(free) ? free : box;
}

std::uint64_t destinations(const std::vector<Box>& boxes) {
  std::uint64_t end = 0;
  for (const Box& box : boxes) {
    for (const auto& [src, dst] : pairs_of(box)) end = std::max(end, dst + 1);
  }
  return end;
}

RC_GTEST_PROP(BoxProperty, NormalizeKeepsTheMapAndItsOrder, ()) {
  const Box box = any_box({.injective = false});
  const Box normal = normalize(box);
  RC_ASSERT(pairs_of(normal) == pairs_of(box));
  RC_ASSERT(normalize(normal) == normal);
  RC_ASSERT(normal.elements() == box.elements());
  for (const BoxDimension& dim : normal.dims) {
    RC_ASSERT(dim.size > 1 || (dim.size == 0 && normal.dims.size() == 1));
  }
}

// A box cut into more dimensions normalizes to the same: the form is canonical.
RC_GTEST_PROP(BoxProperty, NormalizeIsCanonical, ()) {
  const Box normal = normalize(any_box({.size_min = 1}));
  Box cut = normal;
  cut.dims.clear();
  for (const BoxDimension& dim : normal.dims) {
    const std::uint64_t inner = pick(1, dim.size + 1);
    if (dim.size % inner == 0) {
      cut.dims.push_back({dim.size / inner, dim.src_stride * inner, dim.dst_stride * inner});
      cut.dims.push_back({inner, dim.src_stride, dim.dst_stride});
    } else {
      cut.dims.push_back(dim);
    }
    cut.dims.push_back({1, 77, 99});
  }
  RC_ASSERT(normalize(cut) == normal);
}

RC_GTEST_PROP(BoxProperty, InvertAfterMapIsTheIdentity, ()) {
  const Box box = any_box();
  RC_ASSERT(invert(invert(box)) == box);
  for (const auto& [src, dst] : pairs_of(box)) {
    RC_ASSERT(map_index(box, src) == std::optional(dst));
    RC_ASSERT(map_index(invert(box), dst) == std::optional(src));
  }
}

RC_GTEST_PROP(BoxProperty, MapIndexKnowsWhatIsOutside, ()) {
  const Box box = any_box();
  std::set<std::uint64_t> inside;
  for (const auto& [src, dst] : pairs_of(box)) inside.insert(dst);
  for (std::uint64_t index = 0; index < 200; ++index) {
    RC_ASSERT(map_index(invert(box), index).has_value() == (inside.count(index) == 1));
  }
}

RC_GTEST_PROP(BoxProperty, RunsAreMaximalAndCoverExactlyTheBox, ()) {
  const Box box = any_box({.injective = false});
  Pairs pairs;
  std::optional<Run> last;
  for_each_run(box, [&](const Run& run) {
    RC_ASSERT(run.length > 0);
    // Outside of RC_ASSERT, whose operators evaluate both sides.
    const bool joins_last =
        last && run.src == last->src + last->length && run.dst == last->dst + last->length;
    RC_ASSERT(!joins_last);
    for (std::uint64_t i = 0; i < run.length; ++i) pairs.emplace_back(run.src + i, run.dst + i);
    last = run;
    return true;
  });
  RC_ASSERT(pairs == pairs_of(box));
}

RC_GTEST_PROP(BoxProperty, SplitPiecesSumToTheWhole, ()) {
  const Box box = any_box({.injective = false});
  const auto most = pick(1, 40);
  Pairs pairs;
  for (const Box& piece : split(box, most)) {
    RC_ASSERT(piece.elements() > 0);
    RC_ASSERT(piece.elements() <= most);
    RC_ASSERT(normalize(piece) == piece);
    for (const auto& pair : pairs_of(piece)) pairs.push_back(pair);
  }
  RC_ASSERT(pairs == pairs_of(box));
}

RC_GTEST_PROP(BoxProperty, ComposeIsTheSequentialMap, ()) {
  const Box first = any_box();
  const Box second = invert(any_box());
  std::set<std::pair<std::uint64_t, std::uint64_t>> expected;
  for (const auto& [src, middle] : pairs_of(first)) {
    for (const auto& [from, dst] : pairs_of(second)) {
      if (from == middle) expected.emplace(src, dst);
    }
  }
  const auto boxes = compose(first, second, 100'000);
  RC_ASSERT(boxes.ok());
  std::uint64_t elements = 0;
  for (const Box& box : *boxes) {
    elements += box.elements();
    RC_ASSERT(box.dims.size() <= kRankMax);
    RC_ASSERT(normalize(box) == box);
    RC_ASSERT(validate_box(box, 100'000, 100'000).ok());  // no stride leads back
  }
  RC_CLASSIFY(expected.empty(), "nothing in common");
  RC_CLASSIFY(boxes->size() > 1, "several boxes");
  RC_ASSERT(set_of(*boxes) == expected);
  RC_ASSERT(elements == expected.size());  // nothing twice
  if (!boxes->empty()) {
    RC_ASSERT(compose(first, second, boxes->size()).ok());
    RC_ASSERT(compose(first, second, boxes->size() - 1).status().code() == Code::kUnsupported);
  }
}

// Permuted reshapes of one dense tensor: the strides divide each other, as in real layouts.
RC_GTEST_PROP(BoxProperty, ComposeOfDenseLayouts, ()) {
  const auto dense = [](const std::vector<std::uint64_t>& sizes) {
    Box box;
    std::uint64_t stride = 1;
    for (std::size_t i = sizes.size(); i-- > 0; stride *= sizes[i]) {
      box.dims.insert(box.dims.begin(), {sizes[i], stride, stride});
    }
    // The destination in another order of dimensions.
    const auto strides = nested_strides(sizes);
    for (std::size_t i = 0; i < sizes.size(); ++i) box.dims[i].dst_stride = strides[i];
    return box;
  };
  const Box first = dense({2, 3, 4, 2});
  const Box second = dense(*rc::gen::elementOf(std::vector<std::vector<std::uint64_t>>{
      {48}, {6, 8}, {2, 3, 4, 2}, {12, 4}, {4, 12}, {3, 16}, {2, 2, 2, 6}}));
  std::set<std::pair<std::uint64_t, std::uint64_t>> expected;
  for (const auto& [src, middle] : pairs_of(first)) {
    const auto dst = map_index(second, middle);
    if (dst) expected.emplace(src, *dst);
  }
  const auto boxes = compose(first, second, 48);
  RC_ASSERT(boxes.ok());
  RC_ASSERT(set_of(*boxes) == expected);
}

RC_GTEST_PROP(BoxProperty, DisjointAgainstABitmap, ()) {
  std::vector<Box> boxes(pick(0, 4));
  const bool free = pick(0, 4) == 0;
  for (Box& box : boxes) {
    box = any_box({.injective = !free,
                   .offset_max = *rc::gen::elementOf(std::vector<std::uint64_t>{10, 40, 400})});
  }
  std::vector<bool> bitmap(destinations(boxes));
  bool disjoint = true;
  for (const Box& box : boxes) {
    for (const auto& [src, dst] : pairs_of(box)) {
      disjoint = disjoint && !bitmap[dst];
      bitmap[dst] = true;
    }
  }
  RC_CLASSIFY(disjoint, "disjoint");
  RC_ASSERT(destinations_disjoint(boxes) == disjoint);
}

// What covers_exactly_once must say, from a count per element.
std::string expected_cover(const std::vector<Box>& boxes, std::uint64_t elements) {
  std::vector<unsigned> count(std::max(destinations(boxes), elements));
  for (const Box& box : boxes) {
    for (const auto& [src, dst] : pairs_of(box)) ++count[dst];
  }
  for (std::uint64_t i = 0; i < count.size(); ++i) {
    if (i < elements && count[i] == 0) return "element " + std::to_string(i) + " is not covered";
    if (i < elements && count[i] > 1) return "element " + std::to_string(i) + " is covered twice";
    if (i >= elements && count[i] > 0) {
      return "element " + std::to_string(i) + " is past the end at " + std::to_string(elements);
    }
  }
  return "";
}

// Pieces of a permuted dense tensor cover it; then one of them is spoilt.
RC_GTEST_PROP(BoxProperty, CoverAgainstABitmap, ()) {
  std::vector<std::uint64_t> sizes(pick(0, 4));
  for (std::uint64_t& size : sizes) size = pick(1, 6);
  Box whole;
  const auto strides = nested_strides(sizes);
  for (std::size_t i = 0; i < sizes.size(); ++i) whole.dims.push_back({sizes[i], 1, strides[i]});
  std::vector<Box> boxes = split(whole, pick(1, 30));
  if (!boxes.empty()) {
    Box& box = boxes[pick(0, boxes.size())];
    switch (pick(0, 5)) {
      case 0:
        box.dst_offset = pick(0, 20);
        break;
      case 1:
        if (!box.dims.empty()) box.dims[0].size -= 1;
        break;
      case 2:
        if (!box.dims.empty()) box.dims.back().dst_stride = pick(0, 9);
        break;
      default:
        break;  // nothing spoilt
    }
  }
  std::uint64_t elements = whole.elements();
  elements += *rc::gen::elementOf(std::vector<std::uint64_t>{0, 0, 0, 1, 5});
  const Status status = covers_exactly_once(boxes, elements);
  RC_CLASSIFY(status.ok(), "covers");
  RC_ASSERT(status.message() == expected_cover(boxes, elements));
  RC_ASSERT(status.code() == (status.message().empty() ? Code::kOk : Code::kMismatch));
}

constexpr std::uint64_t kRows = std::uint64_t{1} << 23;
constexpr std::uint64_t kColumns = std::uint64_t{1} << 23;

TEST(Box, Validate) {
  EXPECT_TRUE(validate_box({0, 0, {}}, 1, 1).ok());
  EXPECT_TRUE(validate_box({5, 7, {{0, 100, 100}}}, 1, 1).ok());
  EXPECT_TRUE(validate_box({2, 1, {{3, 4, 2}, {2, 1, 1}}}, 12, 7).ok());
  const auto expect = [](const Box& box, Code code, const std::string& message) {
    const Status status = validate_box(box, 12, 7);
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), message);
  };
  expect({3, 1, {{3, 4, 2}, {2, 1, 1}}}, Code::kCorrupt, "the box reaches source element 12 of 12");
  expect({2, 2, {{3, 4, 2}, {2, 1, 1}}}, Code::kCorrupt,
         "the box reaches destination element 7 of 7");
  expect({~std::uint64_t{0}, 0, {{2, 1, 1}}}, Code::kCorrupt,
         "the box reaches source element above 2^64 of 12");
  expect({0, 0, {{3, 1, std::uint64_t{1} << 63}}}, Code::kCorrupt,
         "the box reaches destination element above 2^64 of 7");
  expect({0, 0, std::vector<BoxDimension>(9)}, Code::kTooLarge,
         "the box has 9 dimensions, more than 8");
  const std::uint64_t big = std::uint64_t{1} << 32;
  expect({0, 0, {{big, 0, 0}, {big, 0, 0}}}, Code::kTooLarge,
         "the box has more than 281474976710655 elements");
  expect({0, 0, {{0, 0, 0}, {big, 0, 0}, {big, 0, 0}}}, Code::kTooLarge,
         "the box has more than 281474976710655 elements");
}

TEST(Box, NormalizeMerges) {
  EXPECT_EQ(normalize({3, 4, {{1, 9, 9}, {2, 12, 12}, {3, 4, 4}, {4, 1, 1}}}),
            (Box{3, 4, {{24, 1, 1}}}));
  // Contiguous on one side only: stays.
  EXPECT_EQ(normalize({0, 0, {{2, 4, 8}, {4, 1, 1}}}), (Box{0, 0, {{2, 4, 8}, {4, 1, 1}}}));
  EXPECT_EQ(normalize({3, 4, {{2, 1, 1}, {0, 5, 5}}}), (Box{0, 0, {{0, 1, 1}}}));
}

TEST(Box, ARunMayContinueOverACarry) {
  std::vector<dcr::Run> runs;
  for_each_run({0, 0, {{2, 4, 4}, {2, 3, 3}}}, [&runs](const dcr::Run& run) {
    runs.push_back(run);
    return true;
  });
  EXPECT_EQ(runs, (std::vector<dcr::Run>{{0, 0, 1}, {3, 3, 2}, {7, 7, 1}}));
  runs.clear();
  for_each_run({0, 0, {{2, 7, 7}, {2, 5, 5}, {2, 1, 1}}}, [&runs](const dcr::Run& run) {
    runs.push_back(run);
    return true;
  });
  EXPECT_EQ(runs, (std::vector<dcr::Run>{{0, 0, 2}, {5, 5, 4}, {12, 12, 2}}));
}

TEST(Box, RunsStopWhenTold) {
  int visits = 0;
  for_each_run({0, 0, {{kRows, 2, 2}}}, [&visits](const dcr::Run&) { return ++visits < 3; });
  EXPECT_EQ(visits, 3);
}

// None of these may take time in the number of elements.
TEST(Box, AHugeBoxWithOneRunCostsNothing) {
  const Box box{0, 0, {{kRows, kColumns, kColumns}, {kColumns, 1, 1}}};
  int visits = 0;
  for_each_run(box, [&](const dcr::Run& run) {
    EXPECT_EQ(run, (dcr::Run{0, 0, kRows * kColumns}));
    return ++visits > 0;
  });
  EXPECT_EQ(visits, 1);
  EXPECT_EQ(map_index(box, kRows * kColumns - 1), std::optional(kRows * kColumns - 1));
  EXPECT_EQ(map_index(box, kRows * kColumns), std::nullopt);
  // Transposed: as many runs as elements, but one set of destinations.
  const Box transposed{0, 0, {{kColumns, 1, kRows}, {kRows, kColumns, 1}}};
  EXPECT_TRUE(destinations_disjoint({transposed}));
  EXPECT_TRUE(covers_exactly_once({transposed}, kRows * kColumns).ok());
  EXPECT_TRUE(destinations_disjoint({{0, 0, {{kRows * kColumns, 1, 2}}}}));
}

// Column-parallel shards interleave row by row.
std::vector<Box> column_shards(std::uint64_t shards) {
  std::vector<Box> boxes;
  const std::uint64_t width = kColumns / shards;
  for (std::uint64_t i = 0; i < shards; ++i) {
    boxes.push_back({0, i * width, {{kRows, width, kColumns}, {width, 1, 1}}});
  }
  return boxes;
}

TEST(Box, ShardsOfAHugeTensorAreCheckedByTheirPattern) {
  std::vector<Box> boxes = column_shards(1 << 10);
  EXPECT_TRUE(destinations_disjoint(boxes));
  EXPECT_TRUE(covers_exactly_once(boxes, kRows * kColumns).ok());
  boxes[5].dst_offset += 1;
  EXPECT_FALSE(destinations_disjoint(boxes));
  EXPECT_EQ(covers_exactly_once(boxes, kRows * kColumns).message(), "element 40960 is not covered");
}

TEST(Box, ComposeSlicesAndPermutationsOfAHugeTensor) {
  const std::uint64_t width = kColumns / 8;
  // A shard of columns into the tensor, then rows 10 … 29 of the tensor somewhere else.
  const Box shard{0, 3 * width, {{kRows, width, kColumns}, {width, 1, 1}}};
  const Box rows{10 * kColumns, 500, {{20 * kColumns, 1, 1}}};
  auto boxes = compose(shard, rows, 1);
  ASSERT_TRUE(boxes.ok()) << boxes.status().message();
  EXPECT_EQ(
      *boxes,
      (std::vector<Box>{{10 * width, 500 + 3 * width, {{20, width, kColumns}, {width, 1, 1}}}}));
  // Then transposed.
  const Box transpose{0, 0, {{kRows, kColumns, 1}, {kColumns, 1, kRows}}};
  boxes = compose(shard, transpose, 1);
  ASSERT_TRUE(boxes.ok()) << boxes.status().message();
  EXPECT_EQ(*boxes,
            (std::vector<Box>{{0, 3 * width * kRows, {{kRows, width, 1}, {width, 1, kRows}}}}));
  // Every third element of every second: one progression.
  boxes = compose({0, 1, {{kRows, 1, 2}}}, {0, 7, {{kRows, 3, 5}}}, 1);
  ASSERT_TRUE(boxes.ok()) << boxes.status().message();
  EXPECT_EQ(*boxes, (std::vector<Box>{{1, 12, {{(kRows * 2 - 4) / 6 + 1, 3, 10}}}}));
  // A contiguous range that begins and ends within rows of a slice: the last 3 of the first row,
  // the first 5 of the last.
  boxes = compose({0, 5, {{(kRows - 1) * kColumns, 1, 1}}},
                  {0, 0, {{kRows, kColumns, 8}, {8, 1, 1}}}, 3);
  ASSERT_TRUE(boxes.ok()) << boxes.status().message();
  std::uint64_t elements = 0;
  for (const Box& box : *boxes) elements += box.elements();
  EXPECT_EQ(elements, 3 + (kRows - 2) * 8 + 5);
}

TEST(Box, ComposeSaysWhenItNeedsTooMuch) {
  // A transposed square against a row length that fits nothing: nearly every row by itself.
  const Box square{0, 0, {{1000, 1000, 1}, {1000, 1, 1000}}};
  const Box odd{0, 0, {{997, 1009, 1003}, {1001, 1, 1}}};
  const Status boxes = compose(square, odd, 10).status();
  EXPECT_EQ(boxes.code(), Code::kUnsupported);
  EXPECT_EQ(boxes.message(), "the composition of two boxes needs more than 10 boxes");
  // Few boxes, if any, but found index by index.
  const Box one{0, 0, {{kRows, 1, 2 * kColumns + 1}, {kColumns, 1, 2}}};
  const Box two{1, 0, {{kRows, 2 * kColumns - 3, 1}, {kColumns / 2, 2, 1}}};
  const Status steps = compose(one, two, std::size_t{1} << 40).status();
  EXPECT_EQ(steps.code(), Code::kUnsupported);
  EXPECT_EQ(steps.message(), "composing two boxes takes more than 1048576 steps");
}

TEST(Box, SplitTakesWholeRows) {
  const Box box{0, 0, {{5, 100, 200}, {10, 1, 1}}};
  const std::vector<Box> pieces = split(box, 25);
  EXPECT_EQ(pieces, (std::vector<Box>{{0, 0, {{2, 100, 200}, {10, 1, 1}}},
                                      {200, 400, {{2, 100, 200}, {10, 1, 1}}},
                                      {400, 800, {{10, 1, 1}}}}));
  EXPECT_EQ(split(box, 8).size(), 10U);
  EXPECT_EQ(split({3, 4, {}}, 1), (std::vector<Box>{{3, 4, {}}}));
  EXPECT_TRUE(split({3, 4, {{0, 1, 1}}}, 1).empty());
  const std::uint64_t rows = std::uint64_t{1} << 14;
  EXPECT_EQ(split({0, 0, {{rows, kColumns, kColumns}, {kColumns, 1, 1}}}, kItemElementsMax).size(),
            rows * kColumns / kItemElementsMax);
}

TEST(Box, CoverPastTheEnd) {
  const Box all{0, 0, {{3, 1, 1}}};
  EXPECT_EQ(covers_exactly_once({all}, 2).message(), "element 2 is past the end at 2");
  EXPECT_EQ(covers_exactly_once({all, {0, 5, {}}}, 3).message(), "element 5 is past the end at 3");
  EXPECT_EQ(covers_exactly_once({{0, 5, {}}}, 3).message(), "element 0 is not covered");
  // What is reached twice before the end comes first, whatever the order of the boxes.
  const Box long_box{0, 0, {{5, 1, 1}}};
  const Box short_box{0, 0, {{2, 1, 1}}};
  EXPECT_EQ(covers_exactly_once({short_box, long_box}, 3).message(), "element 0 is covered twice");
  EXPECT_EQ(covers_exactly_once({long_box, short_box}, 3).message(), "element 0 is covered twice");
  EXPECT_EQ(covers_exactly_once({long_box, {0, 1, {}}}, 3).message(), "element 1 is covered twice");
  EXPECT_EQ(covers_exactly_once({long_box, {0, 3, {}}}, 3).message(),
            "element 3 is past the end at 3");
}

TEST(Box, CoverOfNothing) {
  EXPECT_TRUE(covers_exactly_once({}, 0).ok());
  EXPECT_TRUE(covers_exactly_once({{0, 0, {{0, 1, 1}}}}, 0).ok());
  EXPECT_EQ(covers_exactly_once({}, 3).message(), "element 0 is not covered");
  EXPECT_EQ(covers_exactly_once({{0, 0, {}}}, 0).message(), "element 0 is past the end at 0");
  EXPECT_TRUE(destinations_disjoint({}));
}

// Quadratic would be 4 · 10^10 steps.
TEST(Box, ManyBoxes) {
  const std::uint64_t count = campaign_cases(200'000);
  std::vector<Box> boxes;
  for (std::uint64_t i = count; i-- > 0;) boxes.push_back({0, i * 3, {{3, 1, 1}}});
  EXPECT_TRUE(destinations_disjoint(boxes));
  EXPECT_TRUE(covers_exactly_once(boxes, count * 3).ok());
  boxes[count - 101].dst_offset -= 1;  // from 300 to 299
  EXPECT_FALSE(destinations_disjoint(boxes));
  EXPECT_EQ(covers_exactly_once(boxes, count * 3).message(), "element 299 is covered twice");
}

}  // namespace
}  // namespace dcr
