// Ranks, weights, tasks and converters for tests of owners; a naive dense export to compare with;
// and a receiver that applies payloads to plain canonical tensors.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/prng.h"
#include "codec/payload.h"
#include "source/host_source_memory.h"
#include "source/local_collective.h"
#include "source/owner_group.h"
#include "source/test_plain_items.h"
#include "source/test_sink.h"
#include "tensor/cast.h"
#include "tensor/view.h"

namespace dcr {

using Tensors = std::vector<Bytes>;  // by index in the catalogue

// Makes words by a function of (part, word); reads nothing by itself.
class TestConverter final : public Converter {
 public:
  ConverterDeclaration declaration;
  std::function<Status(std::uint64_t part, std::uint64_t first, std::uint64_t count,
                       std::span<std::uint8_t> out)>
      body;

  ConverterDeclaration declare() const override { return declaration; }
  Status convert(std::uint64_t part, std::uint64_t first, std::uint64_t count,
                 std::span<std::uint8_t> out) override {
    ++calls;
    return body(part, first, count, out);
  }
  std::uint64_t calls = 0;
};

// One rank's weights: storages by id.
struct TestOwnerRank {
  std::deque<Bytes> storages;
  HostSourceMemory memory;
  OwnerInput input;
  std::vector<std::unique_ptr<TestConverter>> converters;

  std::uint64_t add(Bytes bytes) {
    storages.push_back(std::move(bytes));
    return memory.add(storages.back());
  }
};

class TestOwnerRefit {
 public:
  explicit TestOwnerRefit(std::uint32_t ranks) : all_ranks(ranks), locals(ranks) {
    for (std::uint32_t i = 0; i < ranks; ++i) {
      all_ranks[i].input.rank = i;
      all_ranks[i].input.memory = &all_ranks[i].memory;
      collectives.push_back(std::make_unique<LocalCollective>(locals, i));
      all_ranks[i].input.collective = collectives.back().get();
      every_rank.push_back(i);
    }
  }

  void set_catalogue(std::vector<CanonicalTensor> tensors) {
    Result<Catalogue> made = Catalogue::make(std::move(tensors));
    ASSERT_TRUE(made.ok()) << made.status().message();
    catalogue = std::move(made).value();
  }
  std::uint32_t index(const std::string& name) const {
    return static_cast<std::uint32_t>(catalogue.find(name));
  }

  // Adds a task to all its replicas, with the same bytes.
  void add_task(const std::string& name, const std::vector<std::uint32_t>& replicas,
                const Bytes& bytes, const TensorView& view, const Placement& placement) {
    for (const std::uint32_t rank : replicas) {
      ConversionTask task;
      task.name = name;
      task.view = view;
      task.view.storage = all_ranks[rank].add(bytes);
      task.placement = placement;
      task.replicas = replicas;
      all_ranks[rank].input.tasks.push_back(std::move(task));
    }
  }
  void add_tracked(const std::string& name, const std::vector<std::uint32_t>& replicas,
                   const Bytes& bytes, Dtype dtype) {
    for (const std::uint32_t rank : replicas) {
      TrackedSource source;
      source.name = name;
      source.view = {all_ranks[rank].add(bytes), dtype, 0, {bytes.size() / word_bytes(dtype)}, {1}};
      source.replicas = replicas;
      all_ranks[rank].input.tracked.push_back(std::move(source));
    }
  }
  TestConverter* add_converter(std::uint32_t rank) {
    all_ranks[rank].converters.push_back(std::make_unique<TestConverter>());
    all_ranks[rank].input.converters.push_back(all_ranks[rank].converters.back().get());
    return all_ranks[rank].converters.back().get();
  }

  Status make_geometry() {
    std::vector<OwnerDeclaration> declarations;
    for (const TestOwnerRank& rank : all_ranks) {
      DCR_ASSIGN(OwnerDeclaration declaration, declare_owner(rank.input));
      declarations.push_back(std::move(declaration));
    }
    DCR_ASSIGN(geometry, Geometry::make(catalogue, declarations));
    return {};
  }

