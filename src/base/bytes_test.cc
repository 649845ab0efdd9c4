#include "base/bytes.h"

#include <gtest/gtest.h>

#include "base/checked.h"
#include "base/prng.h"

namespace dcr {
namespace {

TEST(Bytes, WritesLittleEndianAndReadsItBack) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.u8(1);
  out.u16(0x0302);
  out.u32(0x07060504);
  out.u64(0x0f0e0d0c0b0a0908);
  out.text("ab");
  out.zeros(2);
  EXPECT_EQ(bytes, (Bytes{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 'a', 'b', 0, 0}));
  ByteReader in(bytes);
  EXPECT_EQ(in.u8(), 1u);
  EXPECT_EQ(in.u16(), 0x0302u);
  EXPECT_EQ(in.u32(), 0x07060504u);
  EXPECT_EQ(in.u64(), 0x0f0e0d0c0b0a0908u);
  EXPECT_EQ(in.text(2), "ab");
  EXPECT_EQ(in.remaining(), 2u);
  EXPECT_TRUE(in.ok());
}

TEST(Bytes, AReadPastTheEndFailsForGood) {
  const Bytes bytes = {1, 2, 3};
  ByteReader in(bytes);
  EXPECT_EQ(in.u32(), 0u);
  EXPECT_FALSE(in.ok());
  EXPECT_EQ(in.u8(), 0u);
  EXPECT_EQ(in.position(), 0u);
  ByteReader long_read(bytes);
  EXPECT_TRUE(long_read.bytes(~std::uint64_t{0}).empty());
  EXPECT_FALSE(long_read.ok());
}

TEST(Bytes, VarintsOfEveryLengthComeBack) {
  for (unsigned bits = 0; bits <= 64; ++bits) {
    const std::uint64_t top = bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
    for (const std::uint64_t value : {top, top / 2 + 1, top / 3}) {
      Bytes bytes;
      ByteWriter(&bytes).varint(value);
      ByteReader in(bytes);
      EXPECT_EQ(in.varint(), value);
      EXPECT_TRUE(in.ok());
      EXPECT_EQ(in.remaining(), 0u);
    }
  }
}

TEST(Bytes, OnlyTheShortestSpellingOfAVarintIsRead) {
  const Bytes bad[] = {
      {0x80, 0x00},                                                  // 0 in two bytes
      {0xff, 0x80, 0x00},                                            // 127 in three
      {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02},  // 2^64 and more
      {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01},
      {0x80},
      {},
  };
  for (const Bytes& bytes : bad) {
    ByteReader in(bytes);
    EXPECT_EQ(in.varint(), 0u);
    EXPECT_FALSE(in.ok()) << bytes.size();
  }
}

TEST(Checked, NothingWraps) {
  constexpr std::uint64_t kTop = ~std::uint64_t{0};
  EXPECT_EQ(checked_add(kTop, 0), kTop);
  EXPECT_EQ(checked_add(kTop, 1), std::nullopt);
  EXPECT_EQ(checked_multiply(std::uint64_t{1} << 32, (std::uint64_t{1} << 32) - 1),
            (std::uint64_t{1} << 32) * ((std::uint64_t{1} << 32) - 1));
  EXPECT_EQ(checked_multiply(std::uint64_t{1} << 32, std::uint64_t{1} << 32), std::nullopt);
  EXPECT_EQ(checked_multiply(kTop, 0), 0u);
  EXPECT_EQ(checked_narrow<std::uint8_t>(255), 255u);
  EXPECT_EQ(checked_narrow<std::uint8_t>(256), std::nullopt);
  EXPECT_EQ(divide_up(0, 8), 0u);
  EXPECT_EQ(divide_up(9, 8), 2u);
  EXPECT_EQ(divide_up(kTop, 1), kTop);
}

// The generator's first numbers, so that seeds printed anywhere mean the same everywhere.
TEST(Prng, IsTheSameOnEveryMachine) {
  Prng random(42);
  EXPECT_EQ(random.next(), 0x15780b2e0c2ec716u);
  EXPECT_EQ(random.next(), 0x6104d9866d113a7eu);
  EXPECT_LT(random.below(10), 10u);
}

}  // namespace
}  // namespace dcr
