#include "layout/reference_loader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/prng.h"
#include "layout/test_random_layout.h"
#include "tensor/cast.h"
#include "tests/support/campaign.h"
#include "tests/support/test_memory.h"

namespace dcr {
namespace {

ReceiverPlan loader_plan(const Catalogue& catalogue, const std::string& json) {
  Result<Layout> layout = parse_receiver_layout(json);
  EXPECT_TRUE(layout.ok()) << layout.status().message() << "\n" << json;
  if (!layout.ok()) return {};
  Result<ReceiverPlan> plan = ReceiverPlan::make(catalogue, std::move(layout).value());
  EXPECT_TRUE(plan.ok()) << plan.status().message() << "\n" << json;
  return plan.ok() ? std::move(plan).value() : ReceiverPlan();
}

// Random layouts: dense loading of every rank gives the words that the formulas say, padding zero.
TEST(ReferenceLoader, LoadsTheFormulas) {
  Prng prng(31);
  for (std::uint64_t round = 0; round < campaign_cases(800); ++round) {
    const RandomLayout random = random_layout(prng, true);
    SCOPED_TRACE("round " + std::to_string(round) + "\n" + random.json);
    const ReceiverPlan plan = loader_plan(random.catalogue, random.json);
    TestCanonical canonical(random.catalogue);
    for (Bytes& bytes : canonical.tensors) {
      for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(prng.next());
    }
    for (std::uint32_t rank = 0; rank < plan.ranks(); ++rank) {
      const Result<ReceiverRank> made = plan.rank(random.catalogue, rank);
      ASSERT_TRUE(made.ok()) << made.status().message();
      TestMemory memory(made->storage_bytes);
      for (std::uint64_t s = 0; s < made->storage_bytes.size(); ++s) {
        std::fill(memory.storage(s).begin(), memory.storage(s).end(), std::uint8_t{0xaa});
      }
      ReferenceLoader loader(random.catalogue, *made, memory, rank);
      const Status loaded = load_dense(random.catalogue, canonical, memory, loader);
      ASSERT_TRUE(loaded.ok()) << loaded.message();
      EXPECT_EQ(memory.count(), made->storage_bytes.size());  // temporaries are gone
      std::map<std::string, const LoaderTarget*> by_name;
      for (const LoaderTarget& target : made->targets) by_name[target.name] = &target;
      std::size_t expected_targets = 0;
      for (std::size_t r = 0; r < random.rules.size(); ++r) {
        const RandomRule& rule = random.rules[r];
        const Dtype dtype = rule.local_dtype.value_or(rule.dtype);
        const std::size_t from = word_bytes(rule.dtype);
        const std::size_t to = word_bytes(dtype);
        for (const auto& [name, elements] : random.local_tensors(r, rank)) {
          ++expected_targets;
          ASSERT_TRUE(by_name.contains(name)) << name;
          const auto layer = static_cast<std::uint64_t>(name[rule.prefix.size() + 6] - '0');
          Bytes expected(elements.size() * to, 0);
          for (std::size_t e = 0; e < elements.size(); ++e) {
            if (!elements[e]) continue;
            const Bytes& whole = canonical.tensors[random.tensor_of(r, layer, *elements[e])];
            cast_words(rule.dtype, dtype, ByteSpan(whole).subspan(elements[e]->index * from, from),
                       MutableByteSpan(expected).subspan(e * to, to));
          }
          EXPECT_EQ(memory.storage(by_name[name]->view.storage), expected) << name;
        }
      }
      EXPECT_EQ(expected_targets, made->targets.size());
    }
  }
}

// Keeps every event; performs all, or suppresses all.
class RecordingHook final : public LoaderHook {
 public:
  explicit RecordingHook(LoaderVerdict verdict = LoaderVerdict::kPerform) : verdict_(verdict) {}
  Result<LoaderVerdict> on_event(const LoaderEvent& event) override {
    events.push_back(event);
    return verdict_;
  }
  std::vector<LoaderEvent> events;

