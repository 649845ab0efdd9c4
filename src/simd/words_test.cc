#include "simd/words.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <limits>
#include <vector>

#include "base/prng.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

constexpr Encoding kEncodings[] = {Encoding::kOverwrite, Encoding::kXor, Encoding::kAdd};

template <typename Word>
constexpr Word kOnes = std::numeric_limits<Word>::max();

// What words.h promises of one pair of words.
template <typename Word>
void check_pair(Word old_word, Word new_word) {
  for (const Encoding encoding : kEncodings) {
    if (encoding != Encoding::kOverwrite && old_word == new_word) continue;
    const Word value = encode_word(encoding, old_word, new_word);
    ASSERT_EQ(decode_word(encoding, old_word, value), new_word)
        << encoding_name(encoding) << " " << +old_word << " -> " << +new_word;
    // Of xor and add, the value that would change nothing is never used.
    if (encoding != Encoding::kOverwrite) {
      ASSERT_NE(value, kOnes<Word>);
    }
  }
}

TEST(Words, ZigzagOfSmallDifferences) {
  // 0, −1, 1, −2, 2 → 0, 1, 2, 3, 4.
  EXPECT_EQ(zigzag<std::uint8_t>(0), 0);
  EXPECT_EQ(zigzag<std::uint8_t>(0xff), 1);
  EXPECT_EQ(zigzag<std::uint8_t>(1), 2);
  EXPECT_EQ(zigzag<std::uint8_t>(0xfe), 3);
  EXPECT_EQ(zigzag<std::uint8_t>(2), 4);
  EXPECT_EQ(zigzag<std::uint8_t>(0x7f), 0xfe);
  EXPECT_EQ(zigzag<std::uint8_t>(0x80), 0xff);
  EXPECT_EQ(zigzag<std::uint64_t>(~std::uint64_t{0}), 1u);
  EXPECT_EQ(zigzag<std::uint64_t>(std::uint64_t{1} << 63), ~std::uint64_t{0});
}

TEST(Words, ZigzagIsAPermutationOf16Bits) {
  std::vector<bool> seen(65536, false);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const std::uint16_t value = zigzag(static_cast<std::uint16_t>(i));
    EXPECT_FALSE(seen[value]) << i;
    seen[value] = true;
    ASSERT_EQ(unzigzag(value), i);
  }
}

TEST(Words, ValuesOfKnownChanges) {
  // BF16 1.0 → its upper neighbour and back: the commonest changes are 1 and 0 under add.
  EXPECT_EQ(encode_word<std::uint16_t>(Encoding::kAdd, 0x3f80, 0x3f81), 1);
  EXPECT_EQ(encode_word<std::uint16_t>(Encoding::kAdd, 0x3f81, 0x3f80), 0);
  EXPECT_EQ(encode_word<std::uint16_t>(Encoding::kXor, 0x3f80, 0x3f81), 0);
  EXPECT_EQ(encode_word<std::uint16_t>(Encoding::kOverwrite, 0x3f80, 0x3f81), 0x3f81);
  // The sign of zero: the farthest that add can go.
  EXPECT_EQ(encode_word<std::uint16_t>(Encoding::kAdd, 0x0000, 0x8000), 0xfffe);
  EXPECT_EQ(encode_word<std::uint16_t>(Encoding::kXor, 0x0000, 0x8000), 0x7fff);
  // add wraps.
  EXPECT_EQ(encode_word<std::uint32_t>(Encoding::kAdd, 0xffffffff, 0), 1u);
  EXPECT_EQ(decode_word<std::uint32_t>(Encoding::kAdd, 0xffffffff, 1), 0u);
}

TEST(Words, DecodeInvertsEncodeForAll8BitPairs) {
  for (unsigned a = 0; a < 256; ++a) {
    for (unsigned b = 0; b < 256; ++b) {
      check_pair(static_cast<std::uint8_t>(a), static_cast<std::uint8_t>(b));
    }
  }
}

// All 2^16 values of a change on a resident word, for some residents: with 8 bits above that is
// every case that the arithmetic distinguishes.
TEST(Words, DecodeInvertsEncodeForAll16BitWords) {
  for (const unsigned a :
       {0x0000u, 0x0001u, 0x3f80u, 0x7f80u, 0x7fc1u, 0x7fffu, 0x8000u, 0xffffu}) {
    for (std::uint32_t b = 0; b < 65536; ++b) {
      check_pair(static_cast<std::uint16_t>(a), static_cast<std::uint16_t>(b));
      check_pair(static_cast<std::uint16_t>(b), static_cast<std::uint16_t>(a));
    }
  }
}

template <typename Word>
void check_wide(std::uint64_t seed) {
  Prng random(seed);
  std::vector<Word> words = {0, 1, 2, 3, kOnes<Word>, static_cast<Word>(kOnes<Word> - 1)};
  for (unsigned bit = 0; bit < 8 * sizeof(Word); ++bit) {
    words.push_back(static_cast<Word>(Word{1} << bit));
    words.push_back(static_cast<Word>((Word{1} << bit) - 1));
  }
  for (const Word a : words) {
    for (const Word b : words) check_pair(a, b);
  }
  for (std::uint64_t i = 0; i < campaign_cases(1'000'000); ++i) {
    check_pair(static_cast<Word>(random.next()), static_cast<Word>(random.next()));
  }
}

TEST(Words, DecodeInvertsEncodeForWideWords) {
  check_wide<std::uint32_t>(31);
  check_wide<std::uint64_t>(32);
}

TEST(Words, LoadAndStoreAtAnyAlignment) {
  std::vector<std::uint8_t> bytes(64, 0xee);
  for (std::size_t shift = 0; shift < 8; ++shift) {
    store_word<std::uint64_t>(bytes.data() + shift, 2, 0x0123456789abcdef);
    EXPECT_EQ(load_word<std::uint64_t>(bytes.data() + shift, 2), 0x0123456789abcdef);
    EXPECT_EQ(bytes[shift + 16], 0xef);  // little-endian
    EXPECT_EQ(bytes[shift + 15], shift == 0 ? 0xee : bytes[shift + 15]);
    EXPECT_EQ(bytes[shift + 24], 0xee);
    std::fill(bytes.begin(), bytes.end(), std::uint8_t{0xee});
  }
}

}  // namespace
}  // namespace dcr