  // Everything anew from the tasks, in this process, on `threads` threads.
  Status start(unsigned threads = 1, OwnerOptions options = {}, const std::string& arena = {}) {
    group.reset();
    owners.clear();
    executor = make_executor(threads);
    DCR_TRY(make_geometry());
    std::vector<Owner*> pointers;
    for (const TestOwnerRank& rank : all_ranks) {
      const std::string path = arena.empty() ? "" : arena + std::to_string(rank.input.rank);
      DCR_ASSIGN(std::unique_ptr<Owner> owner, Owner::create(geometry, rank.input, path));
      locals.connect(rank.input.rank, owner->residual());
      pointers.push_back(owner.get());
      owners.push_back(std::move(owner));
    }
    DCR_ASSIGN(group, OwnerGroup::create(pointers, *executor, std::move(options)));
    return {};
  }

  // Payloads go to `sinks`, one of each owner.
  Result<std::vector<PrepareResult>> prepare(const Attempt& attempt) {
    sinks.assign(all_ranks.size(), TestSink());
    for (TestSink& sink : sinks) sink.failing_payload = failing_payload;
    std::vector<PayloadSink*> pointers;
    pointers.reserve(sinks.size());
    for (TestSink& sink : sinks) pointers.push_back(&sink);
    return group->prepare(attempt, pointers);
  }

  // What the tasks' weights are in canonical tensors, element by element; converters by their
  // parts.
  Tensors dense() const {
    Tensors tensors;
    for (const CanonicalTensor& tensor : catalogue.tensors()) {
      tensors.emplace_back(static_cast<std::size_t>(tensor.words) * word_bytes(tensor.dtype), 0);
    }
    for (const TestOwnerRank& rank : all_ranks) {
      for (const ConversionTask& task : rank.input.tasks) export_task(rank, task, &tensors);
      for (const auto& converter : rank.converters) export_converter(*converter, &tensors);
    }
    return tensors;
  }

  // Applies the payloads of `sinks` in the declared order.
  void apply(Tensors* tensors) const {
    std::vector<TensorSpec> specs;
    for (const CanonicalTensor& tensor : catalogue.tensors()) {
      specs.push_back({tensor.words, static_cast<std::uint8_t>(word_bytes(tensor.dtype)), false});
    }
    for (std::size_t n = 0;; ++n) {
      bool any = false;
      for (std::size_t owner = 0; owner < sinks.size(); ++owner) {
        if (n >= sinks[owner].payloads.size()) continue;
        any = true;
        const Result<Payload> payload =
            Payload::read(sinks[owner].payloads[n], catalogue.schema(), specs,
                          {kPayloadStoredBytesMax, kPayloadRawBytesMax});
        ASSERT_TRUE(payload.ok()) << payload.status().message();
        EXPECT_EQ(payload->header().owner, owner);
        EXPECT_EQ(payload->header().owners, sinks.size());
        EXPECT_EQ(payload->header().number, n);
        apply_payload(*payload, tensors);
      }
      if (!any) return;
    }
  }

  // Of one owner, by (tensor, offset).
  std::vector<PlainItem> items(std::size_t owner) const;

  std::vector<Bytes> all_payloads() const {
    std::vector<Bytes> all;
    for (const TestSink& sink : sinks) {
      all.insert(all.end(), sink.payloads.begin(), sink.payloads.end());
      all.emplace_back();
    }
    return all;
  }

  std::deque<TestOwnerRank> all_ranks;
  std::vector<std::uint32_t> every_rank;
  Catalogue catalogue;
  LocalRanks locals;
  std::vector<std::unique_ptr<LocalCollective>> collectives;
  std::shared_ptr<const Geometry> geometry;
  std::vector<std::unique_ptr<Owner>> owners;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<OwnerGroup> group;
  std::vector<TestSink> sinks;
  std::uint64_t failing_payload = ~std::uint64_t{0};

 private:
  template <typename Visit>
  static void for_each_index(const std::vector<BoxDimension>& dims, const Visit& visit) {
    for (const BoxDimension& dim : dims) {
      if (dim.size == 0) return;
    }
    std::vector<std::uint64_t> index(dims.size(), 0);
    while (true) {
      std::uint64_t src = 0;
      std::uint64_t dst = 0;
      for (std::size_t i = 0; i < dims.size(); ++i) {
        src += index[i] * dims[i].src_stride;
        dst += index[i] * dims[i].dst_stride;
      }
      visit(src, dst);
      std::size_t at = dims.size();
      while (at > 0 && ++index[at - 1] == dims[at - 1].size) index[--at] = 0;
      if (at == 0) return;
    }
  }

