#include "tensor/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/prng.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

constexpr Dtype kFloats[] = {Dtype::kF64,  Dtype::kF32,    Dtype::kF16,
                             Dtype::kBF16, Dtype::kF8E4M3, Dtype::kF8E5M2};

std::uint64_t cast_one(Dtype from, Dtype to, std::uint64_t word) {
  std::uint8_t in[8];
  std::uint8_t out[8] = {};
  store_little(in, word);
  cast_words(from, to, {in, word_bytes(from)}, {out, word_bytes(to)});
  return load_little<std::uint64_t>(out);
}

std::uint64_t f32(float value) { return std::bit_cast<std::uint32_t>(value); }

struct Shape8 {
  Dtype dtype;
  int mantissa, bias;
  bool infinity;
};
constexpr Shape8 kSmall[] = {{Dtype::kF16, 10, 15, true},
                             {Dtype::kBF16, 7, 127, true},
                             {Dtype::kF8E4M3, 3, 7, false},
                             {Dtype::kF8E5M2, 2, 15, true}};

int magnitude_bits(const Shape8& s) { return static_cast<int>(8 * word_bytes(s.dtype)) - 1; }
std::uint64_t first_special(const Shape8& s) {
  const std::uint64_t all = (std::uint64_t{1} << magnitude_bits(s)) - 1;
  return s.infinity ? all >> s.mantissa << s.mantissa : all;
}

// The value of a finite non-negative word, by the definition of such formats. The first special
// word stands for what would come next.
double value_of(const Shape8& s, std::uint64_t word) {
  const auto exponent = static_cast<int>(word >> s.mantissa);
  const auto fraction = static_cast<double>(word & ((std::uint64_t{1} << s.mantissa) - 1));
  const double one = std::ldexp(1.0, s.mantissa);
  return exponent == 0 ? std::ldexp(fraction, 1 - s.bias - s.mantissa)
                       : std::ldexp(one + fraction, exponent - s.bias - s.mantissa);
}

TEST(Cast, EverySmallWordIsItsValue) {
  for (const Shape8& s : kSmall) {
    const std::uint64_t sign = std::uint64_t{1} << magnitude_bits(s);
    for (std::uint64_t word = 0; word < first_special(s); ++word) {
      const auto value = static_cast<float>(value_of(s, word));
      ASSERT_EQ(cast_one(s.dtype, Dtype::kF32, word), f32(value)) << dtype_name(s.dtype) << word;
      ASSERT_EQ(cast_one(s.dtype, Dtype::kF32, word | sign), f32(-value));
      ASSERT_EQ(cast_one(Dtype::kF32, s.dtype, f32(value)), word);
      ASSERT_EQ(cast_one(Dtype::kF32, s.dtype, f32(-value)), word | sign);
      ASSERT_EQ(cast_one(s.dtype, Dtype::kF64, word | sign),
                std::bit_cast<std::uint64_t>(-static_cast<double>(value)));
    }
  }
}

// Around every boundary between two words: what lies in the middle goes to the even one, a last bit
// more or less to the nearer one. Between the last finite word and the special one too.
TEST(Cast, RoundsToNearestEven) {
  for (const Shape8& s : kSmall) {
    const std::uint64_t sign = std::uint64_t{1} << magnitude_bits(s);
    for (std::uint64_t word = 0; word < first_special(s); ++word) {
      const double middle = (value_of(s, word) + value_of(s, word + 1)) / 2;
      const auto exact = static_cast<float>(middle);
      if (static_cast<double>(exact) != middle) continue;  // subnormal BF16 has no middle in F32
      const std::uint64_t even = word % 2 == 0 ? word : word + 1;
      ASSERT_EQ(cast_one(Dtype::kF32, s.dtype, f32(exact)), even) << dtype_name(s.dtype) << word;
      ASSERT_EQ(cast_one(Dtype::kF32, s.dtype, f32(-exact)), even | sign);
      ASSERT_EQ(cast_one(Dtype::kF32, s.dtype, f32(exact) - 1), word);
      ASSERT_EQ(cast_one(Dtype::kF32, s.dtype, f32(exact) + 1), word + 1);
    }
  }
}

