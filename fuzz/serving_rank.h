// What fuzzers' payloads are for: a catalogue, and a serving rank that loads it.
#pragma once

#include <vector>

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

  std::vector<Bytes> parameters() {
    std::vector<Bytes> all;
    for (const LoaderTarget& target : loader.all_targets) {
      const MutableByteSpan bytes = memory.bytes(target.view.storage);
      all.emplace_back(bytes.begin(), bytes.end());
    }
    return all;
  }
};

}  // namespace dcr
