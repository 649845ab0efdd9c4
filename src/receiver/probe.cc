#include "receiver/probe.h"

#include <array>
#include <utility>

#include "receiver/views.h"
#include "simd/words.h"

namespace dcr {

namespace {

std::array<std::uint64_t, kSpecialWords> special_words(Dtype dtype) {
  const FloatBits bits = float_bits(dtype);
  const std::uint64_t sign = std::uint64_t{1} << (8 * word_bytes(dtype) - 1);
  if (bits.width == 0)
    return {0, 1, sign - 1, sign, 2 * sign - 1, 2 * sign - 2, sign / 2, sign + 1};
  const std::uint64_t infinity = infinity_word(bits);
  return {quiet_nan(bits, 1),
          quiet_nan(bits, 0) | sign,
          infinity + 1,
          infinity,
          infinity | sign,
          infinity - 1,
          sign,
          1};
}

// Calls `body(word_of)` with the pattern's function of an index, so that loops over indices have no
// branch.
template <typename Body>
void with_pattern(const ProbePattern& pattern, Dtype dtype, const Body& body) {
  const unsigned bits = 8 * word_bytes(dtype);
  switch (pattern.kind) {
    case ProbePattern::Kind::kCode: {
      const std::uint64_t flip = pattern.number == 0 ? 0 : ~std::uint64_t{0};
      body([bits, flip](std::uint64_t index) {
        const std::uint64_t code = mix(index, 0) >> (64 - bits);
        return code ^ (((mix(index, 1) >> (64 - bits)) | 1) & flip);
      });
      return;
    }
    case ProbePattern::Kind::kDigit: {
      const unsigned shift = pattern.number * bits;
      body([shift](std::uint64_t index) { return shift < 64 ? index >> shift : 0; });
      return;
    }
    case ProbePattern::Kind::kSpecial: {
      const std::array<std::uint64_t, kSpecialWords> words = special_words(dtype);
      const unsigned number = pattern.number;
      body([words, number](std::uint64_t index) { return words[(index + number) % words.size()]; });
      return;
    }
    case ProbePattern::Kind::kActive: {
      const FloatBits fields = float_bits(dtype);
      const unsigned bit = pattern.number % 64;
      const std::uint64_t wanted = pattern.number < 64 ? 1 : 0;
      body([fields, bit, wanted](std::uint64_t index) {
        return (index >> bit & 1) == wanted ? ordinary_word(fields, mix(index, 2))
                                            : quiet_nan(fields, 0);
      });
      return;
    }
  }
}

}  // namespace

std::uint64_t probe_word(const ProbePattern& pattern, Dtype dtype, std::uint64_t index) {
  std::uint64_t word = 0;
  with_pattern(pattern, dtype, [&](const auto& word_of) { word = word_of(index); });
  const unsigned unused = 64 - 8 * word_bytes(dtype);
  return word << unused >> unused;
}

Status fill_probe(TargetMemory& memory, const TensorView& probe, const ProbePattern& pattern) {
  Bytes buffer;
  return for_each_block(probe, [&](const ViewBlock& block) {
    return for_width(word_bytes(probe.dtype), [&]<typename Word>(Word) {
      buffer.resize(static_cast<std::size_t>(block.words) * sizeof(Word));
      with_pattern(pattern, probe.dtype, [&](const auto& word_of) {
        Word* out = reinterpret_cast<Word*>(buffer.data());
        for (std::uint64_t i = 0; i < block.words; ++i) {
          out[i] = static_cast<Word>(word_of(block.first + i));
        }
      });
      return memory.write(block.view, buffer);
    });
  });
}

Result<bool> holds_pattern(TargetMemory& memory, const TensorView& source, const Box& box,
                           const ProbePattern& pattern, Dtype dtype) {
  Bytes buffer;
  const unsigned width = word_bytes(dtype);
  for (const Box& piece : split(box, kViewBlockBytes / width)) {
    TensorView words{source.storage, source.dtype, piece.dst_offset, {}, {}};
    TensorView indices{0, source.dtype, piece.src_offset, {}, {}};
    for (const BoxDimension& dim : piece.dims) {
      words.sizes.push_back(dim.size);
      words.strides.push_back(dim.dst_stride);
      indices.sizes.push_back(dim.size);
      indices.strides.push_back(dim.src_stride);
    }
    buffer.resize(static_cast<std::size_t>(piece.elements()) * width);
    DCR_TRY(memory.read(words, buffer));
    bool holds = true;
    for_width(width, [&]<typename Word>(Word) {
      const Word* at = reinterpret_cast<const Word*>(buffer.data());
      with_pattern(pattern, dtype, [&](const auto& word_of) {
        for_each_row(indices, [&](std::uint64_t index, std::uint64_t stride, std::uint64_t count) {
          for (std::uint64_t i = 0; i < count; ++i) {
            holds &= *at++ == static_cast<Word>(word_of(index + i * stride));
          }
        });
      });
    });
    if (!holds) return false;
  }
  return true;
}

}  // namespace dcr
