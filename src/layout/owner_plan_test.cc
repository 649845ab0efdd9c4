#include "layout/owner_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/limits.h"
#include "base/prng.h"
#include "layout/shard.h"
#include "layout/test_random_layout.h"
#include "tensor/cast.h"
#include "tests/support/campaign.h"
#include "tests/support/test_allocations.h"
#include "tests/support/test_memory.h"

namespace dcr {
namespace {

OwnerPlan make_plan(const Catalogue& catalogue, const std::string& json) {
  Result<Layout> layout = parse_owner_layout(json);
  EXPECT_TRUE(layout.ok()) << layout.status().message() << "\n" << json;
  if (!layout.ok()) return {};
  Result<OwnerPlan> plan = OwnerPlan::make(catalogue, std::move(layout).value());
  EXPECT_TRUE(plan.ok()) << plan.status().message() << "\n" << json;
  return plan.ok() ? std::move(plan).value() : OwnerPlan();
}

// Local word → (canonical tensor, word), expanded from the boxes.
std::map<std::uint64_t, std::pair<std::uint32_t, std::uint64_t>> expand(const Placement& parts) {
  std::map<std::uint64_t, std::pair<std::uint32_t, std::uint64_t>> made;
  for (const PlacementPart& part : parts) {
    for_each_run(part.box, [&](const Run& run) {
      for (std::uint64_t i = 0; i < run.length; ++i) {
        EXPECT_TRUE(made.emplace(run.src + i, std::pair(part.destination, run.dst + i)).second);
      }
      return true;
    });
  }
  return made;
}

// Random layouts: every task maps what the formulas say, and over all ranks every canonical element
// is held exactly once, replicas counted once.
TEST(OwnerPlan, TasksAreTheFormulas) {
  Prng prng(21);
  for (std::uint64_t round = 0; round < campaign_cases(1500); ++round) {
    const RandomLayout random = random_layout(prng, false);
    SCOPED_TRACE("round " + std::to_string(round) + "\n" + random.json);
    const OwnerPlan plan = make_plan(random.catalogue, random.json);
    ASSERT_EQ(plan.ranks(), random.ranks);
    std::vector<std::vector<ConversionTask>> tasks;
    std::set<std::pair<std::uint32_t, std::uint64_t>> covered;
    std::set<std::string> seen;
    for (std::uint32_t rank = 0; rank < plan.ranks(); ++rank) {
      OwnerRank made = plan.rank(random.catalogue, rank);
      std::map<std::string, const ConversionTask*> by_name;
      for (std::size_t i = 0; i < made.tasks.size(); ++i) {
        const ConversionTask& task = made.tasks[i];
        by_name[task.name.substr(0, task.name.find('/'))] = &task;
        EXPECT_EQ(task.view.storage, i);
        EXPECT_EQ(made.storage_bytes[i], view_words(task.view) * word_bytes(task.view.dtype));
      }
      std::size_t expected_tasks = 0;
      for (std::size_t r = 0; r < random.rules.size(); ++r) {
        for (const auto& [name, elements] : random.local_tensors(r, rank)) {
          ++expected_tasks;
          ASSERT_TRUE(by_name.contains(name)) << name;
          const ConversionTask& task = *by_name[name];
          ASSERT_EQ(view_words(task.view), elements.size()) << name;
          const auto map = expand(task.placement);
          const std::uint64_t layer =
              static_cast<std::uint64_t>(name[random.rules[r].prefix.size() + 6] - '0');
          for (std::uint64_t e = 0; e < elements.size(); ++e) {
            ASSERT_EQ(map.contains(e), elements[e].has_value()) << name << " " << e;
            if (!elements[e]) continue;
            const std::pair to(random.tensor_of(r, layer, *elements[e]), elements[e]->index);
            ASSERT_EQ(map.at(e), to) << name << " " << e;
            if (!seen.contains(task.name)) {
              EXPECT_TRUE(covered.insert(to).second);
            }
          }
        }
      }
      EXPECT_EQ(expected_tasks, made.tasks.size());
      for (const ConversionTask& task : made.tasks) seen.insert(task.name);
      tasks.push_back(std::move(made.tasks));
    }
    std::uint64_t words = 0;
    for (const CanonicalTensor& tensor : random.catalogue.tensors()) words += tensor.words;
    EXPECT_EQ(covered.size(), words);
    const Status checked = check_tasks(random.catalogue, tasks);
    EXPECT_TRUE(checked.ok()) << checked.message();
    std::set<std::string> named;
    for (const LayoutGroup& group : plan.groups()) {
      for (const std::string& name : plan.task_names(group)) named.insert(name);
    }
    EXPECT_EQ(named, seen);
  }
}

TEST(OwnerPlan, ShardsAreTheCanonicalWords) {
  Prng prng(22);
  for (std::uint64_t round = 0; round < campaign_cases(300); ++round) {
    const RandomLayout random = random_layout(prng, false);
    SCOPED_TRACE("round " + std::to_string(round) + "\n" + random.json);
    const OwnerPlan plan = make_plan(random.catalogue, random.json);
    TestCanonical canonical(random.catalogue);
    for (Bytes& bytes : canonical.tensors) {
      for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(prng.next());
    }
    const auto rank = static_cast<std::uint32_t>(prng.below(plan.ranks()));
    const OwnerRank made = plan.rank(random.catalogue, rank);
    for (std::size_t i = 0; i < made.tasks.size(); ++i) {
      const ConversionTask& task = made.tasks[i];
      const std::size_t width = word_bytes(task.view.dtype);
      Bytes shard(made.storage_bytes[i], 0xaa);
      const Status filled = fill_shard(random.catalogue, task, canonical, shard);
      ASSERT_TRUE(filled.ok()) << filled.message();
      Bytes expected(shard.size(), 0);
      for (const auto& [local, to] : expand(task.placement)) {
        const Dtype dtype = random.catalogue[to.first].dtype;
        const std::size_t from = word_bytes(dtype);
        cast_words(dtype, task.view.dtype,
                   ByteSpan(canonical.tensors[to.first]).subspan(to.second * from, from),
                   MutableByteSpan(expected).subspan(local * width, width));
      }
      EXPECT_EQ(shard, expected) << task.name;
      Bytes wrong(shard.size() + 1);
      EXPECT_FALSE(fill_shard(random.catalogue, task, canonical, wrong).ok());
    }
  }
}

// Tensors larger than what is read at once, with long runs, short ones and single words.
TEST(OwnerPlan, ShardsOfLargeTensors) {
  const Catalogue catalogue = test_catalogue({{"a", Dtype::kU16, {300, 500}, 0},
                                              {"b", Dtype::kBF16, {300, 500}, 0},
                                              {"c", Dtype::kU32, {300, 500}, 0}});
  const OwnerPlan plan = make_plan(catalogue, R"({"format": 0, "ranks": 2, "rules": [
      {"match": "a", "class": "row", "permute": [1, 0]},
      {"match": "b", "class": "column", "dtype": "F32"},
      {"match": "c", "class": "row", "shards": 2}]})");
  TestCanonical canonical(catalogue);
  Prng prng(23);
  for (Bytes& bytes : canonical.tensors) {
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(prng.next() & 0x3f);
  }
  const OwnerRank made = plan.rank(catalogue, 1);
  std::vector<Bytes> shards;
  for (std::size_t i = 0; i < 3; ++i) {
    shards.emplace_back(made.storage_bytes[i]);
    ASSERT_TRUE(fill_shard(catalogue, made.tasks[i], canonical, shards.back()).ok());
  }
  for (std::uint64_t at = 0; at < 75'000; ++at) {
    const auto* a = reinterpret_cast<const std::uint16_t*>(canonical.tensors[0].data());
    ASSERT_EQ(reinterpret_cast<const std::uint16_t*>(shards[0].data())[at],
              a[(150 + at % 150) * 500 + at / 150]);
    const auto* b = reinterpret_cast<const std::uint16_t*>(canonical.tensors[1].data());
    ASSERT_EQ(reinterpret_cast<const std::uint32_t*>(shards[1].data())[at],
              std::uint32_t{b[75'000 + at]} << 16);
    const auto* c = reinterpret_cast<const std::uint32_t*>(canonical.tensors[2].data());
    ASSERT_EQ(reinterpret_cast<const std::uint32_t*>(shards[2].data())[at],
              c[at / 250 * 500 + 250 + at % 250]);
  }
}

CanonicalTensor tensor_of(const std::string& name, Shape shape, Dtype dtype = Dtype::kBF16) {
  return {name, dtype, std::move(shape), 0};
}

std::string plan_error(std::vector<CanonicalTensor> tensors, const std::string& rules,
                       const std::string& ranks = "4") {
  const Catalogue catalogue = test_catalogue(std::move(tensors));
  Result<Layout> layout =
      parse_owner_layout("{\"format\": 0, \"ranks\": " + ranks + ", \"rules\": [" + rules + "]}");
  EXPECT_TRUE(layout.ok()) << layout.status().message();
  if (!layout.ok()) return {};
  const Result<OwnerPlan> plan = OwnerPlan::make(catalogue, std::move(layout).value());
  if (plan.ok()) return {};
  EXPECT_EQ(plan.status().code(), Code::kMismatch);
  return plan.status().message();
}

TEST(OwnerPlan, RulesAndTensorsMustMeet) {
  EXPECT_EQ(plan_error({tensor_of("a", {4}), tensor_of("b", {4})},
                       R"({"match": "a", "class": "column"})"),
            "tensor \"b\" has no rule in the layout; add one that matches it");
  EXPECT_EQ(plan_error({tensor_of("a", {4})}, R"({"match": "a", "class": "column"},
                       {"match": "b.{i}", "class": "column"})"),
            "rule 2 (\"b.{i}\") matches no tensor; correct its pattern or remove it");
  EXPECT_EQ(plan_error({tensor_of("a.1", {4})}, R"({"match": "a.{i}", "class": "column"},
                       {"match": "{any}.1", "class": "column"})"),
            "tensor \"a.1\" has two rules in the layout: rule 1 (\"a.{i}\") and rule 2 "
            "(\"{any}.1\"); keep one");
  EXPECT_EQ(plan_error({tensor_of("a.1.g", {4}), tensor_of("a.2.g", {4}), tensor_of("a.1.u", {4})},
                       R"({"match": ["a.{i}.g", "a.{i}.u"], "class": "gated"})"),
            "tensor \"a.2.g\": rule 1 (\"a.{i}.g\") joins it with \"a.{i}.u\", which the catalogue "
            "lacks");
  EXPECT_EQ(plan_error({tensor_of("x.0", {4}), tensor_of("x.2", {4})},
                       R"({"match": "x.{e}", "name": "x", "class": "column", "experts": 3})"),
            "tensor \"x.0\": rule 1 (\"x.{e}\") joins it with \"x.{e}\" of expert 1, which the "
            "catalogue lacks");
  EXPECT_EQ(
      plan_error({tensor_of("x.3", {4})}, R"({"match": "x.{e}", "class": "column", "experts": 3})"),
      "tensor \"x.3\" is expert 3, but rule 1 (\"x.{e}\") has 3 experts");
  EXPECT_EQ(plan_error({tensor_of("a", {4}), tensor_of("b", {4})},
                       R"({"match": "a", "name": "c", "class": "column"},
                       {"match": "b", "name": "c", "class": "column"})"),
            "tensors \"a\" and \"b\" both make local tensor \"c\"; give one of their rules another "
            "\"name\"");
}

// What a file says takes memory only as far as tensors are there.
TEST(OwnerPlan, NamesAndExpertsAreBounded) {
  std::vector<CanonicalTensor> tensors;
  tensors.reserve(5000);
  for (int i = 0; i < 5000; ++i) tensors.push_back(tensor_of("x." + std::to_string(i) + ".0", {4}));
  const std::uint64_t peak = peak_allocation([&] {
    EXPECT_EQ(plan_error(tensors, R"({"match": "x.{i}.{e}", "name": "x.{i}", "class": "column",
                         "experts": 65536})"),
              "tensor \"x.0.0\": rule 1 (\"x.{i}.{e}\") joins it with \"x.{i}.{e}\" of expert 1, "
              "which the catalogue lacks");
  });
  EXPECT_LT(peak, 16 * kMiB);
  const std::string word(600, 'w');
  const Catalogue catalogue = test_catalogue({tensor_of(word, {4})});
  const auto layout = parse_owner_layout(
      R"({"format": 0, "ranks": 1, "rules": [{"match": "{any}", "name": "{any}{any}",
          "class": "replicated"}]})");
  const Result<OwnerPlan> plan = OwnerPlan::make(catalogue, *layout);
  EXPECT_EQ(plan.status().code(), Code::kTooLarge);
  EXPECT_EQ(plan.status().message(),
            "tensor \"" + word +
                "\": rule 1 (\"{any}\") makes a local tensor with a name above "
                "1024 bytes");
}

