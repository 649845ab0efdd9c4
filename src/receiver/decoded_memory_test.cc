#include "receiver/decoded_memory.h"

#include <gtest/gtest.h>

#include "base/limits.h"
#include "base/prng.h"

namespace dcr {
namespace {

DecodedPayload random_payload(Prng& prng) {
  DecodedPayload payload;
  for (std::uint8_t& byte : payload.header.run) byte = static_cast<std::uint8_t>(prng.next());
  for (std::uint8_t& byte : payload.digest) byte = static_cast<std::uint8_t>(prng.next());
  payload.header.attempt = prng.next();
  payload.header.owners = 3;
  payload.header.owner = static_cast<std::uint32_t>(prng.below(3));
  payload.header.number = prng.below(100);
  payload.header.base_version = prng.below(5);
  payload.header.target_version = payload.header.base_version + 1;
  const std::uint64_t items = prng.below(4);
  for (std::uint64_t i = 0; i < items; ++i) {
    DecodedItem& item = payload.items.emplace_back();
    item.header.tensor = static_cast<std::uint32_t>(i);
    item.header.width = static_cast<std::uint8_t>(1U << prng.below(4));
    item.header.encoding = static_cast<Encoding>(prng.below(3));
    item.header.box.offset = prng.below(50);
    item.header.box.dims = {{1 + prng.below(6), 10}, {1 + prng.below(6), 1}};
    for (std::uint32_t at = 0; at < item.header.box.words(); ++at) {
      if (prng.below(2) == 0) continue;
      item.positions.push_back(at);
      for (unsigned k = 0; k < item.header.width; ++k) {
        item.values.push_back(static_cast<std::uint8_t>(prng.next()));
      }
    }
    item.header.changes = item.positions.size();
    payload.bytes += item.bytes();
  }
  return payload;
}

TEST(DecodedMemory, GivesBackEveryPayload) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    const DecodedPayload payload = random_payload(prng);
    const Bytes memory = encode_decoded(payload);
    const auto parsed = parse_decoded(memory, payload.bytes);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ((*parsed)->bytes, payload.bytes);
    EXPECT_EQ((*parsed)->digest, payload.digest);
    EXPECT_EQ((*parsed)->header.run, payload.header.run);
    EXPECT_EQ((*parsed)->header.order(), payload.header.order());
    EXPECT_EQ((*parsed)->header.target_version, payload.header.target_version);
    ASSERT_EQ((*parsed)->items.size(), payload.items.size());
    for (std::size_t i = 0; i < payload.items.size(); ++i) {
      EXPECT_EQ((*parsed)->items[i].positions, payload.items[i].positions);
      EXPECT_EQ((*parsed)->items[i].values, payload.items[i].values);
      EXPECT_EQ((*parsed)->items[i].header.box, payload.items[i].header.box);
      EXPECT_EQ((*parsed)->items[i].header.encoding, payload.items[i].header.encoding);
    }
    EXPECT_EQ(encode_decoded(**parsed), memory);
    if (payload.bytes == 0) continue;
    EXPECT_EQ(parse_decoded(memory, payload.bytes - 1).status().code(), Code::kTooLarge);
  }
}

TEST(DecodedMemory, RefusesEveryTruncationAndSurvivesEveryMutation) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    const Bytes memory = encode_decoded(random_payload(prng));
    for (std::size_t size = 0; size < memory.size(); ++size) {
      EXPECT_EQ(parse_decoded(ByteSpan(memory).first(size), kGiB).status().code(), Code::kCorrupt);
    }
    for (std::size_t at = 0; at < memory.size(); ++at) {
      Bytes mutated = memory;
      mutated[at] ^= static_cast<std::uint8_t>(1 + prng.below(255));
      const auto parsed = parse_decoded(mutated, kGiB);
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
  DecodedPayload payload;
  DecodedItem& item = payload.items.emplace_back();
  item.header.box = ItemBox::range(0, 8);
  item.header.changes = 2;
  item.values = {1, 2};
  for (const auto& [positions, good] : std::vector<std::pair<std::vector<std::uint32_t>, bool>>{
           {{0, 7}, true}, {{7, 0}, false}, {{3, 3}, false}, {{0, 8}, false}}) {
    item.positions = positions;
    const auto parsed = parse_decoded(encode_decoded(payload), kGiB);
    EXPECT_EQ(parsed.ok(), good) << positions[0] << " " << positions[1];
    if (good) continue;
    EXPECT_EQ(parsed.status().message(),
              "a decoded payload handed over by the node: item 0: positions that do not ascend "
              "within its box");
  }
}

}  // namespace
}  // namespace dcr
