// The scalar reference: one value at a time, as the header says it, with nothing clever. Every
// other kernel set is tested against this one.
#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "simd/kernels.h"
#include "simd/words.h"

namespace dcr {
namespace {

template <typename Word>
std::size_t scan_words(Encoding encoding, const ScanBox& box, std::uint64_t* unchanged,
                       std::uint32_t* gaps, Word* values) {
  std::size_t count = 0;
  for (std::uint64_t row = 0; row < box.rows; ++row) {
    const std::uint8_t* old_row = box.old_words + row * box.old_row_stride_bytes;
    const std::uint8_t* new_row = box.new_words + row * box.new_row_stride_bytes;
    for (std::uint64_t i = 0; i < box.row_words; ++i) {
      const Word old_word = load_word<Word>(old_row, i);
      const Word new_word = load_word<Word>(new_row, i);
      if (old_word == new_word) {
        ++*unchanged;
        continue;
      }
      gaps[count] = static_cast<std::uint32_t>(*unchanged);
      values[count] = encode_word(encoding, old_word, new_word);
      ++count;
      *unchanged = 0;
    }
  }
  return count;
}

std::size_t scan_changes(unsigned width, Encoding encoding, const ScanBox& box,
                         std::uint64_t* unchanged, std::uint32_t* gaps, void* values) {
  return for_width(width, [&]<typename Word>(Word) {
    return scan_words<Word>(encoding, box, unchanged, gaps, static_cast<Word*>(values));
  });
}

std::size_t count_changes(unsigned width, const ScanBox& box) {
  return for_width(width, [&]<typename Word>(Word) {
    std::size_t count = 0;
    for (std::uint64_t row = 0; row < box.rows; ++row) {
      const std::uint8_t* old_row = box.old_words + row * box.old_row_stride_bytes;
      const std::uint8_t* new_row = box.new_words + row * box.new_row_stride_bytes;
      for (std::uint64_t i = 0; i < box.row_words; ++i) {
        if (load_word<Word>(old_row, i) != load_word<Word>(new_row, i)) ++count;
      }
    }
    return count;
  });
}

std::size_t pack_symbols(unsigned width, unsigned bits, const void* values, std::size_t count,
                         std::uint8_t* out) {
  const std::uint64_t escape = (std::uint64_t{1} << bits) - 1;
  std::memset(out, 0, (count * bits + 7) / 8);
  std::size_t escapes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t value = for_width(width, [&]<typename Word>(Word) {
      return static_cast<std::uint64_t>(static_cast<const Word*>(values)[i]);
    });
    const std::uint64_t symbol = std::min(value, escape);
    if (symbol == escape) ++escapes;
    out[i * bits / 8] = static_cast<std::uint8_t>(out[i * bits / 8] | symbol << (i * bits % 8));
  }
  return escapes;
}

std::uint8_t symbol_at(unsigned bits, const std::uint8_t* in, std::size_t i) {
  const unsigned mask = (1u << bits) - 1;
  return static_cast<std::uint8_t>((in[i * bits / 8] >> (i * bits % 8)) & mask);
}

void unpack_symbols(unsigned width, unsigned bits, const std::uint8_t* in, std::size_t count,
                    void* values) {
  for_width(width, [&]<typename Word>(Word) {
    for (std::size_t i = 0; i < count; ++i) {
      static_cast<Word*>(values)[i] = symbol_at(bits, in, i);
    }
  });
}

std::size_t count_escapes(unsigned bits, const std::uint8_t* in, std::size_t count) {
  std::size_t escapes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (symbol_at(bits, in, i) == (1u << bits) - 1) ++escapes;
  }
  return escapes;
}

std::size_t find_escapes(unsigned bits, const std::uint8_t* in, std::size_t count,
                         std::uint16_t* indices) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (symbol_at(bits, in, i) == (1u << bits) - 1) {
      indices[found++] = static_cast<std::uint16_t>(i);
    }
  }
  return found;
}

void split_planes(unsigned width, const void* values, std::size_t count,
                  std::uint8_t* const* planes) {
  const std::uint8_t* bytes = static_cast<const std::uint8_t*>(values);
  for (std::size_t i = 0; i < count; ++i) {
    for (unsigned plane = 0; plane < width; ++plane) planes[plane][i] = bytes[i * width + plane];
  }
}

void join_planes(unsigned width, const std::uint8_t* const* planes, std::size_t count,
                 void* values) {
  std::uint8_t* bytes = static_cast<std::uint8_t*>(values);
  for (std::size_t i = 0; i < count; ++i) {
    for (unsigned plane = 0; plane < width; ++plane) bytes[i * width + plane] = planes[plane][i];
  }
}

std::size_t narrow_gaps(const std::uint32_t* gaps, std::size_t count, std::uint8_t* out) {
  std::size_t taken = 0;
  while (taken < count && gaps[taken] < 255) {
    out[taken] = static_cast<std::uint8_t>(gaps[taken]);
    ++taken;
  }
  return taken;
}

std::size_t expand_gaps(const std::uint8_t* gaps, std::size_t /*bytes*/, std::size_t count,
                        std::uint32_t* next, std::uint32_t* positions) {
  std::size_t taken = 0;
  for (std::size_t i = 0; i < count; ++i) {
    for (; gaps[taken] == 255; ++taken) *next += 255;
    positions[i] = *next + gaps[taken++];
    *next = positions[i] + 1;
  }
  return taken;
}

void sum_bytes(const std::uint8_t* bytes, std::size_t count, std::uint64_t* sum,
               std::uint64_t* full) {
  *sum = 0;
  *full = 0;
  for (std::size_t i = 0; i < count; ++i) {
    *sum += bytes[i];
    if (bytes[i] == 255) ++*full;
  }
}

void apply_dense(unsigned width, Encoding encoding, const void* values, std::size_t count,
                 void* target) {
  for_width(width, [&]<typename Word>(Word) {
    std::uint8_t* bytes = static_cast<std::uint8_t*>(target);
    for (std::size_t i = 0; i < count; ++i) {
      const Word value = static_cast<const Word*>(values)[i];
      store_word(bytes, i, decode_word(encoding, load_word<Word>(bytes, i), value));
    }
  });
}

}  // namespace

const Kernels& scalar_kernels() {
  static constexpr Kernels kScalar = {
      "scalar",       &scan_changes, &count_changes, &pack_symbols, &unpack_symbols,
      &count_escapes, &find_escapes, &split_planes,  &join_planes,  &narrow_gaps,
      &expand_gaps,   &sum_bytes,    &apply_dense};
  return kScalar;
}

}  // namespace dcr
