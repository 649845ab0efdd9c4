#include "layout/group.h"

#include <gtest/gtest.h>

#include "tests/support/test_memory.h"

namespace dcr {
namespace {

// Groups that lie across each other in the catalogue, members against its order, and in between
// what no rank has.
TEST(Group, MembersAreInTheOrderOfTheRule) {
  const Catalogue catalogue = test_catalogue({{"a.0", Dtype::kU8, {4}, 0},
                                              {"a.1", Dtype::kU8, {4}, 0},
                                              {"aa.0", Dtype::kU8, {4}, 0},
                                              {"aa.1", Dtype::kU8, {4}, 0},
                                              {"b.0", Dtype::kU8, {4}, 0},
                                              {"b.1", Dtype::kU8, {4}, 0}});
  const Result<Layout> layout = parse_receiver_layout(R"({"format": 0, "ranks": 1, "rules": [
      {"match": ["b.{i}", "a.{i}"], "name": "ab.{i}", "class": "gated"},
      {"match": "aa.{i}", "class": "none"}]})");
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  const Result<std::vector<LayoutGroup>> groups = make_groups(catalogue, *layout);
  ASSERT_TRUE(groups.ok()) << groups.status().message();
  ASSERT_EQ(groups->size(), 4u);
  const auto index = [&](const char* name) {
    return static_cast<std::uint32_t>(catalogue.find(name));
  };
  using Members = std::vector<std::uint32_t>;
  EXPECT_EQ((*groups)[0].name, "ab.0");
  EXPECT_EQ((*groups)[0].members, (Members{index("b.0"), index("a.0")}));
  EXPECT_EQ((*groups)[1].name, "ab.1");
  EXPECT_EQ((*groups)[1].members, (Members{index("b.1"), index("a.1")}));
  EXPECT_EQ((*groups)[2].members, (Members{index("aa.0")}));
  EXPECT_EQ((*groups)[3].members, (Members{index("aa.1")}));
}

}  // namespace
}  // namespace dcr