  void export_task(const TestOwnerRank& rank, const ConversionTask& task, Tensors* tensors) const {
    const Bytes& storage = rank.storages[static_cast<std::size_t>(task.view.storage)];
    const std::size_t from_width = word_bytes(task.view.dtype);
    for (const PlacementPart& part : task.placement) {
      if (!geometry->projected(part.destination)) continue;
      const Dtype dtype = catalogue[part.destination].dtype;
      const Dtype to = view_dtype(dtype);
      const std::size_t to_width = word_bytes(to);
      Bytes& out = (*tensors)[part.destination];
      for_each_index(part.box.dims, [&](std::uint64_t src, std::uint64_t dst) {
        // Element src + offset in the order of the view's indices.
        std::uint64_t element = src + part.box.src_offset;
        std::uint64_t word = task.view.offset;
        for (std::size_t i = task.view.sizes.size(); i-- > 0;) {
          word += element % task.view.sizes[i] * task.view.strides[i];
          element /= task.view.sizes[i];
        }
        cast_words(
            task.view.dtype, to,
            ByteSpan(storage).subspan(static_cast<std::size_t>(word) * from_width, from_width),
            MutableByteSpan(out).subspan(
                static_cast<std::size_t>(dst + part.box.dst_offset) * to_width, to_width));
      });
    }
  }

  void export_converter(const TestConverter& converter, Tensors* tensors) const {
    for (std::size_t i = 0; i < converter.declaration.parts.size(); ++i) {
      const ConverterPart& part = converter.declaration.parts[i];
      const std::uint32_t tensor = index(part.canonical);
      const std::size_t width = word_bytes(catalogue[tensor].dtype);
      std::vector<BoxDimension> dims;
      std::size_t words = 1;
      for (std::size_t d = 0; d < part.sizes.size(); ++d) {
        dims.push_back({part.sizes[d], 0, part.strides[d]});
        words *= static_cast<std::size_t>(part.sizes[d]);
      }
      Bytes converted(words * width);
      EXPECT_TRUE(converter.body(i, 0, words, converted).ok());
      std::size_t at = 0;
      for_each_index(dims, [&](std::uint64_t, std::uint64_t dst) {
        std::memcpy(&(*tensors)[tensor][static_cast<std::size_t>(part.offset + dst) * width],
                    &converted[at], width);
        at += width;
      });
    }
  }

  static void apply_payload(const Payload& payload, Tensors* tensors) {
    for (const ItemView& item : payload.items()) {
      const std::size_t width = item.header.width;
      const ItemBox& box = item.header.box;
      apply_item(item, MutableByteSpan((*tensors)[item.header.tensor])
                           .subspan(static_cast<std::size_t>(box.offset) * width,
                                    static_cast<std::size_t>(box.end() - box.offset) * width));
    }
  }
};

inline std::vector<PlainItem> TestOwnerRefit::items(std::size_t owner) const {
  std::vector<TensorSpec> specs;
  for (const CanonicalTensor& tensor : catalogue.tensors()) {
    specs.push_back({tensor.words, static_cast<std::uint8_t>(word_bytes(tensor.dtype)), false});
  }
  std::vector<PlainItem> found;
  for (const Bytes& stored : sinks[owner].payloads) {
    const Result<Payload> payload = Payload::read(stored, catalogue.schema(), specs,
                                                  {kPayloadStoredBytesMax, kPayloadRawBytesMax});
    EXPECT_TRUE(payload.ok()) << payload.status().message();
    if (!payload.ok()) return found;
    for (const ItemView& view : payload->items()) {
      found.push_back(plain_item(view));
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const PlainItem& a, const PlainItem& b) {
    return std::tie(a.tensor, a.box.offset) < std::tie(b.tensor, b.box.offset);
  });
  return found;
}

inline Bytes random_bytes(Prng* prng, std::size_t count) {
  Bytes bytes(count);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(prng->next());
  return bytes;
}

inline Attempt attempt_of(std::uint64_t number, std::uint64_t candidate, std::uint64_t base,
                          AttemptMode mode = AttemptMode::kMixed) {
  Attempt attempt;
  attempt.attempt = number;
  attempt.candidate = candidate;
  attempt.base_version = base;
  attempt.target_version = base + 1;
  attempt.mode = mode;
  return attempt;
}

// The first attempt of a candidate on the one before.
inline Attempt attempt_on(std::uint64_t candidate, AttemptMode mode) {
  return attempt_of(candidate, candidate, candidate - 1, mode);
}

}  // namespace dcr
