#include "receiver/decoded_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "base/limits.h"
#include "base/prng.h"
#include "codec/test_items.h"

namespace dcr {
namespace {

constexpr std::uint64_t kTensorWords = 400;

// A payload of a few items, one tensor each, as it is stored.
struct StoredPayload {
  Bytes stored;
  std::vector<TensorSpec> specs;

  Result<Payload> read() const { return Payload::read(stored, Digest{}, specs, kTestLimits); }
};

PayloadHeader random_header(Prng& prng) {
  PayloadHeader header;
  for (std::uint8_t& byte : header.run) byte = static_cast<std::uint8_t>(prng.next());
  header.attempt = 1 + prng.below(1000);
  header.owners = 3;
  header.owner = static_cast<std::uint32_t>(prng.below(3));
  header.number = prng.below(100);
  header.base_version = prng.below(5);
  header.target_version = header.base_version + 1;
  return header;
}

StoredPayload random_payload(Prng& prng) {
  StoredPayload made;
  ItemEncoder encoder;
  PayloadWriter writer;
  const auto tensors = static_cast<std::uint32_t>(prng.below(4));
  for (std::uint32_t tensor = 0; tensor < tensors; ++tensor) {
    ItemCase test;
    test.width = 1U << prng.below(4);
    const std::uint64_t rows = 1 + prng.below(6);
    test.box = {prng.below(50), {{rows, 10}, {1 + prng.below(6), 1}}};
    test.old_tensor.resize(kTensorWords * test.width);
    test.new_tensor = test.old_tensor;
    for (std::uint8_t& byte : test.new_tensor) {
      if (prng.below(2) == 0) byte = static_cast<std::uint8_t>(prng.next());
    }
    made.specs.push_back({kTensorWords, static_cast<std::uint8_t>(test.width), false});
    EncodedItem item;
    const auto choice = choice_of(static_cast<Encoding>(prng.below(3)));
    if (encode_case(&encoder, test, tensor, choice, &item)) writer.append(item);
  }
  made.stored = writer.seal(random_header(prng));
  return made;
}

// The block of a payload.
Bytes block_of(const Payload& payload, const Digest& digest) {
  Bytes block;
  const Status status = write_decoded(payload, digest, [&](std::uint64_t at, ByteSpan part) {
    EXPECT_EQ(at, block.size());
    block.insert(block.end(), part.begin(), part.end());
    return Status();
  });
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(block.size(), decoded_memory_bytes(payload));
  return block;
}

Result<std::shared_ptr<const DecodedPayload>> parsed_of(ByteSpan block, std::uint64_t bytes_max) {
  return parse_decoded(block, nullptr, bytes_max);
}

TEST(DecodedMemory, GivesBackEveryPayload) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    const StoredPayload made = random_payload(prng);
    const auto payload = made.read();
    ASSERT_TRUE(payload.ok()) << payload.status().message();
    const auto decoded = decode_payload(made.stored, Digest{}, made.specs, kTestLimits, kGiB);
    ASSERT_TRUE(decoded.ok());
    const std::uint64_t bytes = (*decoded)->bytes;
    const Bytes block = block_of(*payload, (*decoded)->digest);
    const auto parsed = parsed_of(block, bytes);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ((*parsed)->bytes, bytes);
    EXPECT_EQ((*parsed)->digest, (*decoded)->digest);
    EXPECT_EQ((*parsed)->header.run, payload->header().run);
    EXPECT_EQ((*parsed)->header.order(), payload->header().order());
    EXPECT_EQ((*parsed)->header.target_version, payload->header().target_version);
    ASSERT_EQ((*parsed)->items.size(), (*decoded)->items.size());
    for (std::size_t i = 0; i < (*parsed)->items.size(); ++i) {
      const DecodedItem& one = (*parsed)->items[i];
      const DecodedItem& other = (*decoded)->items[i];
      EXPECT_TRUE(std::ranges::equal(one.positions, other.positions));
      EXPECT_TRUE(std::ranges::equal(one.values, other.values));
      EXPECT_EQ(one.header.box, other.header.box);
      EXPECT_EQ(one.header.encoding, other.header.encoding);
    }
    if (bytes == 0) continue;
    EXPECT_EQ(parsed_of(block, bytes - 1).status().code(), Code::kTooLarge);
    EXPECT_EQ(
        decode_payload(made.stored, Digest{}, made.specs, kTestLimits, bytes - 1).status().code(),
        Code::kTooLarge);
  }
}

