#include "protocol/arrivals.h"

#include <gtest/gtest.h>

#include <set>

#include "base/prng.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

constexpr Arrivals::Window kWide = {100, 1000};

// Offers, ingests and takes it.
bool come(Arrivals* arrivals, std::uint32_t owner, std::uint64_t number, std::uint64_t bytes = 1) {
  if (!arrivals->offer({owner, number}, bytes)) return false;
  arrivals->take({owner, number});
  return true;
}
void end(Arrivals* arrivals, std::uint32_t owner, std::uint64_t payloads) {
  ASSERT_TRUE(arrivals->offer_end(owner, payloads));
  arrivals->take_end(owner);
}

TEST(Arrivals, AStreamWithoutPayloadsIsCompleteWithItsEnds) {
  Arrivals arrivals(2, kWide);
  EXPECT_EQ(arrivals.missing(), "payload 0 or the end of owner 0");
  end(&arrivals, 0, 0);
  EXPECT_FALSE(arrivals.complete());
  EXPECT_EQ(arrivals.missing(), "payload 0 or the end of owner 1");
  end(&arrivals, 1, 0);
  EXPECT_TRUE(arrivals.complete());
  EXPECT_EQ(arrivals.next(), 1U);
}

TEST(Arrivals, OrderIsByNumberThenOwner) {
  Arrivals arrivals(2, kWide);
  EXPECT_TRUE(come(&arrivals, 1, 0));
  EXPECT_TRUE(come(&arrivals, 0, 1));
  EXPECT_EQ(arrivals.ready(), 0U);
  EXPECT_EQ(arrivals.next(), 0U);
  EXPECT_TRUE(come(&arrivals, 0, 0));
  EXPECT_EQ(arrivals.ready(), 3U);
  EXPECT_EQ(arrivals.next(), 3U);
  EXPECT_EQ(arrivals.missing(), "payload 1 or the end of owner 1");
  end(&arrivals, 1, 1);
  end(&arrivals, 0, 3);
  EXPECT_EQ(arrivals.next(), 4U);
  EXPECT_EQ(arrivals.missing(), "payload 2 of owner 0");
  EXPECT_TRUE(come(&arrivals, 0, 2));
  EXPECT_EQ(arrivals.missing(), "the application of payloads");
  EXPECT_TRUE(arrivals.applied(4).empty());
  EXPECT_TRUE(arrivals.complete());
}

TEST(Arrivals, WhatWasWithdrawnIsOfferedAgain) {
  Arrivals arrivals(1, kWide);
  EXPECT_TRUE(arrivals.offer({0, 0}, 7));
  EXPECT_FALSE(arrivals.offer({0, 0}, 7));
  arrivals.withdraw({0, 0});
  EXPECT_EQ(arrivals.room().bytes, kWide.bytes);
  EXPECT_EQ(arrivals.room().payloads, kWide.payloads);
  arrivals.withdraw({0, 0});  // nothing of it is left
  EXPECT_TRUE(come(&arrivals, 0, 0, 7));
  EXPECT_EQ(arrivals.ready(), 1U);
}

TEST(Arrivals, WhatCameIsNotIngestedAgain) {
  Arrivals arrivals(1, kWide);
  EXPECT_TRUE(arrivals.offer({0, 0}, 1));
  EXPECT_FALSE(arrivals.offer({0, 0}, 1));  // on its way
  arrivals.take({0, 0});
  EXPECT_FALSE(arrivals.offer({0, 0}, 1));  // waits for its turn
  EXPECT_TRUE(arrivals.applied(1).empty());
  EXPECT_FALSE(arrivals.offer({0, 0}, 1));  // applied
  EXPECT_FALSE(arrivals.offer({1, 5}, 1));  // of an owner that there is not
}

