// What fuzzers' payloads are for: a catalogue, a serving rank that loads it, and its receiver.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "receiver/receiver.h"
#include "receiver/test_loader.h"

namespace dcr {

inline Catalogue fuzz_catalogue() {
  return make_catalogue({{"cast", Dtype::kBF16, {40}},
                         {"columns", Dtype::kBF16, {10, 10}},
                         {"skipped", Dtype::kI64, {30}},
                         {"whole", Dtype::kU8, {16}},
                         {"words", Dtype::kU32, {8, 8}}});
}

// A rank with traced, cast and dense tensors of several widths.
struct FuzzRank {
  HostMemory memory{1u << 20};
  TestLoader loader{memory};

  FuzzRank() {
    add("columns", Dtype::kBF16, {10, 3},
        [this](const TensorView& p, const TensorView& value, LoaderHook& hook) {
          return loader.copy(hook, p, narrow(value, 1, 4, 3));
        });
    add("cast", Dtype::kF32, {40},
        [this](const TensorView& p, const TensorView& value, LoaderHook& hook) {
          return loader.copy(hook, p, value);
        });
    add("words", Dtype::kU32, {8, 8},
        [this](const TensorView& p, const TensorView& value, LoaderHook& hook) -> Status {
          DCR_ASSIGN(const TensorView made, loader.clone(transposed(value)));
          return loader.copy(hook, p, made);
        });
    add("whole", Dtype::kU8, {16},
        [this](const TensorView& p, const TensorView& value, LoaderHook& hook) -> Status {
          DCR_ASSIGN(
              const TensorView made,
              loader.temporary(value, [](std::uint64_t word, std::uint64_t) { return word ^ 1; }));
          return loader.copy(hook, p, made);
        });
    loader.loads["skipped"] = [](const TensorView&, LoaderHook&) -> Result<LoadReport> {
      return LoadReport::kSkipped;
    };
  }

  template <typename Copy>
  void add(const char* name, Dtype dtype, const Shape& shape, const Copy& copy) {
    const TensorView p = loader.add_target(name, dtype, shape);
    loader.loads[name] = [p, copy](const TensorView& value,
                                   LoaderHook& hook) -> Result<LoadReport> {
      DCR_TRY(copy(p, value, hook));
      return LoadReport::kLoaded;
    };
  }
};

// Of one owner, which has all words; prewarmed over weights that are all the same byte.
struct FuzzReceiver {
  Catalogue catalogue = fuzz_catalogue();
  FuzzRank rank;
  std::vector<Bytes> words, base;  // of tensors, and of the parameters that they make
  std::unique_ptr<Executor> executor = make_executor(1);
  std::unique_ptr<Receiver> receiver;

  explicit FuzzReceiver(ReceiverOptions options) {
    options.owners.resize(1);
    for (std::uint32_t i = 0; i < catalogue.size(); ++i) {
      words.emplace_back(catalogue[i].words * word_bytes(catalogue[i].dtype), 0x3c);
      options.owners[0].push_back({i, ItemBox::range(0, catalogue[i].words)});
    }
    DCR_ASSERT(load_dense(rank.loader, catalogue, words).ok());
    base = rank.loader.parameters();
    receiver = Receiver::create(catalogue, rank.loader, rank.memory, *executor, std::move(options))
                   .value();
    DCR_ASSERT(receiver->prewarm().ok());
  }

  void restore_base() {
    for (std::size_t i = 0; i < base.size(); ++i) {
      const MutableByteSpan bytes = rank.memory.bytes(rank.loader.all_targets[i].view.storage);
      std::copy(base[i].begin(), base[i].end(), bytes.begin());
    }
  }
};

}  // namespace dcr
