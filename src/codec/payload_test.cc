// Payloads as they are meant to be: what is written is what is read. What is not: tests/hostile.
#include "codec/payload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "codec/compress.h"
#include "codec/container.h"
#include "codec/test_items.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

Bytes random_tensor(std::size_t bytes, std::uint64_t seed) {
  Prng random(seed);
  Bytes tensor(bytes);
  for (std::uint8_t& byte : tensor) byte = static_cast<std::uint8_t>(random.next());
  return tensor;
}

// Both versions of a tensor, `one_in` words of it changed by one, cut into ranges of `piece` words.
struct TensorCase {
  unsigned width;
  Bytes old_bytes, new_bytes;
  std::vector<ItemBox> boxes;

  std::uint64_t words() const { return old_bytes.size() / width; }
};

TensorCase random_tensor_case(Prng* random) {
  const unsigned width = kTestWidths[random->below(4)];
  const std::uint64_t words = 1 + random->below(5000);
  TensorCase test = {
      width, random_tensor(static_cast<std::size_t>(words) * width, random->next()), {}, {}};
  test.new_bytes = test.old_bytes;
  const std::uint64_t one_in = 1 + random->below(40);
  for (std::uint64_t i = 0; i < words; ++i) {
    if (random->below(one_in) != 0) continue;
    set_word(&test.new_bytes, width, i,
             (get_word(test.old_bytes, width, i) + 1) & width_mask(width));
  }
  const std::uint64_t piece = 1 + random->below(words);
  for (std::uint64_t at = 0; at < words; at += piece) {
    test.boxes.push_back(ItemBox::range(at, std::min(piece, words - at)));
  }
  return test;
}

// Many tensors, widths, ranges and encodings in one payload.
TEST(Payload, ManyItemsOfManyTensors) {
  for (std::uint64_t seed = 0; seed < campaign_cases(100); ++seed) {
    Prng random(seed);
    std::vector<TensorCase> tensors;
    std::vector<TensorSpec> specs;
    std::vector<EncodedItem> items;
    ItemEncoder encoder;
    for (std::uint32_t tensor = 0; tensor < 40; ++tensor) {
      tensors.push_back(random_tensor_case(&random));
      const TensorCase& test = tensors.back();
      specs.push_back({test.words(), static_cast<std::uint8_t>(test.width), false});
      for (const ItemBox& box : test.boxes) {
        const ItemCase one = {test.width, box, test.old_bytes, test.new_bytes};
        EncodedItem item;
        const EncodingChoice choice = choice_of(kTestEncodings[random.below(3)]);
        if (encode_case(&encoder, one, tensor, choice, &item)) items.push_back(item);
      }
    }
    std::uint64_t raw_bytes = 0;
    const Bytes stored = seal_items(items, &raw_bytes);
    const Result<Payload> payload = Payload::read(stored, Digest{}, specs, kTestLimits);
    ASSERT_TRUE(payload.ok()) << "seed " << seed << ": " << payload.status().message();
    EXPECT_EQ(payload->raw_bytes(), raw_bytes);
    ASSERT_EQ(payload->items().size(), items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      const ItemView& view = payload->items()[i];
      EXPECT_EQ(view.header.box, items[i].header.box);
      EXPECT_EQ(view.header.encoding, items[i].header.encoding);
      EXPECT_EQ(view.header.value, items[i].header.value);
      EXPECT_EQ(view.header.changes, items[i].header.changes);
      apply_to_tensor(view, &tensors[view.header.tensor].old_bytes);
    }
    for (const TensorCase& test : tensors) {
      ASSERT_EQ(test.old_bytes, test.new_bytes) << "seed " << seed;
    }
    EXPECT_EQ(seal_items(items), stored) << "seed " << seed;
  }
}

// Interleaved strided boxes of one tensor: columns, as owners of a column-parallel weight hold
// them.
TEST(Payload, InterleavedBoxes) {
  constexpr unsigned kOwners = 4;
  ItemCase test;
  test.width = 4;
  test.old_tensor = random_tensor(64 * 32 * 4, 9);
  test.new_tensor = random_tensor(64 * 32 * 4, 10);
  std::vector<EncodedItem> items(kOwners);
  ItemEncoder encoder;
  for (std::uint32_t owner = 0; owner < kOwners; ++owner) {
    test.box = {std::uint64_t{owner} * 8, {{64, 32}, {8, 1}}};
    ASSERT_TRUE(encode_case(&encoder, test, 0, EncodingChoice::kXor, &items[owner]));
  }
  const TensorSpec spec = {64 * 32, 4, false};
  const Result<Payload> payload =
      Payload::read(seal_items(items), Digest{}, {&spec, 1}, kTestLimits);
  ASSERT_TRUE(payload.ok()) << payload.status().message();
  for (const ItemView& item : payload->items()) apply_to_tensor(item, &test.old_tensor);
  EXPECT_EQ(test.old_tensor, test.new_tensor);
}

