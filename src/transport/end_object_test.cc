#include "transport/end_object.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

const EndPlace kPlace = {{1, 2, 3}, 4, 1, 2};

AttemptEnd sample() {
  Digest first, second;
  first.fill(0xaa);
  second.fill(0xbb);
  return {{{300, first}, {7, second}}};
}

// `bytes` changed, under a digest that fits.
template <typename Change>
Bytes forge(Change change) {
  Bytes bytes = encode_end(kPlace, sample());
  bytes.resize(bytes.size() - sizeof(Digest));
  change(&bytes);
  const Digest digest = blake2b(bytes);
  bytes.insert(bytes.end(), digest.begin(), digest.end());
  return bytes;
}

void expect_refused(ByteSpan bytes, Code code, const std::string& message) {
  const Status status = decode_end(kPlace, bytes).status();
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_EQ(status.message(), message);
}

TEST(EndObject, ComesBackAsItWas) {
  EXPECT_EQ(*decode_end(kPlace, encode_end(kPlace, sample())), sample());
  EXPECT_EQ(*decode_end(kPlace, encode_end(kPlace, {})), AttemptEnd{});
  const Bytes key(32, 5);
  EXPECT_EQ(*decode_end(kPlace, encode_end(kPlace, sample(), key), key), sample());
  AttemptEnd most;
  most.payloads.resize(kPayloadsPerOwnerMax);
  EXPECT_EQ(encode_end(kPlace, most).size(), kEndBytesMax);
  EXPECT_EQ(*decode_end(kPlace, encode_end(kPlace, most)), most);
}

// docs/FORMAT.md, "End".
TEST(EndObject, IsWhatTheFormatSays) {
  const Bytes bytes = encode_end(kPlace, sample());
  ASSERT_EQ(bytes.size(), 56 + 2 * 24 + 16);
  EXPECT_EQ(std::string(bytes.begin(), bytes.begin() + 8), "DCROWEND");
  EXPECT_EQ(load_little<std::uint32_t>(&bytes[8]), 0U);
  EXPECT_EQ(load_little<std::uint32_t>(&bytes[12]), 1U);  // algorithm, reserved
  EXPECT_EQ(bytes[16], 1);
  EXPECT_EQ(load_little<std::uint64_t>(&bytes[32]), 4U);
  EXPECT_EQ(load_little<std::uint32_t>(&bytes[40]), 1U);
  EXPECT_EQ(load_little<std::uint32_t>(&bytes[44]), 2U);
  EXPECT_EQ(load_little<std::uint64_t>(&bytes[48]), 2U);
  EXPECT_EQ(load_little<std::uint64_t>(&bytes[56]), 300U);
  EXPECT_EQ(bytes[64], 0xaa);
  EXPECT_EQ(load_little<std::uint64_t>(&bytes[80]), 7U);
}

TEST(EndObject, AnothersIsRefused) {
  const std::string rest =
      " belongs to owner 1 of 2 in attempt 4 of run " + digest_text(kPlace.run);
  const Bytes bytes = encode_end(kPlace, sample());
  const EndPlace places[] = {
      {{9}, 4, 1, 2}, {{1, 2, 3}, 5, 1, 2}, {{1, 2, 3}, 4, 0, 2}, {{1, 2, 3}, 4, 1, 3}};
  for (const EndPlace& place : places) {
    const Status status = decode_end(place, bytes).status();
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_EQ(status.message(), "the end of owner " + std::to_string(place.owner) + " in attempt " +
                                    std::to_string(place.attempt) + rest);
  }
}

TEST(EndObject, ForgedOnesAreRefused) {
  const std::string end = "the end of owner 1 in attempt 4 ";
  expect_refused({}, Code::kCorrupt, end + "is cut short");
  expect_refused(forge([](Bytes* bytes) { (*bytes)[0] = 'X'; }), Code::kCorrupt,
                 end + "is no end: its magic differs");
  expect_refused(forge([](Bytes* bytes) { (*bytes)[8] = 9; }), Code::kUnsupported,
                 end + "has format version 9; this build knows version 0");
  const std::string damaged = end + "is damaged, or was made with another key: its digest differs";
  expect_refused(forge([](Bytes* bytes) { (*bytes)[12] = 2; }), Code::kCorrupt, damaged);
  expect_refused(encode_end(kPlace, sample(), Bytes(32, 5)), Code::kCorrupt, damaged);
  EXPECT_EQ(decode_end(kPlace, encode_end(kPlace, sample()), Bytes(32, 5)).status().message(),
            damaged);
  expect_refused(forge([](Bytes* bytes) { (*bytes)[14] = 1; }), Code::kCorrupt,
                 end + "has reserved bytes that are not 0");
  expect_refused(forge([](Bytes* bytes) { (*bytes)[48] = 3; }), Code::kCorrupt,
                 end + "says that it has 3 payloads, which is not what it holds");
  expect_refused(forge([](Bytes* bytes) { bytes->push_back(0); }), Code::kCorrupt,
                 end + "says that it has 2 payloads, which is not what it holds");
  expect_refused(forge([](Bytes* bytes) { (*bytes)[55] = 0x10; }), Code::kCorrupt,
                 end + "says that it has 1152921504606846978 payloads, which is not what it holds");
}

TEST(EndObject, EveryDamagedByteIsSeen) {
  const Bytes whole = encode_end(kPlace, sample());
  for (std::size_t at = 0; at < whole.size(); ++at) {
    Bytes damaged = whole;
    damaged[at] ^= 1;
    EXPECT_FALSE(decode_end(kPlace, damaged).ok()) << at;
    EXPECT_FALSE(decode_end(kPlace, ByteSpan(whole).first(at)).ok()) << at;
  }
  for (std::uint64_t seed = 0; seed < campaign_cases(20'000); ++seed) {
    Prng prng(seed);
    const Bytes forged = forge([&prng](Bytes* bytes) {
      (*bytes)[prng.below(bytes->size())] = static_cast<std::uint8_t>(prng.next());
    });
    const Result<AttemptEnd> read = decode_end(kPlace, forged);
    if (read.ok()) {
      EXPECT_EQ(encode_end(kPlace, *read), forged);
    }
  }
}

}  // namespace
}  // namespace dcr
