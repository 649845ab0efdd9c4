// The hostile-payload suite: the container. (tests/hostile_item_test.cc has the items.) Each case
// has its error, costs no memory above the limits and changes nothing.
#include <gtest/gtest.h>

#include <vector>

#include "base/prng.h"
#include "codec/compress.h"
#include "codec/container.h"
#include "codec/item_reader.h"
#include "tests/hostile.h"
#include "tests/support/test_allocations.h"

namespace dcr {
namespace {

// Beside the streams: views of the items, the stream table, messages.
constexpr std::uint64_t kAllocationSlack = 64 * 1024;

std::vector<TensorSpec> hostile_specs() {
  std::vector<TensorSpec> specs;
  for (std::size_t i = 0; i < std::size(kHostileWords); ++i) {
    specs.push_back({kHostileWords[i], static_cast<std::uint8_t>(kHostileWidths[i]), i == 2});
  }
  return specs;
}

std::vector<Bytes> hostile_targets() {
  std::vector<Bytes> targets;
  Prng random(28);
  for (std::size_t i = 0; i + 1 < std::size(kHostileWords); ++i) {
    targets.emplace_back(static_cast<std::size_t>(kHostileWords[i]) * kHostileWidths[i]);
    for (std::uint8_t& byte : targets.back()) byte = static_cast<std::uint8_t>(random.next());
  }
  return targets;
}

// As a receiver does: nothing is applied before all is valid.
Status read_and_apply(const Bytes& stored, const PayloadLimits& limits,
                      std::vector<Bytes>* targets) {
  const std::vector<TensorSpec> specs = hostile_specs();
  const Result<Payload> payload = Payload::read(stored, Digest{}, specs, limits);
  if (!payload.ok()) return payload.status();
  for (const ItemView& item : payload->items()) {
    if (item.header.tensor >= targets->size()) continue;
    const ItemBox& box = item.header.box;
    const std::size_t width = item.header.width;
    apply_item(item, MutableByteSpan((*targets)[item.header.tensor])
                         .subspan(static_cast<std::size_t>(box.offset) * width,
                                  static_cast<std::size_t>(box.end() - box.offset) * width));
  }
  return {};
}

}  // namespace

void expect_refused(const Bytes& stored, Code code, const std::string& message,
                    const PayloadLimits& limits) {
  const std::vector<Bytes> before = hostile_targets();
  std::vector<Bytes> targets = before;
  Status status;
  const std::uint64_t peak =
      peak_allocation([&] { status = read_and_apply(stored, limits, &targets); });
  EXPECT_EQ(code_name(status.code()), code_name(code));
  EXPECT_EQ(status.message(), message);
  EXPECT_LE(peak, limits.raw_bytes_max + kAllocationSlack) << message;
  EXPECT_TRUE(targets == before) << message;
}

bool expect_harmless(const Bytes& stored) {
  const std::vector<Bytes> before = hostile_targets();
  std::vector<Bytes> targets = before;
  Status status;
  const std::uint64_t peak =
      peak_allocation([&] { status = read_and_apply(stored, kHostileLimits, &targets); });
  EXPECT_LE(peak, kHostileLimits.raw_bytes_max + kAllocationSlack);
  if (status.ok()) return true;
  EXPECT_TRUE(status.code() == Code::kCorrupt || status.code() == Code::kTooLarge ||
              status.code() == Code::kUnsupported || status.code() == Code::kMismatch)
      << status.message();
  EXPECT_TRUE(status.message().starts_with("payload: ")) << status.message();
  EXPECT_TRUE(targets == before) << status.message();
  return false;
}

PayloadForge valid_forge() {
  PayloadForge forge;
  // Overwrites words 11, 14 and 18 of tensor 0; adds to words 0, 3, 8 and 9 of tensor 1: +1, −1 and
  // two escapes.
  RecordForge records;
  records.range(0, item_flags(0, 1, 0), 10, 50).varint(3).byte(0).varint(0);
  records.range(1, item_flags(2, 2, 1), 0, 10).varint(4).varint(2).varint(1);
  forge.stream(StreamKind::kItems, 0, records.bytes())
      .stream(StreamKind::kGaps, 0, {1, 2, 3})
      .stream(StreamKind::kBitmap, 0, {0x09, 0x03})
      .stream(StreamKind::kSymbol2, 4, {0xf1})
      .stream(StreamKind::kSymbol8, 4, {7, 192})
      .stream(StreamKind::kExtra, 4, {0x48})
      .stream(StreamKind::kPlane0, 2, {0xa0, 0xa1, 0xa2})
      .stream(plane_stream(1), 2, {0xb0, 0xb1, 0xb2});
  return forge;
}

namespace {

// Header fields' offsets (docs/FORMAT.md "Payload").
constexpr std::size_t kVersionOffset = 8;
constexpr std::size_t kHeaderBytesOffset = 12;
constexpr std::size_t kTotalOffset = 16;
constexpr std::size_t kRawOffset = 24;
constexpr std::size_t kAlgorithmOffset = 88;

std::string total_message(std::uint64_t said, std::uint64_t there) {
  return "payload: header says " + std::to_string(said) + " bytes, there are " +
         std::to_string(there);
}

// One zstd frame that declares `content` bytes and has as many zeros, in blocks of 128 KiB that
// repeat one byte.
Bytes bomb_frame(std::uint64_t content, std::uint64_t blocks) {
  Bytes frame;
  ByteWriter out(&frame);
  out.u32(0xfd2fb528);
  out.u8(0xe0);
  out.u64(content);
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const std::uint32_t header = (i + 1 == blocks ? 1u : 0u) | 1u << 1 | (128u << 10) << 3;
    out.u8(static_cast<std::uint8_t>(header));
    out.u16(static_cast<std::uint16_t>(header >> 8));
    out.u8(0);
  }
  return frame;
}

// A payload whose item stream is this frame, with the raw size that the table and header claim.
Bytes zstd_items(const Bytes& frame, std::uint64_t claimed) {
  PayloadForge forge;
  forge.streams.push_back({0, kCodingZstd, 0, frame, claimed});
  return forge.seal();
}

Bytes compressed(const Bytes& raw) {
  Bytes out;
  EXPECT_EQ(compress_stream(raw, &out), kCodingZstd);
  return out;
}

TEST(HostilePayload, TheForgeItselfIsRight) {
  std::vector<Bytes> targets = hostile_targets();
  const std::vector<Bytes> before = targets;
  const Status status = read_and_apply(valid_forge().seal(), kHostileLimits, &targets);
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<Bytes> expected = before;
  const std::size_t positions[] = {11, 14, 18};
  for (std::size_t i = 0; i < 3; ++i) {
    expected[0][2 * positions[i]] = static_cast<std::uint8_t>(0xa0 + i);
    expected[0][2 * positions[i] + 1] = static_cast<std::uint8_t>(0xb0 + i);
  }
  // Values 1, 0, 3 + 7 and 3 + 128 + 0x48 = 203: +1, −1, −6 and +102.
  const std::pair<std::size_t, std::uint32_t> steps[] = {{0, 1u}, {3, ~0u}, {8, ~5u}, {9, 102u}};
  for (const auto& [position, step] : steps) {
    std::uint8_t* const word = expected[1].data() + 4 * position;
    store_little(word, load_little<std::uint32_t>(word) + step);
  }
  EXPECT_TRUE(targets == expected);
}

// Payload::memory_bytes is what a payload that is kept takes, of one large item or of many small.
TEST(HostilePayload, WhatAKeptPayloadTakes) {
  for (const std::uint64_t items : {1U, 20'000U}) {
    PayloadForge forge;
    RecordForge records;
    const std::uint64_t words = items == 1 ? 1'000'000 : 1;
    for (std::uint64_t i = 0; i < items; ++i)
      records.range(i == 0 ? 3 : 0, item_flags(0, 0, 0), 1, words);
    forge.stream(StreamKind::kItems, 0, records.bytes())
        .stream(StreamKind::kPlane0, 1, Bytes(static_cast<std::size_t>(items * words), 1));
    const Bytes stored = forge.seal();
    const std::vector<TensorSpec> specs = hostile_specs();
    const std::uint64_t before = allocated_bytes.load();
    const Result<Payload> payload = Payload::read(stored, Digest{}, specs, kHostileLimits);
    ASSERT_TRUE(payload.ok()) << payload.status().message();
    const std::uint64_t taken = allocated_bytes.load() - before;
    EXPECT_EQ(payload->items().size(), items);
    EXPECT_LE(payload->memory_bytes(), taken);
    EXPECT_GE(payload->memory_bytes(), taken - taken / 20);
    EXPECT_GT(payload->memory_bytes(), payload->raw_bytes() + items * sizeof(ItemView));
  }
}

TEST(HostilePayload, Case1TruncatedAtEveryByte) {
  const Bytes stored = valid_forge().seal();
  const std::uint32_t header_bytes = load_little<std::uint32_t>(stored.data() + kHeaderBytesOffset);
  for (std::size_t size = 0; size < stored.size(); ++size) {
    const Bytes cut(stored.begin(), stored.begin() + static_cast<std::ptrdiff_t>(size));
    if (size < 128) {
      expect_refused(cut, Code::kCorrupt, "payload: truncated header");
    } else if (size < header_bytes) {
      expect_refused(cut, Code::kCorrupt,
                     "payload: header length " + std::to_string(header_bytes) + " out of range");
    } else {
      expect_refused(cut, Code::kCorrupt, total_message(stored.size(), size));
    }
    // The same with all that the sender of the cut could mend.
    if (size < 128) continue;
    Bytes mended = cut;
    store_little<std::uint64_t>(mended.data() + kTotalOffset, size);
    reseal(&mended);
    EXPECT_FALSE(expect_harmless(mended)) << size;
  }
}

TEST(HostilePayload, Case2OneBitFlippedAtEveryBit) {
  const Bytes stored = valid_forge().seal();
  for (std::size_t bit = 0; bit < 8 * stored.size(); ++bit) {
    Bytes flipped = stored;
    const std::size_t byte = bit / 8;
    flipped[byte] = static_cast<std::uint8_t>(flipped[byte] ^ 1u << (bit % 8));
    const std::uint32_t version = load_little<std::uint32_t>(flipped.data() + kVersionOffset);
    const std::uint32_t head = load_little<std::uint32_t>(flipped.data() + kHeaderBytesOffset);
    if (byte < kVersionOffset) {
      expect_refused(flipped, Code::kCorrupt, "payload: wrong magic");
    } else if (byte < kHeaderBytesOffset) {
      expect_refused(
          flipped, Code::kUnsupported,
          "payload: format version " + std::to_string(version) + "; this build reads version 0");
    } else if (byte < kTotalOffset && (head < 128 || head > stored.size())) {
      expect_refused(flipped, Code::kCorrupt,
                     "payload: header length " + std::to_string(head) + " out of range");
    } else if (byte >= kTotalOffset && byte < kRawOffset) {
      expect_refused(
          flipped, Code::kCorrupt,
          total_message(load_little<std::uint64_t>(flipped.data() + kTotalOffset), stored.size()));
    } else if (byte == kAlgorithmOffset) {
      expect_refused(flipped, Code::kUnsupported,
                     "payload: digest algorithm " + std::to_string(flipped[byte]));
    } else {
      expect_refused(flipped, Code::kCorrupt, "payload: digest does not match its bytes");
    }
    // The same from a sender who seals what it flipped.
    reseal(&flipped);
    expect_harmless(flipped);
  }
}

TEST(HostilePayload, Case3BodyOfAnotherAttempt) {
  const PayloadForge forge = valid_forge();
  PayloadForge other = forge;
  other.header.attempt = 1;
  other.streams[1].stored = {2, 2, 2};
  Bytes mixed = forge.seal();
  const Bytes theirs = other.seal();
  ASSERT_EQ(mixed.size(), theirs.size());
  const std::uint32_t head = load_little<std::uint32_t>(mixed.data() + kHeaderBytesOffset);
  std::copy(theirs.begin() + head, theirs.end(), mixed.begin() + head);
  expect_refused(mixed, Code::kCorrupt, "payload: digest does not match its bytes");
  // Another attempt's tensor table.
  PayloadForge schema = forge;
  schema.header.schema.fill(0xab);
  expect_refused(schema.seal(), Code::kMismatch,
                 "payload: made for another tensor table (schema abababababababababababababababab, "
                 "expected 00000000000000000000000000000000)");
}

TEST(HostilePayload, Case4MagicAndVersion) {
  PayloadForge forge = valid_forge();
  forge.magic = "DCRPAYLE";
  expect_refused(forge.seal(), Code::kCorrupt, "payload: wrong magic");
  forge = valid_forge();
  for (const std::uint32_t version : {1u, 2u, 0xffffffffu}) {
    forge.version = version;
    expect_refused(
        forge.seal(), Code::kUnsupported,
        "payload: format version " + std::to_string(version) + "; this build reads version 0");
  }
}

TEST(HostilePayload, Case5NoBody) {
  expect_refused({}, Code::kCorrupt, "payload: truncated header");
  PayloadForge forge = valid_forge();
  for (ForgedStream& stream : forge.streams) {
    stream.raw_bytes = stream.stored_bytes = stream.stored.size();
    stream.stored.clear();
  }
  expect_refused(forge.seal(), Code::kCorrupt, "payload: streams are longer than the payload");
  for (ForgedStream& stream : forge.streams) stream.raw_bytes = stream.stored_bytes = 0;
  expect_refused(forge.seal(), Code::kCorrupt, "payload: stream items is empty");
}

TEST(HostilePayload, Case6TrailingBytes) {
  Bytes stored = valid_forge().seal();
  const std::size_t size = stored.size();
  stored.push_back(0);
  expect_refused(stored, Code::kCorrupt, total_message(size, size + 1));
  PayloadForge forge = valid_forge();
  forge.after_body = {0};
  expect_refused(forge.seal(), Code::kCorrupt, "payload: 1 bytes after the last stream");
  forge = valid_forge();
  forge.after_table = {0, 0};
  expect_refused(forge.seal(), Code::kCorrupt, "payload: bytes after the stream table");
}

TEST(HostilePayload, Case7TwoFrames) {
  const Bytes raw(3000, 0);
  const Bytes frame = compressed(raw);
  Bytes two = frame;
  two.insert(two.end(), frame.begin(), frame.end());
  expect_refused(
      zstd_items(two, raw.size()), Code::kCorrupt,
      "payload: stream items: " + std::to_string(frame.size()) + " bytes after the zstd frame");
  expect_refused(zstd_items(two, 2 * raw.size()), Code::kCorrupt,
                 "payload: stream items: zstd frame declares 3000 bytes, the stream table 6000");
}

TEST(HostilePayload, Case8SkippableFrame) {
  Bytes frames = {0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 1, 2};
  const Bytes frame = compressed(Bytes(3000, 0));
  frames.insert(frames.end(), frame.begin(), frame.end());
  expect_refused(zstd_items(frames, 3000), Code::kCorrupt,
                 "payload: stream items: a skippable zstd frame");
}

TEST(HostilePayload, Case9RawSizesThatDisagree) {
  const Bytes frame = compressed(Bytes(3000, 0));
  expect_refused(zstd_items(frame, 2999), Code::kCorrupt,
                 "payload: stream items: zstd frame declares 3000 bytes, the stream table 2999");
  PayloadForge forge = valid_forge();
  std::uint64_t sum = 0;
  for (const ForgedStream& stream : forge.streams) sum += stream.stored.size();
  forge.raw_bytes = sum + 1;
  expect_refused(forge.seal(), Code::kCorrupt, "payload: streams do not add up to the raw size");
  forge.raw_bytes = sum - 1;
  expect_refused(forge.seal(), Code::kTooLarge,
                 "payload: stream plane1 of 3 bytes exceeds the raw size that is left, 2");
  forge = valid_forge();
  forge.streams[1].raw_bytes = 4;
  expect_refused(forge.seal(), Code::kCorrupt, "payload: stream gaps is stored with two sizes");
  // Stored as one frame that says so and gives more, or less.
  for (const std::uint64_t content : {3000u, 1u << 20}) {
    std::vector<Bytes> targets;
    const Status status =
        read_and_apply(zstd_items(bomb_frame(content, 2), content), kHostileLimits, &targets);
    EXPECT_EQ(code_name(status.code()), "corrupt");
    // What follows is the library's own word.
    EXPECT_TRUE(status.message().starts_with("payload: stream items: zstd")) << status.message();
  }
}

TEST(HostilePayload, Case10Bomb) {
  const std::uint64_t content = std::uint64_t{512} << 20;
  const Bytes frame = bomb_frame(content, 4096);
  EXPECT_LT(frame.size(), 17'000u);
  expect_refused(zstd_items(frame, content), Code::kTooLarge,
                 "payload: raw size 536870912 is above the limit of 1048576");
  expect_refused(zstd_items(frame, 1000), Code::kTooLarge,
                 "payload: stream items: zstd window of 536870912 bytes is above 2^27");
  expect_refused(
      zstd_items(bomb_frame(std::uint64_t{64} << 20, 512), 1000), Code::kCorrupt,
      "payload: stream items: zstd frame declares 67108864 bytes, the stream table 1000");
  // As many as the limit allows are what they are: here, an item of nothing.
  const std::uint64_t allowed = std::uint64_t{8} << 20;
  expect_refused(zstd_items(bomb_frame(allowed, 64), allowed), Code::kCorrupt,
                 "payload: item 0 (tensor index 0): item box is empty", {1u << 20, allowed});
}

TEST(HostilePayload, Case11LargestRawSize) {
  PayloadForge forge = valid_forge();
  forge.raw_bytes = ~std::uint64_t{0};
  expect_refused(forge.seal(), Code::kTooLarge,
                 "payload: raw size 18446744073709551615 is above the limit of 1048576");
  forge = valid_forge();
  forge.streams[1].raw_bytes = ~std::uint64_t{0};
  forge.raw_bytes = 1000;
  expect_refused(forge.seal(), Code::kTooLarge,
                 "payload: stream gaps of 18446744073709551615 bytes exceeds the raw size that is "
                 "left, " +
                     std::to_string(1000 - forge.streams[0].stored.size()));
  forge = valid_forge();
  forge.streams[7].coding = kCodingZstd;
  forge.streams[7].stored_bytes = ~std::uint64_t{0};
  expect_refused(forge.seal(), Code::kCorrupt, "payload: streams are longer than the payload");
}

TEST(HostilePayload, Case12WindowLog31) {
  // Magic, eight-byte content size with a window descriptor, log 31, size 1, one raw block.
  Bytes frame;
  ByteWriter out(&frame);
  out.u32(0xfd2fb528);
  out.u8(0xc0);
  out.u8((31 - 10) << 3);
  out.u64(1);
  out.u8(0x09);
  out.u16(0);
  out.u8('x');
  expect_refused(zstd_items(frame, 1), Code::kTooLarge,
                 "payload: stream items: zstd window of 2147483648 bytes is above 2^27");
}

TEST(HostilePayload, StreamTables) {
  PayloadForge forge = valid_forge();
  std::swap(forge.streams[1], forge.streams[2]);
  expect_refused(forge.seal(), Code::kCorrupt, "payload: streams are out of order or repeated");
  forge = valid_forge();
  forge.streams.push_back(forge.streams[7]);
  expect_refused(forge.seal(), Code::kCorrupt, "payload: streams are out of order or repeated");
  forge = valid_forge();
  forge.streams[1].coding = 2;
  expect_refused(forge.seal(), Code::kUnsupported, "payload: coding 2 of stream gaps");
  forge = valid_forge();
  forge.streams[7].kind = 16;
  expect_refused(forge.seal(), Code::kUnsupported, "payload: stream kind 16");
  forge = valid_forge();
  forge.stream_count = 65535;
  expect_refused(forge.seal(), Code::kCorrupt, "payload: truncated stream table");
  forge.stream_count = 7;
  expect_refused(forge.seal(), Code::kCorrupt, "payload: streams do not add up to the raw size");
  // A size with a byte more than it needs.
  forge = PayloadForge();
  forge.stream_count = 1;
  forge.raw_bytes = 1;
  forge.after_table = {0, 0, 0, 0x81, 0x00, 1};
  forge.after_body = {0};
  expect_refused(forge.seal(), Code::kCorrupt, "payload: truncated stream table");
}

TEST(HostilePayload, HeaderFields) {
  PayloadForge forge = valid_forge();
  forge.reserved = 1;
  expect_refused(forge.seal(), Code::kCorrupt, "payload: reserved bytes are not zero");
  forge = valid_forge();
  forge.header.owners = 0;
  expect_refused(forge.seal(), Code::kCorrupt, "payload: owner 0 of 0");
  forge.header.owners = 3;
  forge.header.owner = 3;
  expect_refused(forge.seal(), Code::kCorrupt, "payload: owner 3 of 3");
  forge.header.owner = 2;
  forge.header.number = ~std::uint64_t{0} / 3;
  expect_refused(forge.seal(), Code::kCorrupt, "payload: payload number overflows");
  forge = valid_forge();
  forge.digest_algorithm = 3;
  expect_refused(forge.seal(), Code::kUnsupported, "payload: digest algorithm 3");
  forge.digest_algorithm = 2;
  expect_refused(forge.seal(), Code::kCorrupt,
                 "payload: keyed digest, but no run key is configured");
  forge = valid_forge();
  forge.schema_algorithm = 2;
  expect_refused(forge.seal(), Code::kUnsupported, "payload: schema digest algorithm 2");
  forge = valid_forge();
  for (const std::uint32_t length : {0u, 127u, 0xffffffffu}) {
    forge.header_bytes = length;
    expect_refused(forge.seal(), Code::kCorrupt,
                   "payload: header length " + std::to_string(length) + " out of range");
  }
  forge.header_bytes = 128;
  expect_refused(forge.seal(), Code::kCorrupt, "payload: truncated stream table");
}

TEST(HostilePayload, AboveTheStoredLimit) {
  const Bytes stored = valid_forge().seal();
  expect_refused(stored, Code::kTooLarge,
                 "payload: " + std::to_string(stored.size()) + " bytes are above the limit of 150",
                 {150, 1 << 20});
}

TEST(HostilePayload, PeekRefusesWhatIsNoHeader) {
  const Bytes stored = valid_forge().seal();
  EXPECT_TRUE(peek_payload_header(stored).ok());
  for (std::size_t size = 0; size < stored.size(); ++size) {
    EXPECT_EQ(peek_payload_header(ByteSpan(stored).first(size)).status().code(), Code::kCorrupt);
  }
}

}  // namespace
}  // namespace dcr