TEST(OwnerPlan, ShapesMustFitTheirClass) {
  EXPECT_EQ(plan_error({tensor_of("a", {6, 2})}, R"({"match": "a", "class": "column"})"),
            "tensor \"a\" of shape [6, 2] does not divide into 4 shards along dimension 0; class "
            "\"fsdp\" or \"replicated\" holds it");
  EXPECT_EQ(plan_error({tensor_of("a", {8})}, R"({"match": "a", "class": "row"})"),
            "tensor \"a\" of shape [8] has no dimension 1 to cut; class \"replicated\" holds it");
  EXPECT_EQ(plan_error({tensor_of("a", {8, 2}), tensor_of("b", {8, 3})},
                       R"({"match": ["a", "b"], "class": "gated"})"),
            "tensor \"b\" of shape [8, 3] does not fit together with \"a\" of shape [8, 2]");
  EXPECT_EQ(plan_error({tensor_of("a.0", {8, 2}), tensor_of("a.1", {4, 2})},
                       R"({"match": "a.{e}", "name": "a", "class": "column", "experts": 2})"),
            "tensor \"a.1\" of shape [4, 2] does not fit together with \"a.0\" of shape [8, 2]");
  EXPECT_EQ(plan_error({tensor_of("a", {8}), tensor_of("b", {8}, Dtype::kF32)},
                       R"({"match": ["a", "b"], "class": "gated"})"),
            "tensor \"b\" of shape [8] has dtype F32 and \"a\" has BF16; a rule that joins them "
            "says which \"dtype\" they get");
  EXPECT_EQ(plan_error({tensor_of("q", {8, 2}), tensor_of("k", {6, 2}), tensor_of("v", {6, 2})},
                       R"({"match": ["q", "k", "v"], "class": "qkv", "groups": 4})"),
            "tensor \"k\" of shape [6, 2] does not divide into 4 groups of heads");
  EXPECT_EQ(plan_error({tensor_of("q", {2, 2}), tensor_of("k", {2, 2}), tensor_of("v", {2, 2})},
                       R"({"match": ["q", "k", "v"], "class": "qkv", "groups": 2})"),
            "tensor \"q\" of shape [2, 2] and its key and value have 6 rows, which do not divide "
            "into 4 shards");
  EXPECT_EQ(
      plan_error({tensor_of("a", {8, 2})}, R"({"match": "a", "class": "column", "permute": [0]})"),
      "tensor \"a\" of shape [8, 2] does not have the 1 dimensions that its rule permutes");
}

