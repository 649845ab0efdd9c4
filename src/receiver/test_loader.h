// A small serving runtime for tests: parameters in a HostMemory, one function per canonical tensor
// that loads it by the operations below, each of which goes through the hook as a real loader's
// would.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "receiver/host_memory.h"
#include "receiver/views.h"
#include "receiver/words_of.h"
#include "simd/words.h"
#include "tensor/cast.h"
#include "tensor/catalogue.h"

namespace dcr {

class TestLoader final : public Loader {
 public:
  using Load = std::function<Result<LoadReport>(const TensorView& value, LoaderHook& hook)>;

  explicit TestLoader(HostMemory& memory) : memory_(memory) {}

  HostMemory& memory() { return memory_; }
  std::map<std::string, Load, std::less<>> loads;
  std::vector<LoaderTarget> all_targets;

  // A contiguous parameter in a storage of its own.
  TensorView add_target(std::string name, Dtype dtype, const Shape& shape) {
    CanonicalTensor tensor{name, dtype, shape, 1};
    for (const std::uint64_t size : shape) tensor.words *= size;
    const std::uint64_t storage = memory_.add(tensor.words * word_bytes(dtype));
    TensorView view = contiguous_view(storage, tensor);
    all_targets.push_back({std::move(name), view});
    return view;
  }

  std::vector<LoaderTarget> targets() override { return all_targets; }
  // Bytes of each target.
  std::vector<Bytes> parameters() {
    std::vector<Bytes> all;
    for (const LoaderTarget& target : all_targets) {
      const MutableByteSpan bytes = memory_.bytes(target.view.storage);
      all.emplace_back(bytes.begin(), bytes.end());
    }
    return all;
  }

  Result<LoadReport> load(std::string_view name, const TensorView& value,
                          LoaderHook& hook) override {
    const auto found = loads.find(name);
    if (found == loads.end()) return Status(Code::kNotFound, "no parameter takes it");
    Result<LoadReport> report = found->second(value, hook);
    for (const std::uint64_t storage : temporaries_) DCR_TRY(memory_.release(storage));
    temporaries_.clear();
    return report;
  }

  Status copy(LoaderHook& hook, const TensorView& destination, const TensorView& source) {
    LoaderEvent event{LoaderEventKind::kCopy, "copy_", destination, source};
    DCR_ASSIGN(const LoaderVerdict verdict, hook.on_event(event));
    if (verdict == LoaderVerdict::kSuppress) return {};
    return write_past_hook(destination, source);
  }

  Status write_past_hook(const TensorView& destination, const TensorView& source) {
    Bytes in(static_cast<std::size_t>(view_words(source)) * word_bytes(source.dtype));
    Bytes out(static_cast<std::size_t>(view_words(destination)) * word_bytes(destination.dtype));
    DCR_TRY(memory_.read(source, in));
    cast_words(source.dtype, destination.dtype, in, out);
    return memory_.write(destination, out);
  }

  Status fill(LoaderHook& hook, const TensorView& destination, std::uint64_t word) {
    LoaderEvent event{LoaderEventKind::kFill, "fill_", destination, std::nullopt, word};
    DCR_ASSIGN(const LoaderVerdict verdict, hook.on_event(event));
    if (verdict == LoaderVerdict::kSuppress) return {};
    return fill_past_hook(destination, word);
  }

  Status fill_past_hook(const TensorView& destination, std::uint64_t word) {
    const unsigned width = word_bytes(destination.dtype);
    Bytes out(static_cast<std::size_t>(view_words(destination)) * width);
    for (std::size_t at = 0; at < out.size(); at += width) std::memcpy(&out[at], &word, width);
    return memory_.write(destination, out);
  }

  // Another operation on a view: each word becomes a function of itself and its place.
  using Function = std::function<std::uint64_t(std::uint64_t word, std::uint64_t place)>;
  Status other(LoaderHook& hook, std::string operation, const TensorView& destination,
               const Function& function) {
    LoaderEvent event{LoaderEventKind::kOther, std::move(operation), destination, std::nullopt};
    DCR_ASSIGN(const LoaderVerdict verdict, hook.on_event(event));
    if (verdict == LoaderVerdict::kSuppress) return {};
    DCR_ASSIGN(const Bytes words, mapped(destination, function));
    return memory_.write(destination, words);
  }