TEST(Arrivals, CreditIsAWindowAndTheNextIsAlwaysAdmitted) {
  Arrivals arrivals(1, {2, 10});
  EXPECT_TRUE(come(&arrivals, 0, 1, 6));
  EXPECT_EQ(arrivals.room().payloads, 1U);
  EXPECT_EQ(arrivals.room().bytes, 4U);
  EXPECT_FALSE(come(&arrivals, 0, 2, 5));  // too many bytes
  EXPECT_TRUE(come(&arrivals, 0, 2, 4));
  EXPECT_FALSE(come(&arrivals, 0, 3, 0));  // too many payloads
  EXPECT_TRUE(come(&arrivals, 0, 0, 1000));
  EXPECT_EQ(arrivals.room().payloads, 0U);
  EXPECT_EQ(arrivals.room().bytes, 0U);
  EXPECT_EQ(arrivals.ready(), 3U);
  EXPECT_TRUE(arrivals.applied(2).empty());
  EXPECT_EQ(arrivals.room().bytes, 6U);
}

TEST(Arrivals, WhatHadNoRoomIsIngestedAgainAfterAnApplication) {
  Arrivals arrivals(1, kWide);
  EXPECT_TRUE(arrivals.offer({0, 1}, 1));
  arrivals.set_aside({0, 1});
  EXPECT_FALSE(arrivals.offer({0, 1}, 1));
  EXPECT_TRUE(come(&arrivals, 0, 0));
  EXPECT_EQ(arrivals.ready(), 1U);
  EXPECT_EQ(arrivals.applied(1), (std::vector<Arrivals::Payload>{{0, 1}}));
  arrivals.take({0, 1});
  EXPECT_EQ(arrivals.ready(), 1U);
}

TEST(Arrivals, AnEndIsToldOnceAndWhateverContradictsIt) {
  Arrivals arrivals(1, kWide);
  EXPECT_TRUE(arrivals.offer_end(0, 2));
  EXPECT_FALSE(arrivals.offer_end(0, 2));
  EXPECT_TRUE(arrivals.offer_end(0, 3));
  EXPECT_FALSE(arrivals.offer_end(1, 2));
  arrivals.take_end(0);
  EXPECT_EQ(arrivals.missing(), "payload 0 of owner 0");
}

// Whatever the order of arrival: everything is applied once, in order, within the window.
TEST(Arrivals, RandomStreams) {
  for (std::uint64_t seed = 0; seed < campaign_cases(2000); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    const auto owners = static_cast<std::uint32_t>(1 + prng.below(4));
    const Arrivals::Window window{1 + prng.below(5), prng.below(20)};
    Arrivals arrivals(owners, window);
    std::vector<std::uint64_t> ends;
    std::vector<Arrivals::Payload> all, on_way;
    for (std::uint32_t owner = 0; owner < owners; ++owner) {
      ends.push_back(prng.below(8));
      for (std::uint64_t i = 0; i < ends[owner]; ++i) all.push_back({owner, i});
    }
    std::uint64_t applied = 0, steps = 0;
    while (!arrivals.complete()) {
      ASSERT_LT(++steps, 100'000U) << arrivals.missing();
      if (prng.below(8) == 0) {
        const auto owner = static_cast<std::uint32_t>(prng.below(owners));
        if (arrivals.offer_end(owner, ends[owner])) arrivals.take_end(owner);
      } else if (!all.empty() && prng.below(2) == 0) {
        const Arrivals::Payload one = all[prng.below(all.size())];
        if (arrivals.offer(one, 1 + prng.below(4))) on_way.push_back(one);
      } else if (!on_way.empty()) {
        const std::size_t at = prng.below(on_way.size());
        arrivals.take(on_way[at]);
        on_way.erase(on_way.begin() + static_cast<std::ptrdiff_t>(at));
      } else if (arrivals.ready() > 0) {
        const std::uint64_t some = 1 + prng.below(arrivals.ready());
        EXPECT_TRUE(arrivals.applied(some).empty());
        applied += some;
      }
      ASSERT_LE(arrivals.applied() + arrivals.ready(), all.size());
    }
    EXPECT_EQ(applied, all.size());
    EXPECT_EQ(arrivals.applied(), all.size());
  }
}

}  // namespace
}  // namespace dcr