// Explicit boxes: what is cut by hand must cover each tensor once.
std::string box_rule(const std::string& shards) {
  return R"({"match": "a", "class": "boxes", "boxes": [)" + shards + "]}";
}
std::string box_shard(const std::string& ranks, int rows, int begin, int count) {
  return "{\"ranks\": [" + ranks + "], \"shape\": [" + std::to_string(rows) +
         "], \"boxes\": [{\"canonical\": " + std::to_string(begin) + ", \"sizes\": [" +
         std::to_string(count) + "], \"local_strides\": [1], \"canonical_strides\": [1]}]}";
}

TEST(OwnerPlan, ExplicitBoxesMustCoverOnce) {
  const std::vector<CanonicalTensor> tensors = {tensor_of("a", {10})};
  EXPECT_EQ(
      plan_error(tensors, box_rule(box_shard("0, 2", 6, 0, 6) + "," + box_shard("1, 3", 4, 6, 4))),
      "");
  EXPECT_EQ(
      plan_error(tensors, box_rule(box_shard("0, 2", 6, 0, 5) + "," + box_shard("1, 3", 4, 6, 4))),
      "tensor \"a\": element 5 is not covered (ranks 0, 1, 2, 3 have the rest)");
  EXPECT_EQ(
      plan_error(tensors, box_rule(box_shard("0", 6, 0, 6) + "," + box_shard("1, 3", 4, 6, 4) +
                                   "," + box_shard("2", 4, 3, 2))),
      "tensor \"a\": rank 0 and rank 2 hold elements of it in common; cut it without "
      "overlap");
  EXPECT_EQ(plan_error(tensors, box_rule(box_shard("0", 6, 0, 7))),
            "tensor \"a\" of shape [10] has box 1 of shard 1: the box reaches source element 6 of "
            "6");
  EXPECT_EQ(plan_error(tensors, box_rule(box_shard("0", 6, 5, 6))),
            "tensor \"a\" of shape [10] has box 1 of shard 1: the box reaches destination element "
            "10 of 10");
  EXPECT_EQ(plan_error(tensors, box_rule("")),
            "tensor \"a\": element 0 is not covered (no rank holds any of it)");
}