  // A contiguous temporary of the same shape whose words are a function of the view's.
  Result<TensorView> temporary(const TensorView& view, const Function& function) {
    DCR_ASSIGN(const Bytes words, mapped(view, function));
    CanonicalTensor tensor{"", view.dtype, view.sizes, 0};
    DCR_ASSIGN(const std::uint64_t storage, memory_.allocate(words.size()));
    temporaries_.push_back(storage);
    TensorView made = contiguous_view(storage, tensor);
    DCR_TRY(memory_.write(made, words));
    return made;
  }
  Result<TensorView> clone(const TensorView& view) {
    return temporary(view, [](std::uint64_t word, std::uint64_t) { return word; });
  }

  Status event(LoaderHook& hook, LoaderEventKind kind, const TensorView& destination) {
    const Result<LoaderVerdict> verdict =
        hook.on_event({kind, "all_reduce", destination, std::nullopt});
    return verdict.ok() ? Status() : verdict.status();
  }

 private:
  Result<Bytes> mapped(const TensorView& view, const Function& function) {
    const unsigned width = word_bytes(view.dtype);
    Bytes words(static_cast<std::size_t>(view_words(view)) * width);
    DCR_TRY(memory_.read(view, words));
    for (std::size_t at = 0; at < words.size(); at += width) {
      std::uint64_t word = 0;
      std::memcpy(&word, &words[at], width);
      word = function(word, at / width);
      std::memcpy(&words[at], &word, width);
    }
    return words;
  }

  HostMemory& memory_;
  std::vector<std::uint64_t> temporaries_;
};

// Part [begin, begin + size) of a view along a dimension.
inline TensorView narrow(TensorView view, std::size_t dim, std::uint64_t begin,
                         std::uint64_t size) {
  view.offset += begin * view.strides[dim];
  view.sizes[dim] = size;
  return view;
}

inline TensorView transposed(TensorView view) {
  std::swap(view.sizes[0], view.sizes[1]);
  std::swap(view.strides[0], view.strides[1]);
  return view;
}

// Twice a floating-point word, exact: NaN stays as it is. For F32.
inline std::uint64_t doubled_f32(std::uint64_t word) {
  float value = 0;
  const auto bits = static_cast<std::uint32_t>(word);
  std::memcpy(&value, &bits, sizeof(value));
  value += value;
  std::uint32_t out = 0;
  std::memcpy(&out, &value, sizeof(out));
  return out;
}

// The negated word.
inline std::uint64_t negated(Dtype dtype, std::uint64_t word) {
  return word ^ std::uint64_t{1} << (8 * word_bytes(dtype) - 1);
}

// Every write happens.
class PerformAll final : public LoaderHook {
 public:
  Result<LoaderVerdict> on_event(const LoaderEvent& /*event*/) override {
    return LoaderVerdict::kPerform;
  }
};

inline Catalogue make_catalogue(std::vector<CanonicalTensor> tensors) {
  return Catalogue::make(std::move(tensors)).value();
}

// Loads whole tensors in the catalogue's order, as a dense refit does. `words[i]`: of tensor i.
inline Status load_dense(TestLoader& loader, const Catalogue& catalogue,
                         const std::vector<Bytes>& words) {
  PerformAll hook;
  for (std::uint32_t i = 0; i < catalogue.size(); ++i) {
    DCR_ASSIGN(const std::uint64_t storage, loader.memory().allocate(words[i].size()));
    const TensorView value = contiguous_view(storage, catalogue[i]);
    DCR_TRY(loader.memory().write(value, words[i]));
    const Result<LoadReport> report = loader.load(catalogue[i].name, value, hook);
    if (!report.ok()) return report.status();
    DCR_TRY(loader.memory().release(storage));
  }
  return {};
}

}  // namespace dcr
