// Tensors as DCR sees them: a canonical name (the checkpoint's), a dtype, a shape. Values are never
// numbers here; they are words, unsigned integers of the element's width (paper §4.1: "stored bit
// patterns").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dcr/status.h"

namespace dcr {

// Every dtype of the safetensors format. The numbers are part of docs/FORMAT.md and never change.
enum class Dtype : std::uint8_t {
  kBool = 0,
  kU8 = 1,
  kI8 = 2,
  kF8E5M2 = 3,
  kF8E4M3 = 4,
  kF8E8M0 = 5,
  kF8E4M3Fnuz = 6,
  kF8E5M2Fnuz = 7,
  kI16 = 8,
  kU16 = 9,
  kF16 = 10,
  kBF16 = 11,
  kI32 = 12,
  kU32 = 13,
  kF32 = 14,
  kI64 = 15,
  kU64 = 16,
  kF64 = 17,
  kC64 = 18,
  kF4 = 19,      // two elements a byte
  kF6E2M3 = 20,  // four elements in three bytes
  kF6E3M2 = 21,  // four elements in three bytes
};
inline constexpr std::uint8_t kDtypeCount = 22;

// The safetensors spelling ("BF16", "F8_E4M3").
std::string_view dtype_name(Dtype dtype);

// Error: kUnsupported naming the word, when the format has no such dtype.
Result<Dtype> dtype_from_name(std::string_view name);

// Bits of one element: 4, 6, 8, 16, 32 or 64.
unsigned dtype_bits(Dtype dtype);

// Bytes of the word that is compared, coded and applied as one unsigned integer: 1, 2, 4 or 8.
// Sub-byte dtypes are opaque bytes: their word is one byte, which holds more than one element.
unsigned word_bytes(Dtype dtype);

// Sizes, outermost first; empty for a scalar. At most kRankMax dimensions.
using Shape = std::vector<std::uint64_t>;

// "[2, 3]", as messages print it.
std::string shape_text(const Shape& shape);

// Bytes of a tensor. Errors: kTooLarge when rank is above kRankMax, a dimension above kDimensionMax
// or the product above kElementsMax (of the dimensions that are not 0, so that strides computed
// from a shape never overflow); kCorrupt when a sub-byte tensor does not end on a byte.
Result<std::uint64_t> tensor_bytes(Dtype dtype, const Shape& shape);

// Elements of a tensor, under the same limits.
Result<std::uint64_t> tensor_elements(const Shape& shape);

// A tensor of the checkpoint, as owners publish it and receivers load it (paper §4).
struct CanonicalTensor {
  std::string name;
  Dtype dtype = Dtype::kU8;
  Shape shape;
  std::uint64_t words = 0;  // elements, or bytes of a sub-byte dtype; 0: to be counted
};

// A tensor in memory of the caller's: its elements without gaps, the last dimension fastest. Where
// it is only read, `bytes` is not written to.
struct MemoryTensor {
  std::string name;
  Dtype dtype = Dtype::kU8;
  Shape shape;
  std::span<std::uint8_t> bytes;  // tensor_bytes(dtype, shape) of them
};

// Words of a canonical tensor: (i0, i1, …) lies at offset + Σ i_d · strides_d of the flat tensor.
struct CanonicalBox {
  std::uint32_t tensor = 0;  // its index, by name
  std::uint64_t offset = 0;
  Shape sizes;
  Shape strides;
  bool operator==(const CanonicalBox&) const = default;
};

}  // namespace dcr