// Random F32 bits against the definition: no finite word is nearer.
TEST(Cast, RandomNumbersGoToTheNearestWord) {
  Prng prng(5);
  for (std::uint64_t i = 0; i < campaign_cases(200'000); ++i) {
    const auto bits = static_cast<std::uint32_t>(prng.next()) & 0x7fffffff;
    const auto value = static_cast<double>(std::bit_cast<float>(bits));
    if (!std::isfinite(value)) continue;
    for (const Shape8& s : kSmall) {
      const std::uint64_t word = cast_one(Dtype::kF32, s.dtype, bits);
      const std::uint64_t top = first_special(s);
      if (word >= top) {
        const double half = (value_of(s, top - 1) + value_of(s, top)) / 2;
        ASSERT_GE(value, half);
        continue;
      }
      const double distance = std::abs(value - value_of(s, word));
      ASSERT_LE(distance, std::abs(value - value_of(s, word + 1))) << dtype_name(s.dtype) << bits;
      if (word > 0) {
        ASSERT_LE(distance, std::abs(value - value_of(s, word - 1)));
      }
    }
  }
}

TEST(Cast, OverflowAndInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kBF16, f32(largest)), 0x7f80u);
  EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kBF16, f32(-infinity)), 0xff80u);
  EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kF16, f32(65519.0F)), 0x7bffu);
  EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kF16, f32(65520.0F)), 0x7c00u);
  EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kF16, f32(-largest)), 0xfc00u);
  EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kF16, f32(infinity)), 0x7c00u);
  EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kF8E5M2, f32(61439.0F)), 0x7bu);
  EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kF8E5M2, f32(61440.0F)), 0x7cu);
  EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kF8E5M2, f32(-infinity)), 0xfcu);
  EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kF8E4M3, f32(464.0F)), 0x7eu);  // 448
  EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kF8E4M3, f32(465.0F)), 0x7fu);
  EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kF8E4M3, f32(-infinity)), 0xffu);
  EXPECT_EQ(cast_one(Dtype::kF64, Dtype::kF32, std::bit_cast<std::uint64_t>(1e300)), 0x7f800000u);
  EXPECT_EQ(cast_one(Dtype::kF16, Dtype::kF32, 0xfc00), 0xff800000u);
  EXPECT_EQ(cast_one(Dtype::kF8E5M2, Dtype::kF32, 0x7c), 0x7f800000u);
  EXPECT_EQ(cast_one(Dtype::kBF16, Dtype::kF64, 0x7f80), 0x7ff0000000000000u);
}

TEST(Cast, Nans) {
  for (const std::uint64_t nan : {0x7fc00000u, 0x7f800001u, 0x7fffffffu}) {
    EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kBF16, nan), 0x7fc0u);
    EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kBF16, nan | 0x80000000), 0x7fc0u);
    EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kF16, nan), 0x7e00u);
    EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kF16, nan | 0x80000000), 0xfe00u);
    EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kF8E4M3, nan), 0x7fu);
    EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kF8E4M3, nan | 0x80000000), 0xffu);
    EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kF8E5M2, nan), 0x7fu);
    EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kF8E5M2, nan | 0x80000000), 0xffu);
  }
  EXPECT_EQ(cast_one(Dtype::kF16, Dtype::kF32, 0x7c01), 0x7fc02000u);
  EXPECT_EQ(cast_one(Dtype::kF16, Dtype::kF32, 0xfe03), 0xffc06000u);
  EXPECT_EQ(cast_one(Dtype::kBF16, Dtype::kF32, 0xff81), 0xff810000u);
  EXPECT_EQ(cast_one(Dtype::kF8E5M2, Dtype::kF32, 0x7d), 0x7fe00000u);
  EXPECT_EQ(cast_one(Dtype::kF8E4M3, Dtype::kF32, 0x7f), 0x7ff00000u);
  EXPECT_EQ(cast_one(Dtype::kF8E4M3, Dtype::kF32, 0xff), 0xfff00000u);
  EXPECT_EQ(cast_one(Dtype::kF32, Dtype::kF64, 0x7f800001), 0x7ff8000020000000u);
  EXPECT_EQ(cast_one(Dtype::kF64, Dtype::kF32, 0xfff0000020000000), 0xffc00001u);
  EXPECT_EQ(cast_one(Dtype::kF16, Dtype::kBF16, 0xfc01), 0x7fc0u);
}