// Tasks from elsewhere: replicas must agree.
TEST(OwnerPlan, ReplicasMustAgree) {
  const Catalogue catalogue = test_catalogue({tensor_of("a", {8}), tensor_of("b", {4})});
  const OwnerPlan plan = make_plan(catalogue, R"({"format": 0, "ranks": 4, "rules": [
      {"match": "a", "class": "column", "shards": 2}, {"match": "b", "class": "replicated"}]})");
  std::vector<std::vector<ConversionTask>> good;
  for (std::uint32_t rank = 0; rank < 4; ++rank) good.push_back(plan.rank(catalogue, rank).tasks);
  ASSERT_EQ(good[1][0].name, "a/1");
  const auto error = [&](const auto& change) {
    std::vector<std::vector<ConversionTask>> tasks = good;
    change(tasks);
    return check_tasks(catalogue, tasks).message();
  };
  EXPECT_EQ(error([](auto&) {}), "");
  EXPECT_EQ(error([](auto& tasks) { tasks[3][0].view.dtype = Dtype::kF32; }),
            "source tensor \"a/1\": ranks 1 and 3 hold different shapes or dtypes");
  EXPECT_EQ(error([](auto& tasks) { tasks[3][0].placement[0].box.dst_offset = 0; }),
            "source tensor \"a/1\": ranks 1 and 3 place it differently");
  EXPECT_EQ(error([](auto& tasks) { tasks[3][0].replicas = {3}; }),
            "source tensor \"a/1\": ranks 1 and 3 list different replicas");
  EXPECT_EQ(error([](auto& tasks) { tasks[3].erase(tasks[3].begin()); }),
            "source tensor \"a/1\": its replicas are ranks 1, 3, but rank 3 lacks it");
  EXPECT_EQ(error([](auto& tasks) { tasks[2].push_back(tasks[3][0]); }),
            "source tensor \"a/1\": rank 2 holds it, but its replicas are ranks 1, 3");
  EXPECT_EQ(error([](auto& tasks) {
              tasks[1][0].placement[0].box.dst_offset = 0;
              tasks[3][0].placement[0].box.dst_offset = 0;
            }),
            "tensor \"a\": ranks 0, 2 and ranks 1, 3 hold elements of it in common; cut it without "
            "overlap");
  EXPECT_EQ(error([](auto& tasks) {
              tasks[1].erase(tasks[1].begin());
              tasks[3].erase(tasks[3].begin());
            }),
            "tensor \"a\": element 4 is not covered (ranks 0, 2 have the rest)");
  EXPECT_EQ(error([](auto& tasks) {
              for (auto& of_rank : tasks) of_rank[1].placement[0].destination = 2;
            }),
            "source tensor \"b\": a part of it goes to tensor 2 of 2");
}