  // "copy_ fill_(0)".
  std::string text() const {
    std::string made;
    for (const LoaderEvent& event : events) {
      made += (made.empty() ? "" : " ") + event.operation;
      if (event.kind == LoaderEventKind::kFill) {
        made += "(" + std::to_string(event.fill_word) + ")";
      }
    }
    return made;
  }

 private:
  LoaderVerdict verdict_;
};

// One tensor "a" of shape [4, 2] on two ranks, cut by columns, F32.
class Behaviours : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kWords = 4;

  void SetUp() override { catalogue_ = test_catalogue({{"a", Dtype::kF32, {4, 2}, 0}}); }

  // Rank 1's loader with the behaviour.
  void make(const std::string& behaviour, const std::string& shape_class = "column") {
    const ReceiverPlan plan =
        loader_plan(catalogue_, R"({"format": 0, "ranks": 2, "rules": [{"match": "a", "class": ")" +
                                    shape_class + R"(", "behaviour": ")" + behaviour + "\"}]}");
    Result<ReceiverRank> rank = plan.rank(catalogue_, 1);
    ASSERT_TRUE(rank.ok());
    memory_ = TestMemory(rank->storage_bytes);
    loader_ = std::make_unique<ReferenceLoader>(catalogue_, std::move(rank).value(), memory_, 1);
  }

  // Loads `values` and returns the report.
  LoadReport load(const std::vector<float>& values, LoaderHook& hook) {
    const Shape& shape = catalogue_[0].shape;
    const std::uint64_t given = memory_.allocate(4 * values.size()).value();
    given_ = contiguous_view(given, Dtype::kF32, shape);
    std::memcpy(memory_.storage(given).data(), values.data(), 4 * values.size());
    const Result<LoadReport> report = loader_->load("a", given_, hook);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : LoadReport::kNothing;
  }

  std::vector<float> floats(std::uint64_t storage) {
    const Bytes& bytes = memory_.storage(storage);
    std::vector<float> made(bytes.size() / 4);
    if (!bytes.empty()) std::memcpy(made.data(), bytes.data(), bytes.size());
    return made;
  }

  const std::vector<float> values_ = {1, 2, 3, 4, 5, 6, 7, 8};
  Catalogue catalogue_;
  TestMemory memory_;
  std::unique_ptr<ReferenceLoader> loader_;
  TensorView given_;
};

using List = std::vector<float>;

TEST_F(Behaviours, Copy) {
  make("copy");
  RecordingHook hook;
  EXPECT_EQ(load(values_, hook), LoadReport::kLoaded);
  ASSERT_EQ(hook.events.size(), 1u);
  const LoaderEvent& event = hook.events[0];
  EXPECT_EQ(event.kind, LoaderEventKind::kCopy);
  EXPECT_EQ(event.destination, (TensorView{0, Dtype::kF32, 0, {4}, {1}}));
  EXPECT_EQ(event.source, (TensorView{given_.storage, Dtype::kF32, 4, {4}, {1}}));
  EXPECT_EQ(floats(0), (List{5, 6, 7, 8}));
}

TEST_F(Behaviours, SuppressedWritesDoNotHappen) {
  for (const char* behaviour :
       {"copy", "contiguous", "twice", "index_put", "normalise", "nan_to_num", "clip", "double",
        "negative_exp", "zero_given", "replace", "collective", "claim_skipped", "alternate"}) {
    make(behaviour);
    RecordingHook hook(LoaderVerdict::kSuppress);
    load(values_, hook);
    EXPECT_FALSE(hook.events.empty()) << behaviour;
    EXPECT_EQ(floats(0), List(kWords, 0)) << behaviour;
    EXPECT_EQ(floats(given_.storage), values_) << behaviour;
    EXPECT_EQ(loader_->targets()[0].view.storage, 0u) << behaviour;
  }
}

