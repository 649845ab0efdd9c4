#include "receiver/probe.h"

#include <algorithm>
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

// Codes are a table of hashed words for each block of so many indices, begun at another place and
// flipped by another mask in each block, which is as fast as copying. Two blocks that are swapped
// look alike with a probability of 2^-28 in words of two bytes, for each of the two codes.
constexpr std::uint64_t kCodeBlock = 4096;

template <typename Word>
constexpr Word top_bits(std::uint64_t hash) {
  return static_cast<Word>(hash >> (64 - 8 * sizeof(Word)));
}

template <typename Word>
struct CodeTable {
  // Code 0, and what code 1 differs by, which is never 0.
  std::array<Word, 2 * kCodeBlock> base, difference;

  static const CodeTable& get() {
    static const CodeTable kTable = [] {
      CodeTable made;
      for (std::uint64_t i = 0; i < 2 * kCodeBlock; ++i) {
        made.base[i] = top_bits<Word>(mix(i, 0));
        made.difference[i] = static_cast<Word>(top_bits<Word>(mix(i, 1)) | 1);
      }
      return made;
    }();
    return kTable;
  }
};

// A block's part of the table.
template <typename Word>
struct CodeBlock {
  const Word* base;
  const Word* difference;
  Word mask, difference_mask;

  CodeBlock(const CodeTable<Word>& table, std::uint64_t block) {
    const std::uint64_t hash = mix(block, 6);
    base = table.base.data() + hash % kCodeBlock;
    difference = table.difference.data() + (hash >> 12) % kCodeBlock;
    mask = top_bits<Word>(hash);
    difference_mask = static_cast<Word>(top_bits<Word>(hash * 0xd6e8feb86659fd93) & ~Word{1});
  }

  Word word(unsigned code, std::uint64_t within) const {
    const auto first = static_cast<Word>(base[within] ^ mask);
    if (code == 0) return first;
    return static_cast<Word>(first ^ difference[within] ^ difference_mask);
  }
};

// Which elements of kActive are numbers.
struct Activity {
  unsigned bit;
  std::uint64_t wanted;

  explicit Activity(unsigned number) : bit(number % 64), wanted(number < 64 ? 1 : 0) {}
  bool active(std::uint64_t index) const { return (index >> bit & 1) == wanted; }
};

// Words of one pattern.
template <typename Word>
class PatternWords {
 public:
  PatternWords(const ProbePattern& pattern, Dtype dtype)
      : pattern_(pattern),
        fields_(float_bits(dtype)),
        special_(special_words(dtype)),
        table_(CodeTable<Word>::get()) {}

  Word word(std::uint64_t index) const {
    const std::uint64_t shift = std::uint64_t{pattern_.number} * 8 * sizeof(Word);
    switch (pattern_.kind) {
      case ProbePattern::Kind::kCode:
        return code(pattern_.number, index);
      case ProbePattern::Kind::kDigit:
        return static_cast<Word>(shift < 64 ? index >> shift : 0);
      case ProbePattern::Kind::kSpecial:
        return static_cast<Word>(special_[(index + pattern_.number) % special_.size()]);
      case ProbePattern::Kind::kOrdinary:
        return ordinary(code(0, index));
      case ProbePattern::Kind::kActive:
        break;
    }
    return static_cast<Word>(Activity{pattern_.number}.active(index)
                                 ? ordinary_word(fields_, code(0, index))
                                 : quiet_nan(fields_, 0));
  }

  // The words of `count` indices, `stride` apart.
  void fill(std::uint64_t first, std::uint64_t stride, std::size_t count, Word* out) const {
    const bool by_block = pattern_.kind == ProbePattern::Kind::kCode ||
                          pattern_.kind == ProbePattern::Kind::kActive ||
                          pattern_.kind == ProbePattern::Kind::kOrdinary;
    if (stride != 1 || !by_block) {
      for (std::size_t i = 0; i < count; ++i) out[i] = word(first + i * stride);
      return;
    }
    for (std::size_t done = 0; done < count;) {
      const std::uint64_t index = first + done;
      const std::uint64_t within = index % kCodeBlock;
      const auto size =
          static_cast<std::size_t>(std::min<std::uint64_t>(count - done, kCodeBlock - within));
      const CodeBlock<Word> block(table_, index / kCodeBlock);
      const unsigned code = pattern_.kind == ProbePattern::Kind::kCode ? pattern_.number : 0;
      Word* const part = out + done;
      for (std::size_t i = 0; i < size; ++i) part[i] = block.word(code, within + i);
      if (pattern_.kind == ProbePattern::Kind::kActive) keep_active(index, size, part);
      if (pattern_.kind == ProbePattern::Kind::kOrdinary) {
        for (std::size_t i = 0; i < size; ++i) part[i] = ordinary(part[i]);
      }
      done += size;
    }
  }

