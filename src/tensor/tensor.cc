#include "dcr/tensor.h"

#include <array>

#include "base/assert.h"
#include "base/checked.h"
#include "base/limits.h"
#include "tensor/text.h"

namespace dcr {

namespace {

struct DtypeInfo {
  std::string_view name;
  unsigned bits;
};

// By number; the spelling is the format's (its enum `Dtype`).
constexpr std::array<DtypeInfo, kDtypeCount> kDtypes = {{
    {"BOOL", 8},    {"U8", 8},          {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8},
    {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},
    {"F16", 16},    {"BF16", 16},       {"I32", 32},        {"U32", 32},    {"F32", 32},
    {"I64", 64},    {"U64", 64},        {"F64", 64},        {"C64", 64},    {"F4", 4},
    {"F6_E2M3", 6}, {"F6_E3M2", 6},
}};

const DtypeInfo& info_of(Dtype dtype) {
  const auto number = static_cast<std::size_t>(dtype);
  DCR_ASSERT(number < kDtypes.size());
  return kDtypes[number];
}

}  // namespace

std::string_view dtype_name(Dtype dtype) { return info_of(dtype).name; }

Result<Dtype> dtype_from_name(std::string_view name) {
  for (std::size_t number = 0; number < kDtypes.size(); ++number) {
    if (kDtypes[number].name == name) return static_cast<Dtype>(number);
  }
  return Status(Code::kUnsupported,
                "dtype " + quoted_name(name) + " is not one of the safetensors format");
}

unsigned dtype_bits(Dtype dtype) { return info_of(dtype).bits; }

unsigned word_bytes(Dtype dtype) {
  const unsigned bits = info_of(dtype).bits;
  return bits < 8 ? 1 : bits / 8;
}

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

Result<std::uint64_t> tensor_elements(const Shape& shape) {
  if (shape.size() > kRankMax) {
    return Status(Code::kTooLarge,
                  "rank " + std::to_string(shape.size()) + " is above " + std::to_string(kRankMax));
  }
  std::uint64_t product = 1;
  bool empty = false;
  for (const std::uint64_t size : shape) {
    if (size > kDimensionMax) {
      return Status(Code::kTooLarge, "dimension " + std::to_string(size) + " of shape " +
                                         shape_text(shape) + " is above " +
                                         std::to_string(kDimensionMax));
    }
    if (size == 0) {
      empty = true;
      continue;
    }
    const auto larger = checked_multiply(product, size);
    if (!larger || *larger > kElementsMax) {
      return Status(Code::kTooLarge, "the elements of shape " + shape_text(shape) +
                                         " are more than " + std::to_string(kElementsMax));
    }
    product = *larger;
  }
  return empty ? 0 : product;
}

Result<std::uint64_t> tensor_bytes(Dtype dtype, const Shape& shape) {
  DCR_ASSIGN(const std::uint64_t elements, tensor_elements(shape));
  static_assert(kElementsMax <= ~std::uint64_t{0} / 64);  // the product below cannot overflow
  const std::uint64_t bits = elements * dtype_bits(dtype);
  if (bits % 8 != 0) {
    return Status(Code::kCorrupt, "shape " + shape_text(shape) + " of dtype " +
                                      std::string(dtype_name(dtype)) +
                                      " does not end on a byte boundary");
  }
  return bits / 8;
}

}  // namespace dcr