TEST_F(Behaviours, EachWritesAndTells) {
  const float nan = std::nanf("");
  struct Row {
    const char* behaviour;
    const char* events;
    List expected;
    LoadReport report;
  };
  const Row rows[] = {
      {"contiguous", "copy_", {5, 6, 7, 8}, LoadReport::kLoaded},
      {"twice", "copy_ copy_", {5, 6, 7, 8}, LoadReport::kLoaded},
      {"index_put", "index_put_", {5, 6, 7, 8}, LoadReport::kLoaded},
      {"unannounced", "", {5, 6, 7, 8}, LoadReport::kLoaded},
      {"double", "copy_ copy_", {10, 12, 14, 16}, LoadReport::kLoaded},
      {"negative_exp",
       "copy_ copy_",
       {-std::exp(5.0F), -std::exp(6.0F), -std::exp(7.0F), -std::exp(8.0F)},
       LoadReport::kLoaded},
      {"clip", "copy_", {1, 1, 1, 1}, LoadReport::kLoaded},
      {"zero_given", "zero_ copy_", {0, 0, 0, 0}, LoadReport::kLoaded},
      {"collective", "all_reduce copy_", {5, 6, 7, 8}, LoadReport::kLoaded},
      {"skip", "", {0, 0, 0, 0}, LoadReport::kSkipped},
      {"claim_loaded", "", {0, 0, 0, 0}, LoadReport::kLoaded},
      {"claim_skipped", "copy_", {5, 6, 7, 8}, LoadReport::kSkipped},
      {"swap_after_load", "copy_", {5, 6, 7, 8}, LoadReport::kLoaded},
  };
  for (const Row& row : rows) {
    make(row.behaviour);
    RecordingHook hook;
    EXPECT_EQ(load(values_, hook), row.report) << row.behaviour;
    EXPECT_EQ(hook.text(), row.events) << row.behaviour;
    EXPECT_EQ(floats(0), row.expected) << row.behaviour;
  }
  make("nan_to_num");
  RecordingHook hook;
  load({0, 0, 0, 0, nan, 1, nan, 2}, hook);
  EXPECT_EQ(floats(0), (List{0, 1, 0, 2}));
  make("clip");
  load({0, 0, 0, 0, nan, -7, 0.5F, 2}, hook);
  EXPECT_EQ(floats(0), (List{-1, -1, 0.5F, 1}));
}

TEST_F(Behaviours, TemporariesAreOtherStorages) {
  for (const char* behaviour : {"contiguous", "normalise", "nan_to_num", "clip"}) {
    make(behaviour);
    RecordingHook hook;
    load(values_, hook);
    ASSERT_EQ(hook.events.size(), 1u) << behaviour;
    EXPECT_NE(hook.events[0].source->storage, given_.storage) << behaviour;
    EXPECT_FALSE(memory_.storage_bytes(hook.events[0].source->storage).ok()) << behaviour;
  }
}

TEST_F(Behaviours, NormaliseReducesRows) {
  make("normalise");
  RecordingHook hook;
  load({1, 1, 1, 1, 3, 4, 0, 0}, hook);
  EXPECT_EQ(floats(0), (List{0.6F, 0.8F, 0, 0}));
  make("normalise", "row");  // whole rows, then a column of them
  load({3, 4, 0, 2, 0, 0, 1, 0}, hook);
  EXPECT_EQ(floats(0), (List{0.8F, 1, 0, 0}));
}

TEST_F(Behaviours, ReplaceMovesTheParameter) {
  make("replace");
  RecordingHook hook;
  load(values_, hook);
  EXPECT_EQ(hook.text(), "set_data");
  const TensorView now = loader_->targets()[0].view;
  EXPECT_NE(now.storage, 0u);
  EXPECT_EQ(floats(now.storage), (List{5, 6, 7, 8}));
  EXPECT_EQ(floats(0), List(kWords, 0));
}

TEST_F(Behaviours, AlternateAndSwap) {
  make("alternate");
  RecordingHook hook;
  EXPECT_EQ(load(values_, hook), LoadReport::kLoaded);
  EXPECT_EQ(load(values_, hook), LoadReport::kSkipped);
  EXPECT_EQ(load(values_, hook), LoadReport::kLoaded);
  EXPECT_EQ(hook.text(), "copy_ copy_");
  make("swap_after_load");
  load(values_, hook);
  ASSERT_TRUE(loader_->process_after_loading().ok());
  EXPECT_EQ(floats(0), (List{7, 8, 5, 6}));
}

