#include "dcr/tensor.h"

#include <gtest/gtest.h>

#include <set>

#include "base/limits.h"
#include "tensor/text.h"

namespace dcr {
namespace {

struct Expected {
  Dtype dtype;
  std::uint8_t number;
  const char* name;
  unsigned bits;
  unsigned word;
};

// The numbers are on the wire (docs/FORMAT.md): this table may only grow.
constexpr Expected kExpected[] = {
    {Dtype::kBool, 0, "BOOL", 8, 1},
    {Dtype::kU8, 1, "U8", 8, 1},
    {Dtype::kI8, 2, "I8", 8, 1},
    {Dtype::kF8E5M2, 3, "F8_E5M2", 8, 1},
    {Dtype::kF8E4M3, 4, "F8_E4M3", 8, 1},
    {Dtype::kF8E8M0, 5, "F8_E8M0", 8, 1},
    {Dtype::kF8E4M3Fnuz, 6, "F8_E4M3FNUZ", 8, 1},
    {Dtype::kF8E5M2Fnuz, 7, "F8_E5M2FNUZ", 8, 1},
    {Dtype::kI16, 8, "I16", 16, 2},
    {Dtype::kU16, 9, "U16", 16, 2},
    {Dtype::kF16, 10, "F16", 16, 2},
    {Dtype::kBF16, 11, "BF16", 16, 2},
    {Dtype::kI32, 12, "I32", 32, 4},
    {Dtype::kU32, 13, "U32", 32, 4},
    {Dtype::kF32, 14, "F32", 32, 4},
    {Dtype::kI64, 15, "I64", 64, 8},
    {Dtype::kU64, 16, "U64", 64, 8},
    {Dtype::kF64, 17, "F64", 64, 8},
    {Dtype::kC64, 18, "C64", 64, 8},
    {Dtype::kF4, 19, "F4", 4, 1},
    {Dtype::kF6E2M3, 20, "F6_E2M3", 6, 1},
    {Dtype::kF6E3M2, 21, "F6_E3M2", 6, 1},
};

TEST(Dtype, NumbersNamesAndWidths) {
  EXPECT_EQ(std::size(kExpected), kDtypeCount);
  for (const Expected& expected : kExpected) {
    EXPECT_EQ(static_cast<std::uint8_t>(expected.dtype), expected.number);
    EXPECT_EQ(dtype_name(expected.dtype), expected.name);
    EXPECT_EQ(dtype_bits(expected.dtype), expected.bits) << expected.name;
    EXPECT_EQ(word_bytes(expected.dtype), expected.word) << expected.name;
    auto dtype = dtype_from_name(expected.name);
    ASSERT_TRUE(dtype.ok());
    EXPECT_EQ(*dtype, expected.dtype);
  }
}

TEST(Dtype, UnknownNamesAreUnsupported) {
  for (const char* name : {"", "bf16", "BF16 ", "F128", "F8"}) {
    const auto dtype = dtype_from_name(name);
    EXPECT_EQ(dtype.status().code(), Code::kUnsupported);
    EXPECT_EQ(dtype.status().message(),
              "dtype \"" + std::string(name) + "\" is not one of the safetensors format");
  }
}

TEST(Shape, Text) {
  EXPECT_EQ(shape_text({}), "[]");
  EXPECT_EQ(shape_text({7}), "[7]");
  EXPECT_EQ(shape_text({2, 0, 3}), "[2, 0, 3]");
}

void expect_error(const Status& status, Code code, const std::string& message) {
  EXPECT_EQ(status.code(), code);
  EXPECT_EQ(status.message(), message);
}

TEST(Shape, Elements) {
  EXPECT_EQ(*tensor_elements({}), 1U);
  EXPECT_EQ(*tensor_elements({2, 3, 4}), 24U);
  EXPECT_EQ(*tensor_elements({5, 0}), 0U);
  EXPECT_EQ(*tensor_elements({1, 1, 1, 1, 1, 1, 1, 1}), 1U);
  EXPECT_EQ(*tensor_elements({kDimensionMax, 256}), kDimensionMax * 256);
  expect_error(tensor_elements(Shape(9, 1)).status(), Code::kTooLarge, "rank 9 is above 8");
  expect_error(tensor_elements({kDimensionMax + 1}).status(), Code::kTooLarge,
               "dimension 1099511627776 of shape [1099511627776] is above 1099511627775");
  expect_error(tensor_elements({kDimensionMax, 257}).status(), Code::kTooLarge,
               "the elements of shape [1099511627775, 257] are more than 281474976710655");
}

TEST(Shape, ProductsNeverWrap) {
  // 2^32 · 2^32 = 2^64 would be 0.
  const Shape wraps = {std::uint64_t{1} << 32, std::uint64_t{1} << 32};
  EXPECT_EQ(tensor_elements(wraps).status().code(), Code::kTooLarge);
  EXPECT_EQ(tensor_bytes(Dtype::kF64, wraps).status().code(), Code::kTooLarge);
  // Strides of a shape with a 0 would overflow all the same.
  EXPECT_EQ(tensor_elements({0, wraps[0], wraps[1]}).status().code(), Code::kTooLarge);
  EXPECT_EQ(tensor_elements({~std::uint64_t{0}}).status().code(), Code::kTooLarge);
}

TEST(Shape, Bytes) {
  EXPECT_EQ(*tensor_bytes(Dtype::kBF16, {3, 5}), 30U);
  EXPECT_EQ(*tensor_bytes(Dtype::kC64, {}), 8U);
  EXPECT_EQ(*tensor_bytes(Dtype::kF4, {4}), 2U);
  EXPECT_EQ(*tensor_bytes(Dtype::kF6E2M3, {4}), 3U);
  EXPECT_EQ(*tensor_bytes(Dtype::kF6E3M2, {2, 4}), 6U);
  EXPECT_EQ(*tensor_bytes(Dtype::kF4, {0}), 0U);
  EXPECT_EQ(*tensor_bytes(Dtype::kF64, {kDimensionMax, 256}), kDimensionMax * 256 * 8);
  expect_error(tensor_bytes(Dtype::kF4, {3}).status(), Code::kCorrupt,
               "shape [3] of dtype F4 does not end on a byte boundary");
  expect_error(tensor_bytes(Dtype::kF6E3M2, {2}).status(), Code::kCorrupt,
               "shape [2] of dtype F6_E3M2 does not end on a byte boundary");
}

TEST(Text, ValidUtf8) {
  for (const char* text :
       {"", "plain", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
        "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(valid_utf8(text)) << quoted_name(text);
    EXPECT_TRUE(valid_utf8(std::string("a") + text + "z")) << quoted_name(text);
  }
  // Continuation alone, cut short, longer than needed, surrogates, above U+10FFFF.
  for (const char* text :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2z", "\xe0\x9f\xbf", "\xe1\x80",
        "\xed\xa0\x80", "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf0\x90\x80", "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80", "\xfe", "\xff"}) {
    EXPECT_FALSE(valid_utf8(text)) << quoted_name(text);
    EXPECT_FALSE(valid_utf8(std::string("a") + text + "z")) << quoted_name(text);
    EXPECT_FALSE(valid_utf8(std::string(16, 'a') + text)) << quoted_name(text);
  }
  EXPECT_TRUE(valid_utf8(std::string_view("a\0b", 3)));
}

TEST(Text, QuotedNamesCannotDriveATerminal) {
  EXPECT_EQ(quoted_name("a.b"), "\"a.b\"");
  EXPECT_EQ(quoted_name("gr\xc3\xbc\xc3\x9f"), "\"gr\xc3\xbc\xc3\x9f\"");
  EXPECT_EQ(quoted_name("\x1b[2J\n\x7f"), "\"\\x1b[2J\\x0a\\x7f\"");
  EXPECT_EQ(quoted_name("\xc2\x9b"), "\"\\xc2\\x9b\"");  // the one-character escape sequence
  EXPECT_EQ(quoted_name("\xff"), "\"\\xff\"");
  EXPECT_EQ(quoted_name(std::string(1024, 'x')), "\"" + std::string(1024, 'x') + "\"");
  EXPECT_EQ(quoted_name(std::string(1025, 'x')), "\"" + std::string(1024, 'x') + "\"…");
}

}  // namespace
}  // namespace dcr