// Parts are of one size: items larger than it, and those that share one, come out whole.
TEST(DecodedMemory, WritesItemsOfEverySize) {
  Prng prng(1);
  StoredPayload made;
  ItemEncoder encoder;
  PayloadWriter writer;
  std::uint32_t tensor = 0;
  for (const std::uint64_t words : {1U, 100'000U, 200'000U, 3U, 90'000U, 7U}) {
    ItemCase test;
    test.width = 4;
    test.box = ItemBox::range(0, words);
    test.old_tensor.resize(words * test.width);
    test.new_tensor.assign(test.old_tensor.size(), 1);
    made.specs.push_back({words, 4, false});
    EncodedItem item;
    ASSERT_TRUE(encode_case(&encoder, test, tensor++, EncodingChoice::kOverwrite, &item));
    writer.append(item);
  }
  made.stored = writer.seal(random_header(prng));
  const auto payload = made.read();
  ASSERT_TRUE(payload.ok()) << payload.status().message();
  const Bytes block = block_of(*payload, Digest{});
  const auto parsed = parsed_of(block, kGiB);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  ASSERT_EQ((*parsed)->items.size(), made.specs.size());
  for (const DecodedItem& item : (*parsed)->items) {
    ASSERT_EQ(item.positions.size(), made.specs[item.header.tensor].words);
    EXPECT_EQ(item.positions.back(), item.positions.size() - 1);
    EXPECT_EQ(std::ranges::count(item.values, 1), static_cast<std::ptrdiff_t>(item.values.size()));
  }
}

TEST(DecodedMemory, RefusesEveryTruncationAndSurvivesEveryMutation) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    const auto payload = random_payload(prng).read();
    ASSERT_TRUE(payload.ok());
    const Bytes block = block_of(*payload, Digest{});
    for (std::size_t size = 0; size < block.size(); ++size) {
      EXPECT_EQ(parsed_of(ByteSpan(block).first(size), kGiB).status().code(), Code::kCorrupt);
    }
    for (std::size_t at = 0; at < block.size(); ++at) {
      Bytes mutated = block;
      mutated[at] ^= static_cast<std::uint8_t>(1 + prng.below(255));
      const auto parsed = parsed_of(mutated, kGiB);
      // Whatever still parses has positions within its boxes, so that applying it stays there.
      if (!parsed.ok()) continue;
      for (const DecodedItem& item : (*parsed)->items) {
        ASSERT_EQ(item.positions.size(), item.header.changes);
        ASSERT_EQ(item.values.size(), item.header.changes * item.header.width);
        if (!item.positions.empty()) {
          ASSERT_LT(item.positions.back(), item.header.box.words());
        }
      }
    }
  }
}

TEST(DecodedMemory, RefusesPositionsThatDoNotAscend) {
  ItemEncoder encoder;
  EncodedItem item;
  const ItemCase test{1, ItemBox::range(0, 8), Bytes(8, 0), {1, 0, 0, 0, 0, 0, 0, 1}};
  ASSERT_TRUE(encode_case(&encoder, test, 0, EncodingChoice::kOverwrite, &item));
  PayloadWriter writer;
  writer.append(item);
  const StoredPayload made{writer.seal({}), {{8, 1, false}}};
  const auto payload = made.read();
  ASSERT_TRUE(payload.ok()) << payload.status().message();
  Bytes block = block_of(*payload, Digest{});
  for (const auto& [first, second, good] : std::vector<std::tuple<unsigned, unsigned, bool>>{
           {0, 7, true}, {7, 0, false}, {3, 3, false}, {0, 8, false}}) {
    // The block ends with two positions and eight bytes of values.
    store_little(block.data() + block.size() - 16, first);
    store_little(block.data() + block.size() - 12, second);
    const auto parsed = parsed_of(block, kGiB);
    EXPECT_EQ(parsed.ok(), good) << first << " " << second;
    if (good) continue;
    EXPECT_EQ(parsed.status().message(),
              "a decoded payload handed over by the node: item 0: positions that do not ascend "
              "within its box");
  }
}

}  // namespace
}  // namespace dcr