TEST_F(Behaviours, FillTakesOneElement) {
  make("fill");
  RecordingHook hook;
  const std::uint64_t given = memory_.allocate(32).value();
  const Result<LoadReport> refused =
      loader_->load("a", contiguous_view(given, Dtype::kF32, {4, 2}), hook);
  EXPECT_EQ(refused.status().message(),
            "loader: tensor \"a\" fills a parameter but has more than one element");
  catalogue_ = test_catalogue({{"a", Dtype::kF32, {1}, 0}});
  make("fill", "replicated");
  load({1}, hook);
  EXPECT_EQ(hook.text(), "fill_(1065353216)");
  EXPECT_EQ(hook.events.back().source, std::nullopt);
  EXPECT_EQ(floats(0), List{1});
}

TEST_F(Behaviours, RefusesOtherTensors) {
  make("copy");
  RecordingHook hook;
  const auto error = [&](const char* name, const TensorView& view) {
    return loader_->load(name, view, hook).status().message();
  };
  EXPECT_EQ(error("b", contiguous_view(9, Dtype::kF32, {4, 2})),
            "loader: no parameter takes tensor \"b\"");
  const char* other = "loader: tensor \"a\" is not the whole tensor of shape [4, 2]";
  EXPECT_EQ(error("a", contiguous_view(9, Dtype::kF32, {8})), other);
  EXPECT_EQ(error("a", contiguous_view(9, Dtype::kBF16, {4, 2})), other);
  EXPECT_EQ(error("a", {9, Dtype::kF32, 1, {4, 2}, {2, 1}}), other);
  EXPECT_EQ(error("a", {9, Dtype::kF32, 0, {4, 2}, {1, 4}}), other);
  EXPECT_TRUE(hook.events.empty());
}

class FailingHook final : public LoaderHook {
 public:
  Result<LoaderVerdict> on_event(const LoaderEvent&) override {
    return Status(Code::kMismatch, "not this one");
  }
};

TEST_F(Behaviours, TheHooksErrorIsTheLoads) {
  for (const char* behaviour :
       {"copy", "collective", "zero_given", "replace", "index_put", "contiguous"}) {
    make(behaviour);
    const std::size_t before = memory_.count();
    FailingHook hook;
    const std::uint64_t given = memory_.allocate(32).value();
    const Result<LoadReport> report =
        loader_->load("a", contiguous_view(given, Dtype::kF32, {4, 2}), hook);
    EXPECT_EQ(report.status().message(), "not this one") << behaviour;
    EXPECT_EQ(memory_.count(), before + 1) << behaviour;
  }
}

TEST(ReceiverPlan, PaddingIsFilled) {
  const Catalogue catalogue = test_catalogue({{"a", Dtype::kU8, {5, 2}, 0}});
  const ReceiverPlan plan = loader_plan(catalogue, R"({"format": 0, "ranks": 2, "rules": [
      {"match": "a", "class": "vocabulary", "multiple": 8}]})");
  const Result<ReceiverRank> rank = plan.rank(catalogue, 1);
  ASSERT_TRUE(rank.ok());
  EXPECT_EQ(rank->targets[0].view.sizes, (Shape{4, 2}));
  ASSERT_EQ(rank->steps[0].fills.size(), 1u);
  EXPECT_EQ(rank->steps[0].fills[0].begin, 2u);
  EXPECT_EQ(rank->steps[0].fills[0].end, 8u);
  TestMemory memory(rank->storage_bytes);
  memory.storage(0).assign(8, 0xaa);
  ReferenceLoader loader(catalogue, *rank, memory, 1);
  const std::uint64_t given = memory.allocate(10).value();
  for (std::uint8_t i = 0; i < 10; ++i) memory.storage(given)[i] = i;
  RecordingHook hook;
  ASSERT_TRUE(loader.load("a", contiguous_view(given, Dtype::kU8, {5, 2}), hook).ok());
  EXPECT_EQ(hook.text(), "copy_ fill_(0)");
  EXPECT_EQ(memory.storage(0), (Bytes{8, 9, 0, 0, 0, 0, 0, 0}));
}

