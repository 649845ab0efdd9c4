// Words for the tensors of a RandomModel, and what steps of training make of them.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "receiver/words_of.h"
#include "tensor/cast.h"
#include "tests/random_model.h"

namespace dcr {

class RandomWords {
 public:
  // Both must outlive it.
  RandomWords(Prng& prng, const RandomModel& model) : prng_(prng), model_(model) {
    for (std::uint32_t t = 0; t < model_.catalogue.size(); ++t) {
      tensors.emplace_back(static_cast<std::size_t>(words(t)) * width(t));
      for (std::uint64_t i = 0; i < words(t); ++i) set(t, i, any_word(t));
    }
    export_all();
  }

  // A step of training: of each tensor nothing, one element, some, a cluster, or all.
  void change() {
    const std::uint64_t all_kind = prng_.below(10);
    for (std::uint32_t t = 0; t < model_.catalogue.size(); ++t) {
      if (words(t) == 0 || all_kind == 0) continue;
      const std::uint64_t kind = all_kind == 1 ? 5 : prng_.below(6);
      std::uint64_t begin = 0;
      std::uint64_t end = words(t);
      std::uint64_t rate = 1;
      if (kind == 0) end = 0;
      if (kind == 1) begin = prng_.below(end), end = begin + 1;
      if (kind == 2) rate = 3;
      if (kind == 3) rate = 12;
      if (kind == 4) begin = prng_.below(end), end = std::min(end, begin + 1 + prng_.below(9));
      for (std::uint64_t i = begin; i < end; ++i) {
        if (one_in(rate)) change_word(t, i);
      }
    }
    export_all();
  }

  std::vector<Bytes> tensors;  // index: in the catalogue

 private:
  bool one_in(std::uint64_t count) { return prng_.below(count) == 0; }
  std::uint64_t words(std::uint32_t tensor) const { return model_.catalogue[tensor].words; }
  Dtype dtype(std::uint32_t tensor) const { return model_.catalogue[tensor].dtype; }
  unsigned width(std::uint32_t tensor) const { return word_bytes(dtype(tensor)); }

  void set(std::uint32_t tensor, std::uint64_t index, std::uint64_t word) {
    std::memcpy(&tensors[tensor][static_cast<std::size_t>(index) * width(tensor)], &word,
                width(tensor));
  }
  std::uint64_t get(std::uint32_t tensor, std::uint64_t index) const {
    std::uint64_t word = 0;
    std::memcpy(&word, &tensors[tensor][static_cast<std::size_t>(index) * width(tensor)],
                width(tensor));
    return word;
  }

  // Zeros of both signs, subnormals, infinities, NaN with all kinds of payload, every placeholder
  // that a receiver may use, ordinary numbers, any bits.
  std::uint64_t any_word(std::uint32_t tensor) {
    const FloatBits bits = float_bits(dtype(tensor));
    const std::uint64_t sign = std::uint64_t{1} << (8 * width(tensor) - 1);
    const std::uint64_t flip = one_in(2) ? sign : 0;
    switch (prng_.below(10)) {
      case 0:
        return flip;
      case 1:
        return (1 + prng_.below(3)) | flip;
      case 2:
        return ~std::uint64_t{0};
      case 3:
        return bits.width == 0 ? prng_.next() : infinity_word(bits) | flip;
      case 4:
        return bits.width == 0 ? 0 : quiet_nan(bits, prng_.below(kPlaceholders)) | flip;
      case 5:
        return bits.width == 0 ? 1 : (infinity_word(bits) + 1 + prng_.below(100)) | flip;
      case 6:
      case 7:
        return bits.width == 0 ? prng_.next() : ordinary_word(bits, prng_.next()) | flip;
      default:
        return prng_.next();
    }
  }

  void change_word(std::uint32_t tensor, std::uint64_t index) {
    const std::uint64_t old = get(tensor, index);
    const std::uint64_t kind = prng_.below(4);
    set(tensor, index, kind == 0 ? old + 1 : kind == 1 ? old - 1 : any_word(tensor));
  }

  // The truth is what owners export: a wider dtype keeps numbers, but not every NaN.
  void export_all() {
    for (std::uint32_t t = 0; t < model_.catalogue.size(); ++t) {
      if (!model_.held[t]) continue;
      Bytes held(static_cast<std::size_t>(words(t)) * word_bytes(*model_.held[t]));
      cast_words(dtype(t), *model_.held[t], tensors[t], held);
      cast_words(*model_.held[t], dtype(t), held, tensors[t]);
    }
  }

  Prng& prng_;
  const RandomModel& model_;
};

}  // namespace dcr