PayloadHeader some_header() {
  PayloadHeader header;
  for (std::uint8_t i = 0; i < 16; ++i) {
    header.run[i] = i;
    header.schema[i] = static_cast<std::uint8_t>(0xf0 + i);
  }
  header.attempt = 0x1122334455667788;
  header.owner = 2;
  header.owners = 5;
  header.number = 77;
  header.base_version = 41;
  header.target_version = 42;
  return header;
}

void expect_same_header(const PayloadHeader& a, const PayloadHeader& b) {
  EXPECT_EQ(a.run, b.run);
  EXPECT_EQ(a.attempt, b.attempt);
  EXPECT_EQ(a.owner, b.owner);
  EXPECT_EQ(a.owners, b.owners);
  EXPECT_EQ(a.number, b.number);
  EXPECT_EQ(a.base_version, b.base_version);
  EXPECT_EQ(a.target_version, b.target_version);
  EXPECT_EQ(a.schema, b.schema);
}

TEST(Payload, HeaderComesBackAlsoWithoutItems) {
  const PayloadHeader header = some_header();
  EXPECT_EQ(header.order(), 77u * 5 + 2);
  const Bytes stored = PayloadWriter().seal(header);
  EXPECT_EQ(stored.size(), kPayloadFixedBytes);
  const Result<Payload> payload = Payload::read(stored, header.schema, {}, kTestLimits);
  ASSERT_TRUE(payload.ok()) << payload.status().message();
  expect_same_header(payload->header(), header);
  EXPECT_TRUE(payload->items().empty());
  EXPECT_TRUE(payload->streams().empty());
  const Result<PayloadHeader> peeked = peek_payload_header(stored);
  ASSERT_TRUE(peeked.ok());
  expect_same_header(*peeked, header);
}

TEST(Payload, KeyedDigest) {
  const PayloadHeader header = some_header();
  const Bytes key(32, 0x42);
  const Bytes other(32, 0x43);
  const Bytes keyed = PayloadWriter().seal(header, key);
  const Bytes plain = PayloadWriter().seal(header);
  EXPECT_TRUE(Payload::read(keyed, header.schema, {}, kTestLimits, key).ok());
  const auto message = [&](const Bytes& stored, ByteSpan with) {
    const Result<Payload> payload = Payload::read(stored, header.schema, {}, kTestLimits, with);
    EXPECT_EQ(payload.status().code(), Code::kCorrupt);
    return payload.status().message();
  };
  EXPECT_EQ(message(keyed, other), "payload: digest does not match its bytes");
  EXPECT_EQ(message(keyed, {}), "payload: keyed digest, but no run key is configured");
  EXPECT_EQ(message(plain, key), "payload: digest without the configured run key");
}

// What a tensor that changed everywhere may cost at most: its bytes and 1 %, 64 bytes an item, 256
// a payload.
void check_size(const ItemCase& test, std::uint64_t pieces, EncodingChoice choice) {
  const std::uint64_t words = test.tensor_words();
  const std::uint64_t piece = (words + pieces - 1) / pieces;
  std::vector<EncodedItem> items;
  ItemEncoder encoder;
  for (std::uint64_t at = 0; at < words; at += piece) {
    ItemCase one = test;
    one.box = ItemBox::range(at, std::min(piece, words - at));
    EncodedItem item;
    ASSERT_TRUE(encode_case(&encoder, one, 0, choice, &item));
    items.push_back(item);
  }
  const std::uint64_t size = seal_items(items).size();
  const std::uint64_t raw = test.old_tensor.size();
  EXPECT_LE(size, raw + raw / 100 + 64 * items.size() + 256)
      << "width " << test.width << ", " << words << " words, " << items.size() << " items";
}

