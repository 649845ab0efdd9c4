// The data-parallel kernels: compare, and pack and unpack what the codec's streams hold. Each
// exists as a scalar reference and as one Highway source compiled for every instruction set of the
// platform; the best one that the CPU supports is picked at run time. The library itself is
// compiled for the baseline CPU.
//
// Words are unsigned integers of `width` bytes (1, 2, 4 or 8), little-endian, at any alignment.
// Thread safety: every kernel is a pure function of its arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dcr/options.h"
#include "dcr/status.h"

namespace dcr {

// One rectangle of words to compare: `rows` rows of `row_words` words, whose starts lie the given
// number of bytes apart.
struct ScanBox {
  const std::uint8_t* old_words = nullptr;
  const std::uint8_t* new_words = nullptr;
  std::uint64_t rows = 1;
  std::uint64_t row_words = 0;
  std::uint64_t old_row_stride_bytes = 0;
  std::uint64_t new_row_stride_bytes = 0;
};

// How many words past the last one the outputs of scan_changes may be scribbled on.
inline constexpr std::size_t kScanSlackWords = 64;

// How many entries past the last one the output of find_escapes may be scribbled on.
inline constexpr std::size_t kEscapeSlack = 4;

struct Kernels {
  const char* name;  // "scalar", or the Highway target ("AVX2", "AVX3", "NEON", …)

  // Finds the words that differ in bits, in the box's own order. For each it appends to `gaps` the
  // number of equal words since the change before it (or since `*unchanged` words before the box),
  // and to `values` its value under `encoding`:
  //   overwrite: new        xor: (old ^ new) − 1        add: zigzag(new − old) − 1
  // where zigzag(d) = 2d for d in [0, 2^(w−1)) and −2d − 1 for negative d, both mod 2^w; so the
  // commonest changes are 0 and 1. Returns the number of changes; `*unchanged` becomes the number
  // of equal words after the last. `gaps` and `values` (words of `width` bytes, naturally aligned)
  // need room for rows × row_words + kScanSlackWords entries.
  std::size_t (*scan_changes)(unsigned width, Encoding encoding, const ScanBox& box,
                              std::uint64_t* unchanged, std::uint32_t* gaps, void* values);

  // The same comparison, counting only.
  std::size_t (*count_changes)(unsigned width, const ScanBox& box);

  // Packs min(value, 2^bits − 1) of `count` values into `out`, first value in the lowest bits of
  // the first byte; bits is 2, 4 or 8. Unused bits of the last byte are zero. Writes ceil(count ×
  // bits / 8) bytes. Returns how many values were ≥ 2^bits − 1.
  std::size_t (*pack_symbols)(unsigned width, unsigned bits, const void* values, std::size_t count,
                              std::uint8_t* out);

  // The inverse: widens symbols to words. Reads exactly ceil(count × bits / 8) bytes. Symbols of
  // 2^bits − 1 stay as they are.
  void (*unpack_symbols)(unsigned width, unsigned bits, const std::uint8_t* in, std::size_t count,
                         void* values);

  // How many of the `count` symbols are 2^bits − 1 (escapes).
  std::size_t (*count_escapes)(unsigned bits, const std::uint8_t* in, std::size_t count);

  // The indices of these, ascending; returns how many. REQUIRES: bits is 2 or 4, count <= 65,536.
  // `indices` needs room for count + kEscapeSlack entries.
  std::size_t (*find_escapes)(unsigned bits, const std::uint8_t* in, std::size_t count,
                              std::uint16_t* indices);

  // Gathers bits [8 × plane, 8 × plane + 8) of each word, and the inverse for all planes of a word
  // at once.
  void (*split_planes)(unsigned width, const void* values, std::size_t count,
                       std::uint8_t* const* planes);
  void (*join_planes)(unsigned width, const std::uint8_t* const* planes, std::size_t count,
                      void* values);

  // Narrows gaps below 255 to bytes while they last; returns how many it took.
  std::size_t (*narrow_gaps)(const std::uint32_t* gaps, std::size_t count, std::uint8_t* out);

  // The positions of the next `count` changes: each gap is any number of bytes 255, which count
  // 255, and a byte below; positions[i] = *next + the gap, and *next becomes the position after it.
  // Returns how many bytes it took. REQUIRES: the `bytes` bytes hold so many gaps.
  std::size_t (*expand_gaps)(const std::uint8_t* gaps, std::size_t bytes, std::size_t count,
                             std::uint32_t* next, std::uint32_t* positions);

  // Sum of `count` bytes, and how many are 255.
  void (*sum_bytes)(const std::uint8_t* bytes, std::size_t count, std::uint64_t* sum,
                    std::uint64_t* full);

  // target[i] = decode(values[i]) over `count` consecutive words, for items that change every word.
  void (*apply_dense)(unsigned width, Encoding encoding, const void* values, std::size_t count,
                      void* target);
};

// The scalar reference.
const Kernels& scalar_kernels();

// The kernels in use: the best supported, or those that the environment variable DCR_FORCE_ISA
// names ("scalar" or a Highway target). Error kUnsupported, naming the supported ones, if the
// variable names another. Decided once per process.
Result<const Kernels*> select_kernels();

// select_kernels() for code below the shells. REQUIRES: select_kernels() succeeds, which the shells
// check at start.
const Kernels& kernels();

// Every kernel set that this CPU can run, the scalar one first. For tests and benchmarks.
std::vector<const Kernels*> supported_kernels();

}  // namespace dcr
