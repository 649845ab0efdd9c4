// The hostile-payload suite: the items. Every field of a record, every stream of an item.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "base/limits.h"
#include "codec/container.h"
#include "tests/hostile.h"

namespace dcr {
namespace {

constexpr std::uint64_t kLargest = ~std::uint64_t{0};
constexpr unsigned kOverwrite = 0, kXor = 1, kAdd = 2;
constexpr unsigned kAll = 0, kGaps = 1, kBitmap = 2;
constexpr unsigned kPlanes = 0, kSymbol2 = 1, kSymbol4 = 2, kSymbol8 = 3;

using Streams = std::vector<std::pair<std::pair<StreamKind, unsigned>, Bytes>>;

Bytes payload_of(const RecordForge& records, const Streams& streams) {
  PayloadForge forge;
  forge.stream(StreamKind::kItems, 0, records.bytes());
  for (const auto& [kind, bytes] : streams) forge.stream(kind.first, kind.second, bytes);
  return forge.seal();
}

void expect_item_refused(const RecordForge& records, const Streams& streams,
                         const std::string& message, Code code = Code::kCorrupt,
                         const std::string& where = "item 0 (tensor index 0)") {
  expect_refused(payload_of(records, streams), code, "payload: " + where + ": " + message);
}

// Planes of `count` two-byte words.
Streams planes2(std::size_t count) {
  return {{{StreamKind::kPlane0, 2}, Bytes(count, 1)}, {{plane_stream(1), 2}, Bytes(count, 2)}};
}

// Overwrites every word of a range of tensor 0.
RecordForge& add_range(RecordForge& records, std::uint64_t skip, std::uint64_t size) {
  return records.range(0, item_flags(kOverwrite, kAll, kPlanes), skip, size);
}

RecordForge one_range(std::uint64_t skip, std::uint64_t size) {
  RecordForge records;
  return add_range(records, skip, size);
}

using Dims = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

RecordForge one_strided(std::uint64_t offset, const Dims& dims) {
  RecordForge records;
  return records.strided(0, item_flags(kOverwrite, kAll, kPlanes), offset, dims);
}

// Three changes in words [10, 60) of tensor 0, as gaps.
RecordForge gap_item(std::uint64_t changes, unsigned shift, std::uint64_t continuations) {
  RecordForge records;
  return records.range(0, item_flags(kOverwrite, kGaps, kPlanes), 10, 50)
      .varint(changes)
      .byte(shift)
      .varint(continuations);
}

Streams gap_streams(const Bytes& gaps, const Bytes& low = {}) {
  Streams streams = {{{StreamKind::kGaps, 0}, gaps}};
  if (!low.empty()) streams.push_back({{StreamKind::kGapLow, 0}, low});
  for (auto& plane : planes2(3)) streams.push_back(plane);
  return streams;
}

TEST(HostileItem, TheUnchangedOnesAreRight) {
  EXPECT_TRUE(expect_harmless(payload_of(one_range(0, 100), planes2(100))));
  EXPECT_TRUE(expect_harmless(payload_of(one_strided(0, {{4, 10}, {5, 1}}), planes2(20))));
  EXPECT_TRUE(expect_harmless(payload_of(gap_item(3, 0, 0), gap_streams({1, 2, 44}))));
  EXPECT_TRUE(expect_harmless(payload_of(gap_item(3, 2, 0), gap_streams({0, 0, 11}, {0x09}))));
}

TEST(HostileItem, Case13OffsetBeyondTheTensor) {
  expect_item_refused(one_range(100, 1), planes2(1),
                      "item box ends at word 100 of a tensor of 100");
  expect_item_refused(one_strided(99, {{2, 2}}), planes2(2),
                      "item box ends at word 101 of a tensor of 100");
}

TEST(HostileItem, Case14And26OffsetAndLengthOverflow) {
  RecordForge records = one_range(0, 10);
  add_range(records, kLargest, 1);
  expect_item_refused(records, planes2(11), "item offset overflows", Code::kCorrupt,
                      "item 1 (tensor index 0)");
  expect_item_refused(one_range(kLargest, 2), planes2(2), "item box overflows");
  expect_item_refused(one_range(kLargest - 1, 10), planes2(10), "item box overflows");
  expect_item_refused(one_strided(std::uint64_t{1} << 63, {{3, std::uint64_t{1} << 63}}),
                      planes2(3), "item box overflows");
}

TEST(HostileItem, Case15And28OverlappingItems) {
  const std::string overlap = "payload: two items of tensor index 0 overlap at word ";
  const unsigned flags = item_flags(kOverwrite, kAll, kPlanes);
  RecordForge boxes = one_strided(0, {{4, 10}, {5, 1}});
  boxes.strided(0, static_cast<std::uint8_t>(flags), 3, {{4, 10}, {5, 1}});
  expect_refused(payload_of(boxes, planes2(40)), Code::kCorrupt, overlap + "3");
  // A range after a box starts from 0 again.
  RecordForge range = one_strided(0, {{4, 10}, {5, 1}});
  add_range(range, 6, 5);
  expect_refused(payload_of(range, planes2(25)), Code::kCorrupt, overlap + "10");
  // One word twice, by boxes of single words.
  RecordForge words = one_strided(0, {{10, 3}});
  words.strided(0, static_cast<std::uint8_t>(flags), 1, {{10, 4}});
  expect_refused(payload_of(words, planes2(20)), Code::kCorrupt, overlap + "9");
  // Interleaved without meeting is no overlap.
  RecordForge apart = one_strided(0, {{4, 10}, {5, 1}});
  apart.strided(0, static_cast<std::uint8_t>(flags), 5, {{4, 10}, {5, 1}});
  EXPECT_TRUE(expect_harmless(payload_of(apart, planes2(40))));
}

TEST(HostileItem, Case16BytesThatBelongToNoItem) {
  expect_refused(payload_of(gap_item(3, 0, 0), gap_streams({1, 2, 3, 4, 5})), Code::kCorrupt,
                 "payload: 2 bytes of stream gaps belong to no item");
  Streams wide = planes2(100);
  wide.push_back({{StreamKind::kPlane0, 4}, Bytes(7)});
  std::swap(wide[1], wide[2]);
  expect_refused(payload_of(one_range(0, 100), wide), Code::kCorrupt,
                 "payload: 7 bytes of stream plane0 belong to no item");
  PayloadForge no_items;
  no_items.stream(StreamKind::kGaps, 0, {1});
  expect_refused(no_items.seal(), Code::kCorrupt,
                 "payload: 1 bytes of stream gaps belong to no item");
}

TEST(HostileItem, Case17OffsetsThatDescend) {
  for (const std::uint64_t second : {50u, 49u, 0u}) {
    RecordForge records = one_strided(50, {{2, 2}});
    records.strided(0, item_flags(kOverwrite, kAll, kPlanes), second, {{2, 2}});
    expect_item_refused(records, planes2(4), "item offsets descend", Code::kCorrupt,
                        "item 1 (tensor index 0)");
  }
}

TEST(HostileItem, Case18TooManyItemsAndChanges) {
  constexpr std::uint64_t kMany = (std::uint64_t{1} << 32) - 1;
  expect_item_refused(gap_item(kMany, 0, 0), gap_streams({1, 2, 3}),
                      "4294967295 changes in a box of 50");
  expect_item_refused(gap_item(3, 0, kMany), gap_streams({1, 2, 3}),
                      "gaps are longer than the box");
}

// As many items as a payload may have, and one more: from half a megabyte, which compresses to
// nothing. The bound on their number is the bound on what their views take.
TEST(HostileItem, Case18ItemsAboveTheLimit) {
  static_assert(kItemsPerPayloadMax * sizeof(ItemView) <= 64 * kMiB);
  RecordForge records;
  for (std::uint64_t i = 0; i <= kItemsPerPayloadMax; ++i) {
    records.range(i == 0 ? 3 : 0, item_flags(kOverwrite, kAll, kPlanes), 0, 1);
  }
  const std::string most = std::to_string(kItemsPerPayloadMax);
  expect_refused(
      payload_of(records, {{{StreamKind::kPlane0, 1}, Bytes(kItemsPerPayloadMax + 1, 1)}}),
      Code::kTooLarge, "payload: item " + most + ": more than " + most + " items",
      {64 * kMiB, 96 * kMiB});
}

TEST(HostileItem, Case19And20Shapes) {
  const std::string too_large = "item box has more than 16777216 words";
  expect_item_refused(one_strided(0, {{std::uint64_t{1} << 32, 8}, {std::uint64_t{1} << 32, 1}}),
                      planes2(1), too_large, Code::kTooLarge);
  expect_item_refused(one_range(0, kItemElementsMax + 1), planes2(1), too_large, Code::kTooLarge);
  expect_item_refused(one_range(0, kLargest), planes2(1), too_large, Code::kTooLarge);
  expect_item_refused(one_strided(0, {}), planes2(1), "item box of rank 0");
  expect_item_refused(one_strided(0, Dims(9, {1, 1})), planes2(1), "item box of rank 9");
  expect_item_refused(one_range(0, 0), planes2(1), "item box is empty");
  expect_item_refused(one_strided(0, {{2, 4}, {0, 1}}), planes2(1), "item box is empty");
  expect_item_refused(one_strided(0, {{7, 1}}), planes2(7), "a range is spelled as a strided box");
  expect_item_refused(one_strided(0, {{3, 4}, {5, 1}}), planes2(15),
                      "item box reaches a word twice");
  expect_item_refused(one_strided(0, {{3, 0}}), planes2(3), "item box reaches a word twice");
  RecordForge huge_rank;
  huge_rank.varint(0).byte(0x40).varint(kLargest);
  expect_item_refused(huge_rank, planes2(1), "item box of rank 18446744073709551615");
}

TEST(HostileItem, Case21WidthsThatAreNotTheReceivers) {
  expect_refused(payload_of(one_range(0, 3), {{{StreamKind::kPlane0, 3}, Bytes(3)}}),
                 Code::kCorrupt, "payload: stream plane0 of width 3");
  expect_refused(payload_of(one_range(0, 3), {{{plane_stream(2), 2}, Bytes(3)}}), Code::kCorrupt,
                 "payload: stream plane2 of width 2");
  expect_refused(payload_of(one_range(0, 3), {{{StreamKind::kPlane0, 255}, Bytes(3)}}),
                 Code::kCorrupt, "payload: stream plane0 of width 255");
  expect_item_refused(one_range(0, 3), {{{StreamKind::kPlane0, 4}, Bytes(3)}},
                      "stream plane0 ends before 3 bytes of it");
}

TEST(HostileItem, Case22ATensorSmallerThanTheItem) {
  RecordForge records;
  records.range(1, item_flags(kOverwrite, kAll, kPlanes), 0, 100);
  expect_item_refused(records, {}, "item box ends at word 99 of a tensor of 64", Code::kCorrupt,
                      "item 0 (tensor index 1)");
}

TEST(HostileItem, Case23UnknownTensors) {
  for (const std::uint64_t step : {std::uint64_t{4}, std::uint64_t{1} << 32, kLargest}) {
    RecordForge records;
    records.range(step, item_flags(kOverwrite, kAll, kPlanes), 0, 1);
    expect_item_refused(records, planes2(1), "tensor index out of range of 4");
  }
  RecordForge around;
  around.range(1, item_flags(kOverwrite, kAll, kPlanes), 0, 1);
  around.range(kLargest, item_flags(kOverwrite, kAll, kPlanes), 0, 1);
  Streams planes4;
  for (unsigned plane = 0; plane < 4; ++plane) planes4.push_back({{plane_stream(plane), 4}, {1}});
  expect_item_refused(around, planes4, "tensor index out of range of 4", Code::kCorrupt,
                      "item 1 (tensor index 1)");
}

TEST(HostileItem, Case24GapsBeyondTheBox) {
  expect_item_refused(gap_item(3, 0, 0), gap_streams({1, 2, 45}),
                      "gaps reach word 50 of a box of 50");
  expect_item_refused(gap_item(3, 0, 2), gap_streams({255, 1, 255, 1, 1}),
                      "gaps reach word 515 of a box of 50");
  expect_item_refused(gap_item(3, 24, 0), gap_streams({254, 254, 254}, Bytes(9, 0xff)),
                      "gaps reach word 12834570239 of a box of 50");
}

TEST(HostileItem, Case25GapCodings) {
  expect_item_refused(gap_item(3, 25, 0), gap_streams({1, 2, 3}), "gap shift 25");
  expect_item_refused(gap_item(3, 255, 0), gap_streams({1, 2, 3}), "gap shift 255");
  expect_item_refused(gap_item(3, 4, 0), gap_streams({0, 0, 0}, {0}),
                      "stream gap_low ends before 2 bytes of it");
  expect_item_refused(gap_item(3, 2, 0), gap_streams({0, 0, 0}, {0x40}),
                      "padding of gap bits is not zero");
  expect_item_refused(gap_item(3, 0, 1), gap_streams({1, 2, 3, 4}),
                      "gap continuations do not agree with their count");
  expect_item_refused(gap_item(3, 0, 1), gap_streams({1, 2, 3, 255}),
                      "gap continuations do not agree with their count");
  expect_item_refused(gap_item(3, 0, 0), gap_streams({1, 2}),
                      "stream gaps ends before 3 bytes of it");
  expect_refused(payload_of(gap_item(3, 0, 0), {{{StreamKind::kGaps, 2}, {1, 2, 3}}}),
                 Code::kCorrupt, "payload: stream gaps of width 2");
}

TEST(HostileItem, Case27RunBeyondTheTensor) {
  expect_item_refused(one_range(0, 101), planes2(101),
                      "item box ends at word 100 of a tensor of 100");
  expect_item_refused(one_range(50, 51), planes2(51),
                      "item box ends at word 100 of a tensor of 100");
}

TEST(HostileItem, Case28BitmapsThatDoNotAgree) {
  const auto bitmap_item = [](std::uint64_t changes) {
    RecordForge records;
    return records.range(0, item_flags(kOverwrite, kBitmap, kPlanes), 0, 12).varint(changes);
  };
  const auto streams = [](const Bytes& bitmap) {
    Streams all = {{{StreamKind::kBitmap, 0}, bitmap}};
    for (auto& plane : planes2(3)) all.push_back(plane);
    return all;
  };
  EXPECT_TRUE(expect_harmless(payload_of(bitmap_item(3), streams({0x81, 0x08}))));
  expect_item_refused(bitmap_item(3), streams({0x80, 0x08}),
                      "bitmap has 2 changes, the item says 3");
  expect_item_refused(bitmap_item(3), streams({0x81, 0x0c}),
                      "bitmap has 4 changes, the item says 3");
  expect_item_refused(bitmap_item(3), streams({0x81, 0x10}), "padding of the bitmap is not zero");
  expect_item_refused(bitmap_item(3), streams({0x07}), "stream bitmap ends before 2 bytes of it");
  expect_item_refused(bitmap_item(0), streams({0, 0}), "item without a change");
  expect_item_refused(bitmap_item(13), streams({0xff, 0x0f}), "13 changes in a box of 12");
}

TEST(HostileItem, Records) {
  RecordForge records = one_range(0, 100);
  records.byte(0);
  expect_item_refused(records, planes2(100), "truncated item", Code::kCorrupt,
                      "item 1 (tensor index 0)");
  const Bytes whole = gap_item(3, 0, 0).bytes();
  for (std::size_t size = 1; size < whole.size(); ++size) {
    RecordForge cut;
    for (std::size_t i = 0; i < size; ++i) cut.byte(whole[i]);
    expect_item_refused(cut, gap_streams({1, 2, 3}), "truncated item");
  }
  RecordForge padded;
  padded.byte(0x80).byte(0).byte(0).varint(0).varint(1);
  expect_item_refused(padded, planes2(1), "truncated item");
  RecordForge endless;
  for (int i = 0; i < 12; ++i) endless.byte(0xff);
  expect_item_refused(endless, planes2(1), "truncated item");
  RecordForge reserved;
  reserved.range(0, 0x80, 0, 1);
  expect_item_refused(reserved, planes2(1), "reserved flag is set");
  RecordForge encoding;
  encoding.range(0, item_flags(3, kAll, kPlanes), 0, 1);
  expect_item_refused(encoding, planes2(1), "encoding 3", Code::kUnsupported);
  RecordForge location;
  location.range(0, item_flags(kOverwrite, 3, kPlanes), 0, 1);
  expect_item_refused(location, planes2(1), "location coding 3", Code::kUnsupported);
  for (const unsigned mask : {kXor, kAdd}) {
    RecordForge only;
    only.range(2, item_flags(mask, kAll, kPlanes), 0, 1);
    expect_item_refused(
        only, {{{StreamKind::kPlane0, 1}, {1}}},
        std::string(mask == kXor ? "xor" : "add") + " on a tensor that takes overwrite only",
        Code::kCorrupt, "item 0 (tensor index 2)");
  }
}

// An item over `words` words of tensor 0, all changed, in symbols of `coding`.
RecordForge symbol_item(unsigned encoding, unsigned coding, std::uint64_t words,
                        std::uint64_t escapes, std::uint64_t extra_bytes) {
  RecordForge records;
  records.range(0, item_flags(encoding, kAll, coding), 0, words);
  if (coding != kSymbol8) records.varint(escapes);
  return records.varint(extra_bytes);
}

TEST(HostileItem, PackedSymbols) {
  const std::pair<StreamKind, unsigned> two = {StreamKind::kSymbol2, 2};
  const std::pair<StreamKind, unsigned> four = {StreamKind::kSymbol4, 2};
  const std::pair<StreamKind, unsigned> eight = {StreamKind::kSymbol8, 2};
  EXPECT_TRUE(expect_harmless(
      payload_of(symbol_item(kAdd, kSymbol2, 3, 1, 0), {{two, {0x0d}}, {eight, {9}}})));
  EXPECT_TRUE(expect_harmless(
      payload_of(symbol_item(kAdd, kSymbol4, 3, 1, 0), {{four, {0xf1, 0x02}}, {eight, {9}}})));
  expect_item_refused(symbol_item(kAdd, kSymbol2, 3, 2, 0), {{two, {0x0d}}, {eight, {9, 9}}},
                      "escapes do not agree with their count");
  expect_item_refused(symbol_item(kAdd, kSymbol2, 3, 0, 0), {{two, {0x0d}}},
                      "escapes do not agree with their count");
  expect_item_refused(symbol_item(kAdd, kSymbol2, 3, 4, 0), {{two, {0x0d}}, {eight, {9}}},
                      "more escapes than changes");
  expect_item_refused(symbol_item(kAdd, kSymbol2, 3, 1, 0), {{two, {0x4d}}, {eight, {9}}},
                      "padding of symbols is not zero");
  expect_item_refused(symbol_item(kAdd, kSymbol4, 3, 1, 0), {{four, {0xf1, 0x12}}, {eight, {9}}},
                      "padding of symbols is not zero");
  expect_item_refused(symbol_item(kAdd, kSymbol2, 5, 1, 0), {{two, {0x0d}}, {eight, {9}}},
                      "stream symbol2 ends before 2 bytes of it");
  expect_item_refused(symbol_item(kAdd, kSymbol4, 3, 1, 0), {{four, {0xf1, 0x02}}},
                      "stream symbol8 ends before 1 bytes of it");
  expect_item_refused(symbol_item(kAdd, kSymbol2, 3, 1, kLargest), {{two, {0x0d}}, {eight, {9}}},
                      "stream extra ends before 18446744073709551615 bytes of it");
}

TEST(HostileItem, ByteSymbolsAndExtraBits) {
  const std::pair<StreamKind, unsigned> eight = {StreamKind::kSymbol8, 2};
  const std::pair<StreamKind, unsigned> extra = {StreamKind::kExtra, 2};
  // 192 + 8: bit length 16, fifteen extra bits.
  EXPECT_TRUE(expect_harmless(payload_of(symbol_item(kOverwrite, kSymbol8, 2, 0, 2),
                                         {{eight, {5, 200}}, {extra, {0xff, 0x7f}}})));
  for (const std::uint8_t symbol : {std::uint8_t{249}, std::uint8_t{255}}) {
    expect_item_refused(symbol_item(kOverwrite, kSymbol8, 2, 0, 9),
                        {{eight, {5, symbol}}, {extra, Bytes(9)}},
                        "byte symbol " + std::to_string(symbol));
  }
  expect_item_refused(symbol_item(kOverwrite, kSymbol8, 2, 0, 1), {{eight, {5, 200}}, {extra, {1}}},
                      "extra bits end early");
  expect_item_refused(symbol_item(kOverwrite, kSymbol8, 2, 0, 0), {{eight, {192, 192}}},
                      "extra bits end early");
  expect_item_refused(symbol_item(kOverwrite, kSymbol8, 2, 0, 1),
                      {{eight, {5, 192}}, {extra, {0x3f}}}, "a direct value is spelled as a class");
  expect_item_refused(symbol_item(kOverwrite, kSymbol8, 2, 0, 2),
                      {{eight, {5, 201}}, {extra, {0, 0}}},
                      "a value does not fit a word of 2 bytes");
  expect_item_refused(symbol_item(kOverwrite, kSymbol8, 2, 0, 8),
                      {{eight, {5, 248}}, {extra, Bytes(8)}},
                      "a value does not fit a word of 2 bytes");
  expect_item_refused(symbol_item(kOverwrite, kSymbol8, 2, 0, 3),
                      {{eight, {5, 200}}, {extra, {0xff, 0x7f, 0}}},
                      "extra bytes that belong to no value");
  expect_item_refused(symbol_item(kOverwrite, kSymbol8, 2, 0, 2),
                      {{eight, {5, 200}}, {extra, {0xff, 0xff}}},
                      "padding of extra bits is not zero");
  // All ones would change nothing under xor and add; also as an escape's value.
  for (const unsigned mask : {kXor, kAdd}) {
    expect_item_refused(symbol_item(mask, kSymbol8, 2, 0, 2),
                        {{eight, {5, 200}}, {extra, {0xff, 0x7f}}},
                        "a value does not fit a word of 2 bytes");
    expect_item_refused(
        symbol_item(mask, kSymbol2, 1, 1, 2),
        {{{StreamKind::kSymbol2, 2}, {0x03}}, {eight, {200}}, {extra, {0xfc, 0x7f}}},
        "a value does not fit a word of 2 bytes");
  }
}

TEST(HostileItem, PlanesOfNoChange) {
  RecordForge records;
  records.range(0, item_flags(kXor, kAll, kPlanes), 0, 3);
  const auto planes = [](const Bytes& low, const Bytes& high) {
    return Streams{{{StreamKind::kPlane0, 2}, low}, {{plane_stream(1), 2}, high}};
  };
  EXPECT_TRUE(expect_harmless(payload_of(records, planes({0, 0xff, 1}, {0xff, 0, 1}))));
  expect_item_refused(records, planes({0, 0xff, 1}, {0xff, 0xff, 1}),
                      "a value that changes nothing");
  expect_item_refused(records, planes({0, 0xff, 1}, {0xff, 0xfe}),
                      "stream plane1 ends before 3 bytes of it");
}

// Entries that would take more memory than the raw limit, from a few bytes.
TEST(HostileItem, EntriesAboveTheRawLimit) {
  RecordForge records;
  records.range(3, item_flags(kAdd, kAll, kSymbol2), 0, std::uint64_t{1} << 21).varint(0).varint(0);
  expect_item_refused(records, {{{StreamKind::kSymbol2, 1}, Bytes(1u << 19)}},
                      "items' values are above the raw limit", Code::kTooLarge,
                      "item 0 (tensor index 3)");
}

// Boxes of many single words that interleave cost a list of them to compare: bounded too.
TEST(HostileItem, InterleavedBoxesOfManyRuns) {
  RecordForge records;
  const std::uint64_t words = kItemElementsMax;
  const std::uint8_t flags = item_flags(kOverwrite, kGaps, kPlanes);
  records.strided(3, flags, 0, {{words, 3}}).varint(1).byte(0).varint(0);
  records.strided(0, flags, 1, {{words, 3}}).varint(1).byte(0).varint(0);
  expect_refused(
      payload_of(records, {{{StreamKind::kGaps, 0}, {0, 0}}, {{StreamKind::kPlane0, 1}, {1, 2}}}),
      Code::kTooLarge, "payload: interleaved boxes have more than 65536 runs");
}

}  // namespace
}  // namespace dcr
