#include "receiver/plan.h"

#include <gtest/gtest.h>

#include <optional>

#include "base/prng.h"
#include "receiver/grid.h"
#include "receiver/index_map.h"
#include "receiver/ownership.h"
#include "receiver/test_refit.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

// Canonical words to words of a storage, drawn without regard for anything but injectivity.
std::vector<Place> random_places(Prng& random, const Shape& shape) {
  const Shape strides = row_major(shape);
  std::vector<Place> places;
  for (std::uint64_t count = 1 + random.below(3); count > 0; --count) {
    Place place;
    place.storage = count;
    std::vector<std::size_t> order(shape.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    std::uint64_t stride = 1 + random.below(2);
    place.box.dst_offset = random.below(9);
    for (const std::size_t dim : order) {
      const std::uint64_t begin = random.below(shape[dim]);
      const std::uint64_t step = 1 + random.below(2);
      const std::uint64_t size = 1 + random.below((shape[dim] - begin - 1) / step + 1);
      place.box.src_offset += begin * strides[dim];
      place.box.dims.insert(place.box.dims.begin(), {size, step * strides[dim], stride});
      stride *= size + random.below(2);
    }
    places.push_back(place);
  }
  return places;
}

TEST(PlanTest, EveryPositionGoesWhereItsPlacesSay) {
  for (std::uint64_t seed = 0; seed < campaign_cases(10'000); ++seed) {
    Prng random(seed);
    Shape shape;
    for (std::uint64_t rank = 1 + random.below(3); rank > 0; --rank) {
      shape.push_back(1 + random.below(10));
    }
    const std::vector<Place> places = random_places(random, shape);
    const std::size_t dim = random.below(shape.size());
    const std::uint64_t begin = random.below(shape[dim]);
    std::vector<ItemBox> boxes = cut_box(
        part_box(shape, dim, begin, 1 + random.below(shape[dim] - begin)), 1 + random.below(50));
    if (random.below(2) == 0) {  // ranges that are cut anywhere
      std::uint64_t words = 1;
      for (const std::uint64_t size : shape) words *= size;
      const std::uint64_t from = random.below(words);
      boxes = {ItemBox::range(from, 1 + random.below(words - from))};
    }
    for (const ItemBox& box : boxes) {
      const auto plan = plan_item(box, places);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      const std::vector<std::uint64_t> canonical = box_indices(box);
      std::vector<std::pair<std::uint64_t, std::uint64_t>> wanted, found;  // storage, word
      for (std::uint32_t position = 0; position < canonical.size(); ++position) {
        wanted.clear();
        found.clear();
        for (const Place& place : places) {
          const auto word = map_index(place.box, canonical[position]);
          if (word) wanted.emplace_back(place.storage, *word);
        }
        for (const TargetChanges& target : *plan) {
          ASSERT_TRUE(check_target(target, 1 << 20).ok());
          GridHits hits;
          Grid(target).map({&position, 1}, &hits);
          for (std::size_t i = 0; i < hits.count; ++i) {
            found.emplace_back(target.storage, hits.words[i]);
          }
        }
        std::sort(wanted.begin(), wanted.end());
        std::sort(found.begin(), found.end());
        ASSERT_EQ(found, wanted) << "seed " << seed << " position " << position;
      }
    }
  }
}

// Elements may repeat, also within one box of a list.
TEST(PlanTest, ListsOfIndices) {
  for (std::uint64_t seed = 0; seed < campaign_cases(3000); ++seed) {
    Prng random(seed);
    const std::uint64_t words = 1 + random.below(40);
    std::vector<std::uint64_t> list(1 + random.below(40));
    const std::uint64_t step = random.below(4);
    for (std::size_t e = 0; e < list.size(); ++e) {
      list[e] = random.below(6) == 0 || e == 0 ? random.below(words) : (list[e - 1] + step) % words;
    }
    std::vector<Place> places;
    for (const Box& box : boxes_of_indices(list)) places.push_back({0, 2, box});
    const std::uint64_t first = random.below(words);
    const ItemBox item = ItemBox::range(first, 1 + random.below(words - first));
    const auto plan = plan_item(item, places);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    for (std::uint32_t position = 0; position < item.words(); ++position) {
      std::vector<std::uint64_t> wanted, found;
      for (std::size_t e = 0; e < list.size(); ++e) {
        if (list[e] == first + position) wanted.push_back(e);
      }
      for (const TargetChanges& target : *plan) {
        GridHits hits;
        Grid(target).map({&position, 1}, &hits);
        found.insert(found.end(), hits.words, hits.words + hits.count);
      }
      std::sort(found.begin(), found.end());
      ASSERT_EQ(found, wanted) << "seed " << seed << " position " << position;
    }
  }
}

TEST(PlanTest, RowsThatAnItemCutsAreOneTarget) {
  // 100 columns of which this rank has [25, 50); the item starts in the middle of a row.
  const Place place = {0, 2, {25, 0, {{10, 100, 25}, {25, 1, 1}}}};
  const auto plan = plan_item(ItemBox::range(137, 500), {&place, 1});
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->size(), 2u);  // the cut row, and the others
  EXPECT_EQ(window_words((*plan)[0]) + window_words((*plan)[1]), 125u);
}

TEST(PlanTest, TheCommonCasesAreOneTargetEach) {
  const Place whole = {0, 2, {0, 0, {{1'000'000, 1, 1}}}};
  EXPECT_EQ(plan_item(ItemBox::range(137, 500), {&whole, 1})->size(), 1u);
  const Place rows = {0, 2, {500'000, 0, {{1000, 1, 1}}}};
  EXPECT_EQ(plan_item(ItemBox::range(500'500, 100'000), {&rows, 1})->size(), 1u);
  EXPECT_EQ(plan_item(ItemBox::range(0, 100'000), {&rows, 1})->size(), 0u);
  const Place columns = {0, 2, {250, 0, {{1000, 1000, 125}, {125, 1, 1}}}};
  EXPECT_EQ(plan_item(ItemBox::range(1000, 500'000), {&columns, 1})->size(), 1u);
  // Another rank's columns.
  const ItemBox other = {375, {{1000, 1000}, {125, 1}}};
  EXPECT_EQ(plan_item(other, {&columns, 1})->size(), 0u);
  const ItemBox both = {300, {{1000, 1000}, {125, 1}}};
  EXPECT_EQ(plan_item(both, {&columns, 1})->size(), 1u);
}

TEST(PlanTest, TheCacheGivesTheSamePlanAndStaysBounded) {
  PlanCache cache(2000);
  const Place whole = {0, 2, {0, 0, {{1000, 1, 1}}}};
  const auto first = cache.find(3, ItemBox::range(10, 20), {&whole, 1});
  const auto again = cache.find(3, ItemBox::range(10, 20), {&whole, 1});
  EXPECT_EQ(first.value(), again.value());
  for (std::uint64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(cache.find(4, ItemBox::range(i, 20), {&whole, 1}).ok());
    ASSERT_LE(cache.bytes(), 2000u);
  }
  EXPECT_EQ((**first)[0].dims[0].begin, 0u);
  EXPECT_EQ((**first)[0].offset, 10u);
}

TEST(IndexMapTest, BoxesGiveTheListBack) {
  for (std::uint64_t seed = 0; seed < campaign_cases(3000); ++seed) {
    Prng random(seed);
    std::vector<std::uint64_t> indices;
    const std::uint64_t kind = random.below(3);
    if (kind == 0) {
      for (std::uint64_t i = random.below(50); i > 0; --i) indices.push_back(random.below(30));
    } else {
      Shape shape = {1 + random.below(5), 1 + random.below(6), 1 + random.below(7)};
      for (std::uint64_t i = 0; i < shape[0]; ++i) {
        for (std::uint64_t j = 0; j < shape[1]; ++j) {
          for (std::uint64_t k = 0; k < shape[2]; ++k) {
            indices.push_back(kind == 1 ? 3 + k * 100 + j * 10 + i : i + 700 * j + k);
          }
        }
      }
    }
    const std::vector<Box> boxes = boxes_of_indices(indices);
    std::vector<int> seen(indices.size(), 0);
    for (const Box& box : boxes) {
      EXPECT_TRUE(injective(box));
      for_each_run(box, [&](const dcr::Run& run) {
        for (std::uint64_t i = 0; i < run.length; ++i) {
          EXPECT_EQ(indices[run.dst + i], run.src + i);
          ++seen[run.dst + i];
        }
        return true;
      });
    }
    ASSERT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<std::ptrdiff_t>(indices.size()));
    ASSERT_TRUE(kind != 1 || boxes.size() == 1) << "seed " << seed;
  }
}

}  // namespace
}  // namespace dcr