TEST(Payload, AllChangedIsNeverMuchLargerThanRaw) {
  constexpr EncodingChoice kChoices[] = {EncodingChoice::kOverwrite, EncodingChoice::kXor,
                                         EncodingChoice::kAdd, EncodingChoice::kSmallest};
  for (const unsigned width : kTestWidths) {
    for (const std::size_t words : {1u, 2u, 3u, 9u, 100u, 1000u, 4097u, 300'000u}) {
      for (const EncodingChoice choice : kChoices) {
        ItemCase test;
        test.width = width;
        test.old_tensor = random_tensor(words * width, words);
        // Every byte changes; to random ones, or by a random change of a certain magnitude.
        for (const unsigned bits : {1u, 3u, 5u, 8u}) {
          Prng random(bits);
          test.new_tensor = test.old_tensor;
          for (std::uint64_t i = 0; i < words; ++i) {
            const std::uint64_t far = (std::uint64_t{1} << (bits * width - 1)) - 1;
            const std::uint64_t step = 1 + (far == 0 ? 0 : random.below(far));
            set_word(&test.new_tensor, width, i,
                     (get_word(test.old_tensor, width, i) + step) & width_mask(width));
          }
          ASSERT_NO_FATAL_FAILURE(check_size(test, 1, choice));
          ASSERT_NO_FATAL_FAILURE(check_size(test, std::min<std::size_t>(words, 7), choice));
        }
      }
    }
  }
}

// A sample of evenly spaced changes that says "small" of values that are not: the guard is raw
// planes.
TEST(Payload, AMisleadingSampleCostsLittle) {
  constexpr std::size_t kWords = 1 << 20;
  ItemCase test;
  test.width = 8;
  test.old_tensor = Bytes(kWords * 8, 0);
  test.new_tensor = random_tensor(kWords * 8, 3);
  for (std::size_t i = 0; i < kWords; i += kWords / 4096) set_word(&test.new_tensor, 8, i, 1);
  ASSERT_NO_FATAL_FAILURE(check_size(test, 1, EncodingChoice::kAdd));
}

// All widths and value codings in one payload, so that its stream table is as long as it gets.
TEST(Payload, TheLongestStreamTableIsPaidByItsItems) {
  std::vector<EncodedItem> items;
  std::vector<Bytes> tensors;
  std::uint64_t raw = 0;
  ItemEncoder encoder;
  std::uint32_t tensor = 0;
  for (const unsigned width : kTestWidths) {
    for (unsigned kind = 0; kind < 4; ++kind) {
      ItemCase test;
      test.width = width;
      test.box = ItemBox::range(0, 40);
      test.old_tensor = random_tensor(40 * width, tensor);
      test.new_tensor = test.old_tensor;
      for (std::uint64_t i = 0; i < 40; ++i) {
        const std::uint64_t step = kind == 0   ? 1
                                   : kind == 1 ? 1 + i % 9
                                   : kind == 2 ? 60 + i
                                               : i * 0x0123456789abcdef + 1;
        set_word(&test.new_tensor, width, i,
                 (get_word(test.old_tensor, width, i) + step) & width_mask(width));
      }
      EncodedItem item;
      if (!encode_case(&encoder, test, tensor++, EncodingChoice::kAdd, &item)) continue;
      items.push_back(item);
      raw += test.old_tensor.size();
    }
  }
  EXPECT_LE(seal_items(items).size(), raw + raw / 100 + 64 * items.size() + 256);
}

TEST(Payload, StreamNames) {
  EXPECT_EQ(stream_name(StreamKind::kItems), "items");
  EXPECT_EQ(stream_name(StreamKind::kGapLow), "gap_low");
  EXPECT_EQ(stream_name(StreamKind::kSymbol8), "symbol8");
  EXPECT_EQ(stream_name(plane_stream(0)), "plane0");
  EXPECT_EQ(stream_name(plane_stream(7)), "plane7");
}

TEST(Payload, OverwriteOnlyTensorsTakeOverwrite) {
  ItemCase test;
  test.width = 2;
  test.box = ItemBox::range(0, 100);
  test.old_tensor = random_tensor(200, 1);
  test.new_tensor = random_tensor(200, 2);
  const TensorSpec spec = {100, 2, true};
  ItemEncoder encoder;
  for (const Encoding encoding : kTestEncodings) {
    EncodedItem item;
    ASSERT_TRUE(encode_case(&encoder, test, 0, choice_of(encoding), &item));
    const Result<Payload> payload =
        Payload::read(seal_items({&item, 1}), Digest{}, {&spec, 1}, kTestLimits);
    if (encoding == Encoding::kOverwrite) {
      EXPECT_TRUE(payload.ok());
      continue;
    }
    EXPECT_EQ(payload.status().code(), Code::kCorrupt);
    EXPECT_EQ(payload.status().message(), std::string("payload: item 0 (tensor index 0): ") +
                                              encoding_name(encoding) +
                                              " on a tensor that takes overwrite only");
  }
}

}  // namespace
}  // namespace dcr
