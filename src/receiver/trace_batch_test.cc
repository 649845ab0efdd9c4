// Traces of many tensors in one call are those that each has alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>

#include "receiver/test_loader.h"
#include "receiver/trace.h"

namespace dcr {
namespace {

// Loads batches with a loader of single tensors: writes belong to whose value is their source.
class BatchLoader final : public Loader {
 public:
  BatchLoader(TestLoader& loader, std::uint32_t entries_max)
      : loader_(loader), entries_max_(entries_max) {}

  std::size_t batches = 0;
  std::size_t explained = 0;

  std::vector<LoaderTarget> targets() override { return loader_.targets(); }
  Result<LoadReport> load(std::string_view name, const TensorView& value,
                          LoaderHook& hook) override {
    return loader_.load(name, value, hook);
  }
  std::uint32_t batch_entries_max() const override { return entries_max_; }
  Result<bool> load_batch(std::span<const LoaderBatchEntry> entries,
                          LoaderBatchHook& hook) override {
    ++batches;
    Attribution attribution(entries, hook);
    for (const LoaderBatchEntry& entry : entries) {
      const Result<LoadReport> report = loader_.load(entry.name, entry.value, attribution);
      if (!report.ok()) return report.status();
    }
    explained += attribution.explained ? 1u : 0u;
    return attribution.explained;
  }

 private:
  class Attribution final : public LoaderHook {
   public:
    Attribution(std::span<const LoaderBatchEntry> entries, LoaderBatchHook& hook) : hook_(hook) {
      for (const LoaderBatchEntry& entry : entries) {
        const std::size_t number = entries_.size();
        entries_[entry.value.storage] = number;
      }
    }

    bool explained = true;

    Result<LoaderVerdict> on_event(const LoaderEvent& event) override {
      const auto found = event.source ? entries_.find(event.source->storage) : entries_.end();
      if (found != entries_.end() && !entries_.contains(event.destination.storage)) {
        return hook_.on_event(found->second, event);
      }
      explained = false;
      return LoaderVerdict::kSuppress;
    }

   private:
    LoaderBatchHook& hook_;
    std::map<std::uint64_t, std::size_t> entries_;
  };

  TestLoader& loader_;
  std::uint32_t entries_max_;
};

// What a load does with parameter `p`, of shape [4, 6], by number.
Result<LoadReport> load_somehow(TestLoader& loader, std::size_t how, const TensorView& p,
                                const TensorView& value, LoaderHook& hook) {
  switch (how) {
    case 0:  // nothing
      break;
    case 1:
      DCR_TRY(loader.fill(hook, p, 7));
      break;
    case 2: {
      DCR_ASSIGN(const TensorView clone, loader.clone(value));
      DCR_TRY(loader.copy(hook, p, clone));
      break;
    }
    case 3:
      DCR_TRY(loader.copy(hook, narrow(p, 0, 0, 2), narrow(value, 0, 2, 2)));
      DCR_TRY(loader.copy(hook, narrow(p, 0, 2, 2), narrow(value, 0, 0, 2)));
      break;
    case 4:
      DCR_TRY(loader.other(hook, "zero_", value, [](std::uint64_t, std::uint64_t) { return 0; }));
      DCR_TRY(loader.copy(hook, p, value));
      break;
    default:
      DCR_TRY(loader.copy(hook, p, value));
  }
  return LoadReport::kLoaded;
}

class TraceBatchTest : public testing::Test {
 protected:
  // Tensor i is loaded in way `how[i]`.
  void make(const std::vector<std::size_t>& how) {
    std::vector<CanonicalTensor> tensors;
    for (std::size_t i = 0; i < how.size(); ++i) {
      const std::string name(1, static_cast<char>('a' + i));
      tensors.push_back({name, Dtype::kBF16, {4, 6}});
      const TensorView p = loader_.add_target(name, Dtype::kBF16, {4, 6});
      const std::size_t way = how[i];
      loader_.loads[name] = [this, way, p](const TensorView& value, LoaderHook& hook) {
        return load_somehow(loader_, way, p, value, hook);
      };
      storages_.insert(p.storage);
    }
    catalogue_ = make_catalogue(std::move(tensors));
  }

  void expect_as_alone(std::uint32_t entries_max, std::size_t explained) {
    BatchLoader batches(loader_, entries_max);
    Tracer together(catalogue_, batches, memory_, storages_);
    Tracer alone(catalogue_, loader_, memory_, storages_);
    const Result<std::vector<LoadTrace>> found = together.trace_range(0, catalogue_.size());
    ASSERT_TRUE(found.ok()) << found.status().message();
    ASSERT_EQ(found->size(), catalogue_.size());
    EXPECT_EQ(batches.explained, explained);
    for (std::uint32_t tensor = 0; tensor < catalogue_.size(); ++tensor) {
      const Result<LoadTrace> single = alone.trace(tensor);
      ASSERT_TRUE(single.ok());
      const LoadTrace& one = (*found)[tensor];
      EXPECT_EQ(one.refusal, single->refusal);
      ASSERT_EQ(one.writes.size(), single->writes.size()) << tensor;
      for (std::size_t i = 0; i < one.writes.size(); ++i) {
        EXPECT_EQ(one.writes[i].kind, single->writes[i].kind);
        EXPECT_EQ(one.writes[i].elements, single->writes[i].elements);
        if (one.writes[i].to_given) continue;  // wherever the probe was
        EXPECT_EQ(one.writes[i].event.destination, single->writes[i].event.destination);
      }
    }
  }

  HostMemory memory_{std::uint64_t{1} << 26};
  TestLoader loader_{memory_};
  std::set<std::uint64_t> storages_;
  Catalogue catalogue_;
};

TEST_F(TraceBatchTest, CopiesExplainThemselves) {
  make({5, 3, 0, 5, 5, 3, 0});
  expect_as_alone(100, 2);  // one batch, for each code
  expect_as_alone(3, 4);    // three, of which the last has one tensor
  expect_as_alone(1, 0);
}

TEST_F(TraceBatchTest, WhatIsNobodysIsTracedAlone) {
  for (const std::size_t odd : {std::size_t{1}, std::size_t{2}, std::size_t{4}}) {
    loader_.loads.clear();
    loader_.all_targets.clear();
    make({5, 3, odd, 0, 5, 5, odd, 5});
    expect_as_alone(100, 4);  // halves: 5 3 | 5 5
  }
}

TEST_F(TraceBatchTest, WithoutRoomForAllProbes) {
  make({5, 5, 5, 5});
  HostMemory small(std::uint64_t{100});
  for (std::size_t i = 0; i < 4; ++i) small.add(48);
  BatchLoader batches(loader_, 100);
  Tracer tracer(catalogue_, batches, small, storages_);
  // Room for two probes of 48 bytes. The loader's own memory is another one here, so that copies
  // could not be looked into; none is.
  const Result<std::vector<LoadTrace>> found = tracer.trace_range(0, 4);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(batches.batches, 4U);
}

}  // namespace
}  // namespace dcr
