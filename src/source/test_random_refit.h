// Random refits: canonical tensors of all kinds, cut over ranks in all ways that placements
// describe, and some that converters make.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "source/test_owner_refit.h"

namespace dcr {

class RandomRefit {
 public:
  RandomRefit(std::uint64_t seed, bool converters)
      : prng_(seed), refit(static_cast<std::uint32_t>(1 + prng_.below(4))) {
    std::vector<CanonicalTensor> tensors;
    for (std::uint64_t i = 2 + prng_.below(8); i > 0; --i) {
      Dtype dtype = kDtypes[prng_.below(std::size(kDtypes))];
      const std::uint64_t rows = prng_.below(12) == 0 ? 0 : 1 + prng_.below(20);
      const std::uint64_t columns = 1 + prng_.below(40);
      Shape shape = {rows, dtype == Dtype::kF4 ? 2 * columns : columns};
      if (prng_.below(6) == 0) shape = {dtype == Dtype::kF4 ? 2 * columns : columns};
      if (prng_.below(10) == 0 && dtype != Dtype::kF4) shape = {};
      tensors.push_back({"layer." + std::to_string(i), dtype, shape, 0});
    }
    const std::uint64_t groups = converters ? 1 + prng_.below(3) : 0;
    for (std::uint64_t i = 0; i < groups; ++i) {
      const Dtype dtype = prng_.below(2) == 0 ? Dtype::kBF16 : Dtype::kF8E4M3;
      tensors.push_back({"made." + std::to_string(9 - i), dtype, {1 + prng_.below(30), 5}, 0});
      tensors.push_back({"made." + std::to_string(9 - i) + ".scale", Dtype::kF32, {3}, 0});
    }
    refit.set_catalogue(std::move(tensors));
    for (std::uint32_t i = 0; i < refit.catalogue.size(); ++i) {
      if (refit.catalogue[i].name.starts_with("layer.")) cut_tensor(i);
    }
    if (groups > 0) {
      refit.add_tracked("shared", refit.every_rank, random_bytes(&prng_, 1), Dtype::kU8);
    }
    for (std::uint64_t i = 0; i < groups; ++i) add_group("made." + std::to_string(9 - i));
  }

  // Changes some words of the weights, the same on all replicas.
  void change() {
    const std::uint64_t kind = prng_.below(8);
    if (kind == 0) return;
    for (std::size_t rank = 0; rank < refit.all_ranks.size(); ++rank) {
      for (const ConversionTask& task : refit.all_ranks[rank].input.tasks) {
        if (task.replicas[0] == rank) change_source(task.name, kind);
      }
      for (const TrackedSource& source : refit.all_ranks[rank].input.tracked) {
        if (source.replicas[0] == rank && prng_.below(3) == 0) change_source(source.name, kind);
      }
    }
  }

 private:
  static constexpr Dtype kDtypes[] = {Dtype::kBF16, Dtype::kBF16, Dtype::kF32, Dtype::kF16,
                                      Dtype::kU8,   Dtype::kF64,  Dtype::kF4,  Dtype::kF8E4M3};

  static bool can_cast(Dtype dtype) {
    return cast_supported(Dtype::kF32, dtype).ok() && dtype != Dtype::kF32;
  }

  // A box of the flat words of a tensor, cut into random shards over ranks.
  void cut_tensor(std::uint32_t index) {
    const CanonicalTensor& tensor = refit.catalogue[index];
    const std::uint64_t columns = tensor.shape.empty()         ? 1
                                  : tensor.dtype == Dtype::kF4 ? tensor.shape.back() / 2
                                                               : tensor.shape.back();
    const std::uint64_t rows = columns == 0 ? 0 : tensor.words / columns;
    const Dtype dtype = tensor.dtype == Dtype::kF4 ? Dtype::kU8 : tensor.dtype;
    source_dtype_ = can_cast(dtype) && prng_.below(3) == 0 ? Dtype::kF32 : dtype;
    const std::uint64_t kind = prng_.below(3);
    const std::uint64_t extent = kind == 1 ? columns : rows;
    const std::uint64_t shards = kind == 2 ? 1 : refit.all_ranks.size();
    for (std::uint64_t shard = 0; shard < shards; ++shard) {
      const std::uint64_t step = (extent + shards - 1) / std::max<std::uint64_t>(shards, 1);
      const std::uint64_t begin = std::min(extent, shard * step);
      const std::uint64_t size = std::min(extent, begin + step) - begin;
      Box box;
      if (kind == 1) {
        box = {0, begin, {{rows, size, columns}, {size, 1, 1}}};
      } else {
        box = {0, begin * columns, {{size, columns, columns}, {columns, 1, 1}}};
      }
      std::vector<std::uint32_t> replicas = {static_cast<std::uint32_t>(shard)};
      if (kind == 2) replicas = refit.every_rank;
      add_shard(tensor.name + "/" + std::to_string(shard), replicas, index, box);
    }
  }

