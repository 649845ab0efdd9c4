#include "receiver/staging.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

std::shared_ptr<const DecodedPayload> payload(std::uint64_t number, std::uint32_t owner,
                                              std::uint32_t owners, std::uint64_t bytes = 1,
                                              std::uint8_t content = 0) {
  auto made = std::make_shared<DecodedPayload>();
  made->header.number = number;
  made->header.owner = owner;
  made->header.owners = owners;
  made->bytes = bytes;
  made->digest = {content};
  return made;
}

TEST(StagingTest, AppliesInDeclaredOrderWhateverTheArrival) {
  for (std::uint64_t seed = 0; seed < campaign_cases(2000); ++seed) {
    Prng random(seed);
    const auto owners = static_cast<std::uint32_t>(1 + random.below(4));
    std::vector<std::uint64_t> ends(owners);
    std::vector<std::pair<std::uint64_t, std::uint32_t>> events;  // number, owner; ends too
    std::vector<std::uint64_t> wanted, applied;
    for (std::uint32_t owner = 0; owner < owners; ++owner) {
      ends[owner] = random.below(6);
      for (std::uint64_t number = 0; number <= ends[owner]; ++number) {
        events.emplace_back(number, owner);
        if (number < ends[owner]) wanted.push_back(number * owners + owner);
      }
    }
    std::sort(wanted.begin(), wanted.end());
    for (std::size_t i = events.size(); i > 1; --i) {
      std::swap(events[i - 1], events[random.below(i)]);
    }
    Staging staging(1000);
    staging.begin(owners);
    for (const auto& [number, owner] : events) {
      EXPECT_FALSE(staging.complete());
      if (number == ends[owner]) {
        ASSERT_TRUE(staging.end_of_owner(owner, number).ok());
      } else {
        const auto one = payload(number, owner, owners);
        ASSERT_EQ(staging.classify(*one).value(), Ingested::kQueued);
        staging.push(one);
      }
      while (const auto next = staging.pop()) applied.push_back(next->header.order());
    }
    ASSERT_EQ(applied, wanted) << "seed " << seed;
    ASSERT_TRUE(staging.complete()) << "seed " << seed;
    ASSERT_EQ(staging.bytes(), 0u);
  }
}

TEST(StagingTest, DuplicatesAreIgnoredAndConflictsNamed) {
  Staging staging(1000);
  staging.begin(2);
  staging.push(payload(1, 1, 2, 1, 0xaa));
  EXPECT_EQ(staging.classify(*payload(1, 1, 2, 1, 0xaa)).value(), Ingested::kDuplicate);
  EXPECT_EQ(staging.classify(*payload(1, 1, 2, 1, 0xbb)).status().message(),
            "payload 1 of owner 1 came twice with other bytes: digests "
            "aa000000000000000000000000000000 and bb000000000000000000000000000000");
  // Also after it was applied.
  staging.push(payload(0, 0, 2, 1, 1));
  EXPECT_NE(staging.pop(), nullptr);
  EXPECT_EQ(staging.classify(*payload(0, 0, 2, 1, 1)).value(), Ingested::kDuplicate);
}

TEST(StagingTest, EndsAreBinding) {
  Staging staging(1000);
  staging.begin(2);
  EXPECT_EQ(staging.missing(), "payload 0 of owner 0, or its end");
  ASSERT_TRUE(staging.end_of_owner(0, 2).ok());
  ASSERT_TRUE(staging.end_of_owner(0, 2).ok());
  EXPECT_EQ(staging.missing(), "payload 0 of owner 0");
  EXPECT_EQ(staging.end_of_owner(0, 3).message(), "owner 0 announced 2 payloads and then 3");
  EXPECT_EQ(staging.end_of_owner(2, 0).message(), "the end of owner 2 of 2");
  EXPECT_EQ(staging.classify(*payload(2, 0, 2)).status().message(),
            "payload 2 of owner 0 is past the 2 that it announced");
  staging.push(payload(4, 1, 2));
  EXPECT_EQ(staging.end_of_owner(1, 4).message(),
            "payload 4 of owner 1 is past the 4 that it announced");
}

TEST(StagingTest, ASlotIsKeptForTheNext) {
  Staging staging(1'000'000);
  staging.begin(1);
  for (std::uint64_t number = 1; number < kStagingSlots; ++number) {
    ASSERT_EQ(staging.classify(*payload(number, 0, 1)).value(), Ingested::kQueued);
    staging.push(payload(number, 0, 1));
  }
  EXPECT_EQ(staging.classify(*payload(kStagingSlots, 0, 1)).value(), Ingested::kFull);
  EXPECT_EQ(staging.classify(*payload(0, 0, 1)).value(), Ingested::kQueued);
  staging.push(payload(0, 0, 1));
  for (std::uint64_t number = 0; number < kStagingSlots; ++number) {
    EXPECT_EQ(staging.pop()->header.number, number);
  }
  EXPECT_EQ(staging.pop(), nullptr);
}

TEST(StagingTest, BytesAreBounded) {
  Staging staging(100);
  staging.begin(1);
  staging.push(payload(1, 0, 1, 60));
  EXPECT_EQ(staging.classify(*payload(2, 0, 1, 41)).value(), Ingested::kFull);
  EXPECT_EQ(staging.classify(*payload(2, 0, 1, 40)).value(), Ingested::kQueued);
  EXPECT_EQ(staging.classify(*payload(0, 0, 1, 100)).value(), Ingested::kQueued);
}

}  // namespace
}  // namespace dcr
