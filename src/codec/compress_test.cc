#include "codec/compress.h"

#define ZSTD_STATIC_LINKING_ONLY
#include <gtest/gtest.h>
#include <zstd.h>

#include <functional>
#include <memory>
#include <vector>

#include "base/limits.h"
#include "base/prng.h"

namespace dcr {
namespace {

Bytes bytes_of(std::size_t count, const std::function<std::uint64_t(std::size_t)>& value) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(value(i));
  return bytes;
}

Bytes random_bytes(std::size_t count, std::uint64_t bound) {
  Prng random(count);
  return bytes_of(count, [&](std::size_t) { return random.below(bound); });
}

// A frame made by the library itself, with one parameter set.
Bytes frame_of(ByteSpan raw, ZSTD_cParameter parameter, int value) {
  const std::unique_ptr<ZSTD_CCtx, std::size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(),
                                                                        &ZSTD_freeCCtx);
  EXPECT_FALSE(ZSTD_isError(ZSTD_CCtx_setParameter(context.get(), parameter, value)));
  Bytes out(ZSTD_compressBound(raw.size()));
  const std::size_t size =
      ZSTD_compress2(context.get(), out.data(), out.size(), raw.data(), raw.size());
  EXPECT_FALSE(ZSTD_isError(size)) << ZSTD_getErrorName(size);
  out.resize(size);
  return out;
}

Bytes plain_frame(ByteSpan raw) { return frame_of(raw, ZSTD_c_compressionLevel, 1); }

void expect_refused(ByteSpan stored, std::uint64_t raw_bytes, Code code, const std::string& words) {
  const Status status = check_frame(stored, raw_bytes);
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_EQ(status.message(), words);
}