// Tensors of several elements to a word are held by their bytes.
TEST(OwnerPlan, SubByteTensorsAreBytes) {
  const Catalogue catalogue = test_catalogue({tensor_of("a", {6, 3}, Dtype::kF4)});
  const OwnerPlan plan = make_plan(catalogue, R"({"format": 0, "ranks": 2, "rules": [
      {"match": "a", "class": "fsdp"}]})");
  const OwnerRank rank = plan.rank(catalogue, 1);
  EXPECT_EQ(rank.tasks[0].view, contiguous_view(0, Dtype::kU8, {4}));
  EXPECT_EQ(rank.storage_bytes[0], 4u);
  const Result<Layout> layout = parse_owner_layout(R"({"format": 0, "ranks": 2, "rules": [
      {"match": "a", "class": "row"}]})");
  ASSERT_TRUE(layout.ok());
  const Result<OwnerPlan> refused = OwnerPlan::make(catalogue, *layout);
  EXPECT_EQ(refused.status().message(),
            "tensor \"a\" of shape [6, 3] has several elements to a word: only classes "
            "\"replicated\", \"fsdp\" and \"boxes\" hold it");
}

TEST(OwnerPlan, ScalarsAndEmptyShards) {
  const Catalogue catalogue = test_catalogue({tensor_of("a", {}), tensor_of("b", {3, 2})});
  const OwnerPlan plan = make_plan(catalogue, R"({"format": 0, "ranks": 4, "rules": [
      {"match": "a", "class": "fsdp"}, {"match": "b", "class": "fsdp"}]})");
  EXPECT_EQ(plan.rank(catalogue, 0).tasks[0].view.sizes, Shape{1});
  const OwnerRank last = plan.rank(catalogue, 3);
  ASSERT_EQ(last.tasks.size(), 2u);
  EXPECT_EQ(last.tasks[0].view.sizes, Shape{0});
  EXPECT_EQ(last.tasks[1].view.sizes, (Shape{0, 2}));
  EXPECT_TRUE(last.tasks[1].placement.empty());
  EXPECT_EQ(last.storage_bytes, (std::vector<std::uint64_t>{0, 0}));
}

}  // namespace
}  // namespace dcr