TEST(ReceiverPlan, AliasesShareAndBuffersStay) {
  const Catalogue catalogue =
      test_catalogue({{"embed", Dtype::kU8, {4}, 0}, {"head", Dtype::kU8, {4}, 0}});
  const ReceiverPlan plan = loader_plan(catalogue, R"({"format": 0, "ranks": 1, "rules": [
      {"match": "embed", "class": "replicated"}, {"match": "head", "class": "replicated"}],
      "aliases": [{"name": "head", "of": "embed"}, {"name": "other", "of": "embed"}],
      "buffers": [{"name": "inv_freq", "dtype": "F32", "shape": [3]}]})");
  const Result<ReceiverRank> rank = plan.rank(catalogue, 0);
  ASSERT_TRUE(rank.ok()) << rank.status().message();
  const TensorView shared{0, Dtype::kU8, 0, {4}, {1}};
  EXPECT_EQ(rank->targets,
            (std::vector<LoaderTarget>{{"embed", shared},
                                       {"head", shared},
                                       {"other", shared},
                                       {"inv_freq", {1, Dtype::kF32, 0, {3}, {1}}}}));
  EXPECT_EQ(rank->storage_bytes, (std::vector<std::uint64_t>{4, 12}));
}

// Tensors that no rank has need not come together.
TEST(ReceiverPlan, NoRankHasWhatIsLeftOut) {
  const Catalogue catalogue = test_catalogue(
      {{"a.0", Dtype::kU8, {4}, 0}, {"a.1", Dtype::kU8, {4}, 0}, {"b.1", Dtype::kU8, {4}, 0}});
  const ReceiverPlan plan = loader_plan(catalogue, R"({"format": 0, "ranks": 1, "rules": [
      {"match": ["a.{i}", "b.{i}"], "class": "none", "behaviour": "claim_loaded"}]})");
  const Result<ReceiverRank> rank = plan.rank(catalogue, 0);
  ASSERT_TRUE(rank.ok()) << rank.status().message();
  EXPECT_TRUE(rank->targets.empty());
  ASSERT_EQ(rank->steps.size(), 3u);
  for (const LoadSteps& steps : rank->steps) EXPECT_EQ(steps.behaviour, Behaviour::kClaimLoaded);
}

std::string plan_error(const std::string& rest) {
  const Catalogue catalogue =
      test_catalogue({{"a", Dtype::kU8, {4}, 0}, {"b", Dtype::kU8, {8}, 0}});
  Result<Layout> layout = parse_receiver_layout(R"({"format": 0, "ranks": 1, "rules": [
      {"match": "a", "class": "replicated"}, {"match": "b", "class": "replicated"}], )" +
                                                rest + "}");
  EXPECT_TRUE(layout.ok()) << layout.status().message();
  const Result<ReceiverPlan> plan = ReceiverPlan::make(catalogue, std::move(layout).value());
  if (!plan.ok()) return plan.status().message();
  return plan->rank(catalogue, 0).status().message();
}

TEST(ReceiverPlan, RefusesAliasesAndBuffers) {
  EXPECT_EQ(plan_error(R"("aliases": [{"name": "c", "of": "d"}])"),
            "alias \"c\" is of \"d\", which is no target of a rule with storage of its own");
  EXPECT_EQ(plan_error(R"("aliases": [{"name": "c", "of": "a"}, {"name": "d", "of": "c"}])"),
            "alias \"d\" is of \"c\", which is no target of a rule with storage of its own");
  EXPECT_EQ(plan_error(R"("aliases": [{"name": "c", "of": "a"}, {"name": "c", "of": "a"}])"),
            "alias \"c\" stands twice");
  EXPECT_EQ(plan_error(R"("aliases": [{"name": "a", "of": "b"}])"),
            "alias \"a\" is of \"b\", which has another shape or dtype on rank 0");
  EXPECT_EQ(plan_error(R"("buffers": [{"name": "a", "dtype": "F32", "shape": []}])"),
            "buffer \"a\" has the name of another target");
}

}  // namespace
}  // namespace dcr