TEST(Compress, StreamsComeBack) {
  const std::vector<Bytes> streams = {random_bytes(1, 256),
                                      random_bytes(200, 256),
                                      random_bytes(100'000, 256),
                                      random_bytes(100'000, 3),
                                      random_bytes(300'000, 40),
                                      Bytes(500'000, 7),
                                      bytes_of(200'000, [](std::size_t i) { return i % 251; }),
                                      bytes_of(65'536, [](std::size_t i) { return i * i >> 7; }),
                                      random_bytes(65'537, 2)};
  for (const Bytes& raw : streams) {
    Bytes out = {0xab};  // appended to
    const std::uint8_t coding = compress_stream(raw, &out);
    EXPECT_EQ(out[0], 0xab);
    const ByteSpan stored = ByteSpan(out).subspan(1);
    if (coding == kCodingStored) {
      EXPECT_TRUE(std::equal(stored.begin(), stored.end(), raw.begin(), raw.end()));
      continue;
    }
    ASSERT_EQ(coding, kCodingZstd);
    EXPECT_LT(stored.size(), raw.size());
    ASSERT_TRUE(check_frame(stored, raw.size()).ok()) << check_frame(stored, raw.size()).message();
    Bytes back(raw.size());
    ASSERT_TRUE(decompress_frame(stored, back).ok());
    EXPECT_EQ(back, raw);
    Bytes again;
    EXPECT_EQ(compress_stream(raw, &again), coding);
    EXPECT_TRUE(std::equal(stored.begin(), stored.end(), again.begin(), again.end()));
  }
}

TEST(Compress, WhatDoesNotShrinkIsStored) {
  for (const std::size_t size : {1u, 3u, 100u, 70'000u}) {
    const Bytes raw = random_bytes(size, 256);
    Bytes out;
    EXPECT_EQ(compress_stream(raw, &out), kCodingStored);
    EXPECT_EQ(out, raw);
  }
  Bytes out;
  EXPECT_EQ(compress_stream(Bytes(1000, 0), &out), kCodingZstd);
  EXPECT_LT(out.size(), 40u);
}

// Symbols whose only redundancy is their frequencies come near their entropy: 1.585 bits of three.
TEST(Compress, FrequenciesAloneAreUsed) {
  Prng random(5);
  const Bytes raw = bytes_of(200'000, [&](std::size_t) {
    std::uint64_t four = 0;
    for (int i = 0; i < 4; ++i) four = four << 2 | random.below(3);
    return four;
  });
  Bytes out;
  ASSERT_EQ(compress_stream(raw, &out), kCodingZstd);
  EXPECT_LT(out.size(), 162'000u);
}

TEST(CheckFrame, OneFrameOfTheDeclaredSizeOnly) {
  const Bytes raw = random_bytes(5000, 4);
  const Bytes frame = plain_frame(raw);
  EXPECT_TRUE(check_frame(frame, raw.size()).ok());
  expect_refused(frame, 4999, Code::kCorrupt,
                 "zstd frame declares 5000 bytes, the stream table 4999");
  expect_refused(frame, ~std::uint64_t{0}, Code::kCorrupt,
                 "zstd frame declares 5000 bytes, the stream table 18446744073709551615");
  Bytes two = frame;
  two.insert(two.end(), frame.begin(), frame.end());
  expect_refused(two, raw.size(), Code::kCorrupt,
                 std::to_string(frame.size()) + " bytes after the zstd frame");
  expect_refused(two, 2 * raw.size(), Code::kCorrupt,
                 "zstd frame declares 5000 bytes, the stream table 10000");
  Bytes trailing = frame;
  trailing.push_back(0);
  expect_refused(trailing, raw.size(), Code::kCorrupt, "1 bytes after the zstd frame");
}

TEST(CheckFrame, SkippableFrames) {
  const Bytes raw = random_bytes(5000, 4);
  Bytes skippable = {0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4};
  expect_refused(skippable, 4, Code::kCorrupt, "a skippable zstd frame");
  const Bytes frame = plain_frame(raw);
  skippable.insert(skippable.end(), frame.begin(), frame.end());
  expect_refused(skippable, raw.size(), Code::kCorrupt, "a skippable zstd frame");
  Bytes after = frame;
  after.insert(after.end(), skippable.begin(), skippable.begin() + 12);
  expect_refused(after, raw.size(), Code::kCorrupt, "12 bytes after the zstd frame");
}

TEST(CheckFrame, TruncatedAndEmpty) {
  const Bytes raw = random_bytes(5000, 4);
  const Bytes frame = plain_frame(raw);
  expect_refused({}, raw.size(), Code::kCorrupt, "not a zstd frame");
  for (std::size_t size = 1; size < frame.size(); ++size) {
    const Status status = check_frame(ByteSpan(frame).first(size), raw.size());
    EXPECT_EQ(status.code(), Code::kCorrupt);
    EXPECT_TRUE(status.message() == "not a zstd frame" ||
                status.message() == "truncated zstd frame")
        << size << ": " << status.message();
  }
  expect_refused(raw, raw.size(), Code::kCorrupt, "not a zstd frame");
}

TEST(CheckFrame, UnknownContentSize) {
  const Bytes raw = random_bytes(5000, 4);
  expect_refused(frame_of(raw, ZSTD_c_contentSizeFlag, 0), raw.size(), Code::kCorrupt,
                 "zstd frame does not declare its content size");
}

TEST(CheckFrame, Dictionary) {
  // Magic, descriptor with a one-byte dictionary id in a single segment, id 7, content size 1, one
  // raw block of one byte.
  const Bytes frame = {0x28, 0xb5, 0x2f, 0xfd, 0x21, 7, 1, 0x09, 0, 0, 'x'};
  expect_refused(frame, 1, Code::kCorrupt, "a zstd frame with a dictionary");
}

// Magic, descriptor with an eight-byte content size, a window descriptor, the size, one raw block.
Bytes windowed_frame(unsigned window_log) {
  Bytes frame;
  ByteWriter out(&frame);
  out.u32(0xfd2fb528);
  out.u8(0xc0);
  out.u8(static_cast<std::uint8_t>((window_log - 10) << 3));
  out.u64(1);
  out.u8(0x09);
  out.u16(0);
  out.u8('x');
  return frame;
}

TEST(CheckFrame, WindowAboveTheLimit) {
  EXPECT_TRUE(check_frame(windowed_frame(27), 1).ok());
  Bytes out(1);
  EXPECT_TRUE(decompress_frame(windowed_frame(27), out).ok());
  EXPECT_EQ(out[0], 'x');
  expect_refused(windowed_frame(28), 1, Code::kTooLarge,
                 "zstd window of 268435456 bytes is above 2^27");
  expect_refused(windowed_frame(31), 1, Code::kTooLarge,
                 "zstd window of 2147483648 bytes is above 2^27");
  // Above what the library knows at all.
  expect_refused(windowed_frame(41), 1, Code::kCorrupt, "not a zstd frame");
}

// A frame that passes its check and lies in its body: an error, never more than `out`.
TEST(DecompressFrame, ABodyThatIsNotWhatItDeclares) {
  const Bytes raw = random_bytes(5000, 4);
  const Bytes frame = plain_frame(raw);
  unsigned refused = 0;
  for (std::size_t i = 4; i < frame.size(); ++i) {
    for (const unsigned bit : {0u, 3u, 7u}) {
      Bytes broken = frame;
      broken[i] = static_cast<std::uint8_t>(broken[i] ^ 1u << bit);
      if (!check_frame(broken, raw.size()).ok()) continue;
      Bytes out(raw.size());
      const Status status = decompress_frame(broken, out);
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), Code::kCorrupt);
      ++refused;
    }
  }
  EXPECT_GT(refused, 0u);
  // Declares 5 bytes and has one.
  const Bytes early = {0x28, 0xb5, 0x2f, 0xfd, 0x20, 5, 0x09, 0, 0, 'x'};
  ASSERT_TRUE(check_frame(early, 5).ok());
  Bytes five(5);
  EXPECT_EQ(decompress_frame(early, five).code(), Code::kCorrupt);
}

}  // namespace
}  // namespace dcr