 private:
  Word code(unsigned number, std::uint64_t index) const {
    return CodeBlock<Word>(table_, index / kCodeBlock).word(number, index % kCodeBlock);
  }

  // kOrdinary's word from a code.
  Word ordinary(Word code) const {
    if (fields_.width == 0) return static_cast<Word>(pattern_.number);
    const std::uint64_t octaves = std::uint64_t{2} * pattern_.number << fields_.mantissa;
    return static_cast<Word>(ordinary_word(fields_, code) + octaves);
  }

  // Makes codes of one block numbers, or NaN where the element is not active.
  void keep_active(std::uint64_t index, std::size_t size, Word* words) const {
    const Activity activity(pattern_.number);
    const auto nan = static_cast<Word>(quiet_nan(fields_, 0));
    const auto exponent = static_cast<Word>(ordinary_word(fields_, 0));
    const auto mantissa = static_cast<Word>((std::uint64_t{1} << fields_.mantissa) - 1);
    if (std::uint64_t{1} << activity.bit >= kCodeBlock) {
      const bool active = activity.active(index);
      for (std::size_t i = 0; i < size; ++i) {
        words[i] = active ? static_cast<Word>((words[i] & mantissa) | exponent) : nan;
      }
      return;
    }
    // Words of floating point are wide enough for an index within a block.
    const auto within = static_cast<Word>(index % kCodeBlock);
    const auto wanted = static_cast<Word>(activity.wanted);
    for (std::size_t i = 0; i < size; ++i) {
      const auto at = static_cast<Word>(within + static_cast<Word>(i));
      const bool active = static_cast<Word>(at >> activity.bit & 1) == wanted;
      words[i] = active ? static_cast<Word>((words[i] & mantissa) | exponent) : nan;
    }
  }

  const ProbePattern pattern_;
  const FloatBits fields_;
  const std::array<std::uint64_t, kSpecialWords> special_;
  const CodeTable<Word>& table_;
};

}  // namespace

std::uint64_t probe_word(const ProbePattern& pattern, Dtype dtype, std::uint64_t index) {
  std::uint64_t word = 0;
  for_width(word_bytes(dtype),
            [&]<typename Word>(Word) { word = PatternWords<Word>(pattern, dtype).word(index); });
  return word;
}

Status fill_probe(TargetMemory& memory, const TensorView& probe, const ProbePattern& pattern) {
  Bytes buffer;
  return for_each_block(probe, [&](const ViewBlock& block) {
    const auto words = static_cast<std::size_t>(block.words);
    buffer.resize(words * word_bytes(probe.dtype));
    for_width(word_bytes(probe.dtype), [&]<typename Word>(Word) {
      PatternWords<Word>(pattern, probe.dtype)
          .fill(block.first, 1, words, reinterpret_cast<Word*>(buffer.data()));
    });
    return memory.write(block.view, buffer);
  });
}

Result<bool> holds_pattern(TargetMemory& memory, const TensorView& source, const Box& box,
                           const ProbePattern& pattern, Dtype dtype) {
  Bytes held;
  Bytes wanted;
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
    held.resize(static_cast<std::size_t>(piece.elements()) * width);
    wanted.resize(held.size());
    DCR_TRY(memory.read(words, held));
    for_width(width, [&]<typename Word>(Word) {
      const PatternWords<Word> pattern_words(pattern, dtype);
      Word* at = reinterpret_cast<Word*>(wanted.data());
      for_each_row(indices, [&](std::uint64_t index, std::uint64_t stride, std::uint64_t count) {
        pattern_words.fill(index, stride, static_cast<std::size_t>(count), at);
        at += count;
      });
    });
    if (held != wanted) return false;
  }
  return true;
}

}  // namespace dcr