  // Puts the elements of a [n, m] box into a source tensor in some layout.
  void add_shard(const std::string& name, const std::vector<std::uint32_t>& replicas,
                 std::uint32_t tensor, Box box) {
    const std::uint64_t n = box.dims[0].size;
    const std::uint64_t m = box.dims[1].size;
    TensorView view{0, source_dtype_, 0, {n, m}, {m, 1}};
    std::uint64_t words = n * m;
    switch (prng_.below(6)) {
      case 0:  // transposed in memory, seen as [n, m]
        view.strides = {1, n};
        break;
      case 1:  // a transposed source tensor
        view.sizes = {m, n};
        view.strides = {n, 1};
        box.dims[0].src_stride = 1;
        box.dims[1].src_stride = n;
        break;
      case 2:  // columns of a wider source tensor, and padding rows that map nowhere
        view.offset = 3;
        view.sizes = {n + 2, m};
        view.strides = {m + 5, 1};
        words = 3 + (n + 2) * (m + 5);
        break;
      case 3:  // behind other elements of the source tensor
        view.sizes = {n * m + 7};
        view.strides = {1};
        box.src_offset = 7;
        words = n * m + 7;
        break;
      default:
        break;
    }
    Placement placement = {{tensor, box}};
    if (n > 1 && prng_.below(3) == 0) {  // in two parts, the later one first
      Box low = box;
      Box high = box;
      low.dims[0].size = n / 2;
      high.dims[0].size = n - n / 2;
      high.src_offset += n / 2 * box.dims[0].src_stride;
      high.dst_offset += n / 2 * box.dims[0].dst_stride;
      placement = {{tensor, high}, {tensor, low}};
    }
    const Bytes bytes =
        random_bytes(&prng_, static_cast<std::size_t>(words) * word_bytes(source_dtype_));
    refit.add_task(name, replicas, bytes, view, placement);
  }

  // Output rows by ranks: word = byte of the rank's own tracked source, plus the shared one; and a
  // second output of three words on the last rank.
  void add_group(const std::string& name) {
    const std::uint32_t tensor = refit.index(name);
    const std::uint64_t rows = refit.catalogue[tensor].shape[0];
    const std::size_t width = word_bytes(refit.catalogue[tensor].dtype);
    const std::uint64_t ranks = refit.all_ranks.size();
    std::vector<std::string> inputs = {"shared"};
    for (std::uint64_t r = 0; r < ranks; ++r) inputs.push_back(name + "/" + std::to_string(r));
    const std::uint64_t step = (rows + ranks - 1) / ranks;
    const bool unknown = prng_.below(4) == 0;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      const std::uint64_t begin = std::min(rows, r * step);
      const std::uint64_t size = std::min(rows, begin + step) - begin;
      refit.add_tracked(inputs[r + 1], {r}, random_bytes(&prng_, 1 + size * 5), Dtype::kU8);
      TestOwnerRank& rank = refit.all_ranks[r];
      const Bytes* const own = &rank.storages.back();
      const Bytes* shared = nullptr;
      for (const TrackedSource& source : rank.input.tracked) {
        if (source.name == "shared") {
          shared = &rank.storages[static_cast<std::size_t>(source.view.storage)];
        }
      }
      TestConverter* converter = refit.add_converter(r);
      converter->declaration = {name, inputs, unknown, false, {name, name + ".scale"}, {}};
      converter->declaration.parts.push_back({name, begin * 5, {size, 5}, {5, 1}});
      if (r + 1 == ranks) converter->declaration.parts.push_back({name + ".scale", 0, {3}, {1}});
      converter->body = [own, shared, width](std::uint64_t part, std::uint64_t first,
                                             std::uint64_t count, std::span<std::uint8_t> out) {
        const std::size_t bytes = part == 0 ? width : 4;
        for (std::uint64_t i = 0; i < count; ++i) {
          std::uint64_t word = (*own)[part == 0 ? static_cast<std::size_t>(first + i) : 0];
          word = (word + (*shared)[0]) * 0x0101010101010101 + first + i;
          std::memcpy(out.data() + i * bytes, &word, bytes);
        }
        return Status();
      };
    }
  }

  void change_source(const std::string& name, std::uint64_t kind) {
    if (kind < 6 && prng_.below(2) == 0) return;
    const std::uint64_t seed = prng_.next();
    for (TestOwnerRank& rank : refit.all_ranks) {
      for (const ConversionTask& task : rank.input.tasks) {
        if (task.name == name) change_words(&rank, task.view, kind, seed);
      }
      for (const TrackedSource& source : rank.input.tracked) {
        if (source.name == name) change_words(&rank, source.view, kind, seed);
      }
    }
  }

  static void change_words(TestOwnerRank* rank, const TensorView& view, std::uint64_t kind,
                           std::uint64_t seed) {
    Prng prng(seed);
    Bytes& storage = rank->storages[static_cast<std::size_t>(view.storage)];
    const std::size_t width = word_bytes(view.dtype);
    const std::uint64_t one_in = kind < 4 ? 20 : kind < 7 ? 3 : 1;
    for (std::size_t at = 0; at + width <= storage.size(); at += width) {
      if (prng.below(one_in) != 0) continue;
      if (kind % 2 == 0) {
        storage[at] = static_cast<std::uint8_t>(storage[at] + 1);
      } else {
        storage[at + width - 1] = static_cast<std::uint8_t>(prng.next());
      }
    }
  }

  Prng prng_;
  Dtype source_dtype_ = Dtype::kU8;

 public:
  TestOwnerRefit refit;
  Prng& prng() { return prng_; }
};

}  // namespace dcr