TEST(Cast, ThroughF32) {
  // 1 + 2^-8 + 2^-40 is above the middle of two BF16s, but F32 rounds it to the middle.
  const double value = 1.0 + std::ldexp(1.0, -8) + std::ldexp(1.0, -40);
  EXPECT_EQ(cast_one(Dtype::kF64, Dtype::kBF16, std::bit_cast<std::uint64_t>(value)), 0x3f80u);
  for (const Shape8& from : kSmall) {
    for (std::uint64_t word = 0; word < std::uint64_t{2} << magnitude_bits(from); ++word) {
      const std::uint64_t middle = cast_one(from.dtype, Dtype::kF32, word);
      for (const Dtype to : kFloats) {
        if (to == from.dtype) continue;
        ASSERT_EQ(cast_one(from.dtype, to, word),
                  to == Dtype::kF32 ? middle : cast_one(Dtype::kF32, to, middle));
      }
    }
  }
}

// Whole vectors give what single words give, at any alignment and length.
TEST(Cast, VectorsAndTails) {
  Prng prng(9);
  for (const Dtype from : kFloats) {
    for (const Dtype to : kFloats) {
      const std::size_t in_width = word_bytes(from);
      const std::size_t out_width = word_bytes(to);
      for (const std::size_t count : {0u, 1u, 7u, 16u, 33u, 300u}) {
        Bytes in(count * in_width + 1);
        for (std::uint8_t& byte : in) byte = static_cast<std::uint8_t>(prng.next());
        Bytes out(count * out_width + 2, 0xa5);
        cast_words(from, to, ByteSpan(in).subspan(1),
                   MutableByteSpan(out).subspan(1, count * out_width));
        EXPECT_EQ(out.front(), 0xa5);
        EXPECT_EQ(out.back(), 0xa5);
        for (std::size_t i = 0; i < count; ++i) {
          std::uint8_t word[8] = {};
          std::copy_n(in.data() + 1 + i * in_width, in_width, word);
          std::uint8_t expected[8];
          store_little(expected, cast_one(from, to, load_little<std::uint64_t>(word)));
          ASSERT_TRUE(std::equal(expected, expected + out_width, out.data() + 1 + i * out_width));
        }
      }
    }
  }
}

TEST(Cast, WhatIsSupported) {
  for (unsigned from = 0; from < kDtypeCount; ++from) {
    for (unsigned to = 0; to < kDtypeCount; ++to) {
      const auto is_float = [](unsigned dtype) {
        return std::find(std::begin(kFloats), std::end(kFloats), static_cast<Dtype>(dtype)) !=
               std::end(kFloats);
      };
      EXPECT_EQ(cast_supported(static_cast<Dtype>(from), static_cast<Dtype>(to)).ok(),
                from == to || (is_float(from) && is_float(to)));
    }
  }
  const Status status = cast_supported(Dtype::kF32, Dtype::kI8);
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_EQ(status.message(),
            "no cast from F32 to I8: casts are between F64, F32, F16, BF16, F8_E4M3 and F8_E5M2");
  const std::uint8_t in[3] = {1, 2, 255};
  std::uint8_t out[3] = {};
  cast_words(Dtype::kBool, Dtype::kBool, in, out);
  EXPECT_TRUE(std::equal(in, in + 3, out));
}

}  // namespace
}  // namespace dcr
