#include "channel/collective_message.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

std::vector<CollectiveMessage> samples() {
  return {{14, CollectiveFlags{3, {1, 0, 1}}},
          {14, CollectivePart{5, {7, 2, 9, 1, 100}, 6, 2, {1, 2, 3, 4}}},
          {15, CollectiveTaken{5, Status(Code::kMismatch, "it came twice", "layer.w")}},
          {15, CollectiveTaken{6, {}}},
          {0, CollectiveLeft{true, "it is at a later meeting"}}};
}

TEST(CollectiveMessage, ComesBackAsItWas) {
  for (const CollectiveMessage& message : samples()) {
    const Bytes bytes = encode_collective(message);
    const Result<CollectiveMessage> read = decode_collective(bytes, 2);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->meeting, message.meeting);
    ASSERT_EQ(read->what.index(), message.what.index());
    EXPECT_TRUE(encode_collective(*read) == bytes);
    if (const auto* const part = std::get_if<CollectivePart>(&read->what)) {
      EXPECT_EQ(part->header.from, 2U);
      EXPECT_EQ(part->header.first, 100U);
    }
    if (const auto* const taken = std::get_if<CollectiveTaken>(&read->what)) {
      EXPECT_EQ(taken->status.tensor(), taken->number == 5 ? "layer.w" : "");
    }
  }
}

TEST(CollectiveMessage, SaysWhatIsWrong) {
  const auto error = [](Bytes bytes, std::size_t at, std::uint8_t value) {
    bytes[at] = value;
    return decode_collective(bytes, 2).status().message();
  };
  const std::vector<CollectiveMessage> all = samples();
  const Bytes part = encode_collective(all[1]);
  EXPECT_EQ(error(part, 0, 1), "a message of a collective has format 1");
  EXPECT_EQ(error(part, 1, 4), "a message of a collective has a kind that there is not");
  EXPECT_EQ(error(part, 10, 0), "a message of a collective has a part without number");
  EXPECT_EQ(error(part, 46, 5), "a message of a collective has bytes past the end of their part");
  EXPECT_EQ(error(part, 49, 9), "a message of a collective has a part of 150994950 bytes");
  EXPECT_EQ(error(encode_collective(all[2]), 18, 200),
            "a message of a collective has a code that there is not");
  EXPECT_EQ(error(encode_collective(all[4]), 10, 2),
            "a message of a collective has a flag that is neither 0 nor 1");
  EXPECT_EQ(decode_collective(ByteSpan(part).first(20), 2).status().message(),
            "a message of a collective is cut short");
}

// Damage is seen, or means what it says.
TEST(CollectiveMessage, DamageIsSeenOrMeansWhatItSays) {
  for (const CollectiveMessage& message : samples()) {
    const Bytes whole = encode_collective(message);
    for (std::uint64_t seed = 0; seed < campaign_cases(2000); ++seed) {
      Prng prng(seed);
      Bytes bytes = whole;
      bytes.resize(prng.below(bytes.size() + 1));
      if (!bytes.empty()) bytes[prng.below(bytes.size())] = static_cast<std::uint8_t>(prng.next());
      const Result<CollectiveMessage> read = decode_collective(bytes, 2);
      if (!read.ok()) continue;
      EXPECT_LE(encode_collective(*read).size(), bytes.size());
    }
  }
}

// What a peer says of an error cannot drive a terminal.
TEST(CollectiveMessage, TextIsCleanedAndCut) {
  const CollectiveMessage message{1, CollectiveLeft{false, "a\x1b[2J\n" + std::string(9000, 'x')}};
  const Result<CollectiveMessage> read = decode_collective(encode_collective(message), 0);
  ASSERT_TRUE(read.ok());
  const std::string reason = std::get<CollectiveLeft>(read->what).reason;
  EXPECT_EQ(reason.size(), kCollectiveTextBytesMax);
  EXPECT_TRUE(reason.starts_with("a [2J xx"));
}

}  // namespace
}  // namespace dcr
