#include "protocol/resident.h"

#include <gtest/gtest.h>

#include <array>

#include "base/prng.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

OwnerBinding owner(const std::string& name, std::uint64_t candidate, bool dense = false) {
  return {{name, 1}, {1, candidate}, dense};
}
Prepare attempt(VersionId base, AttemptMode mode, std::vector<OwnerBinding> owners) {
  Prepare prepare;
  prepare.attempt = 9;
  prepare.base = base;
  prepare.mode = mode;
  prepare.owners = std::move(owners);
  return prepare;
}
constexpr VersionId kBase = {3, 7};

TEST(Resident, AWholeVersionTakesAnyAttemptFromIt) {
  Resident resident;
  EXPECT_EQ(resident.text(), "unknown bits");
  EXPECT_EQ(resident.whole(), std::nullopt);
  resident.set_whole(kBase);
  EXPECT_EQ(resident.text(), "version 3 of attempt 7");
  EXPECT_EQ(resident.whole(), kBase);
  for (const AttemptMode mode :
       {AttemptMode::kMixed, AttemptMode::kOverwrite, AttemptMode::kDense}) {
    EXPECT_TRUE(resident.check(attempt(kBase, mode, {owner("a", 1)})).ok());
  }
}

TEST(Resident, AnotherVersionNeedsEverything) {
  Resident resident;
  for (int known = 0; known < 2; ++known) {
    if (known == 1) resident.set_whole({2, 4});
    const std::string holds = known == 1 ? "version 2 of attempt 4" : "unknown bits";
    for (const AttemptMode mode : {AttemptMode::kMixed, AttemptMode::kOverwrite}) {
      const Status status =
          resident.check(attempt(kBase, mode, {owner("a", 1), owner("b", 1, true)}));
      EXPECT_EQ(status.code(), Code::kMismatch);
      EXPECT_EQ(status.message(), "the receiver holds " + holds +
                                      ", but attempt 9 changes version 3 of attempt 7: it needs a "
                                      "dense attempt, or a restore");
    }
    EXPECT_TRUE(resident.check(attempt(kBase, AttemptMode::kDense, {owner("a", 1)})).ok());
    EXPECT_TRUE(resident
                    .check(attempt(kBase, AttemptMode::kOverwrite,
                                   {owner("a", 1, true), owner("b", 1, true)}))
                    .ok());
  }
}

TEST(Resident, AMixtureIsRepairedByWhatWroteIt) {
  Resident resident;
  resident.set_whole(kBase);
  resident.begin_writing(kBase, {owner("a", 1), owner("b", 1)});
  EXPECT_EQ(resident.whole(), std::nullopt);
  EXPECT_EQ(resident.text(), "a mixture over version 3 of attempt 7");
  const auto check = [&](AttemptMode mode, std::vector<OwnerBinding> owners) {
    return resident.check(attempt(kBase, mode, std::move(owners))).message();
  };
  const std::string refused =
      "the receiver holds a mixture over version 3 of attempt 7, which attempt 9 does not repair: ";
  EXPECT_EQ(check(AttemptMode::kOverwrite, {owner("a", 1), owner("b", 1)}), "");
  EXPECT_EQ(check(AttemptMode::kMixed, {owner("a", 1), owner("b", 1)}),
            refused + "it is mixed, not overwrite or dense");
  EXPECT_EQ(check(AttemptMode::kOverwrite, {owner("a", 1), owner("b", 2)}),
            refused + "b wrote other weights and does not send all");
  EXPECT_EQ(check(AttemptMode::kOverwrite, {owner("a", 1), owner("b", 2, true)}), "");
  // Who owns what may have moved.
  EXPECT_EQ(check(AttemptMode::kOverwrite, {owner("a", 1)}),
            refused + "b wrote other weights and does not send all");
  EXPECT_EQ(check(AttemptMode::kOverwrite, {owner("a", 1), owner("b", 1), owner("c", 1)}),
            refused + "c wrote other weights and does not send all");
  EXPECT_EQ(check(AttemptMode::kDense, {owner("a", 5)}), "");
  EXPECT_NE(resident.check(attempt({4, 8}, AttemptMode::kOverwrite, {owner("a", 1), owner("b", 1)}))
                .message(),
            "");
  // Two candidates of one owner: neither repairs the other.
  resident.begin_writing(kBase, {owner("a", 1), owner("b", 2, true)});
  EXPECT_EQ(check(AttemptMode::kOverwrite, {owner("a", 1), owner("b", 2)}),
            refused + "b wrote other weights and does not send all");
  EXPECT_EQ(check(AttemptMode::kOverwrite, {owner("a", 1), owner("b", 1)}),
            refused + "b wrote other weights and does not send all");
  resident.set_whole({4, 9});
  EXPECT_EQ(resident.whole(), (VersionId{4, 9}));
}

TEST(Resident, ADenseAttemptThatStopsLeavesNobodyKnowsWhat) {
  Resident resident;
  resident.begin_writing(kBase, {owner("a", 1)});
  EXPECT_EQ(resident.text(), "unknown bits");
  resident.set_whole({1, 1});
  resident.begin_writing(kBase, {owner("a", 1)});
  EXPECT_EQ(resident.text(), "unknown bits");
}

// Words of two owners, two each. Whatever attempts come and wherever they stop: one that is
// accepted makes every word its candidates'.
TEST(Resident, WhatIsAcceptedIsExact) {
  using Words = std::array<std::uint64_t, 4>;
  std::uint64_t accepted = 0, repairs = 0;
  for (std::uint64_t seed = 0; seed < campaign_cases(20'000); ++seed) {
    Prng prng(seed);
    const Words base = {10, 20, 30, 40};
    // What a candidate of an owner changes: a word, both, or none.
    const auto candidate_word = [&](std::size_t word, std::uint64_t candidate) {
      return (candidate >> (word % 2) & 1) != 0 ? base[word] + candidate : base[word];
    };
    Words storage = base;
    Resident resident;
    resident.set_whole(kBase);
    for (int step = 0; step < 6; ++step) {
      std::vector<OwnerBinding> owners = {owner("a", prng.below(4), prng.below(3) == 0),
                                          owner("b", prng.below(4), prng.below(3) == 0)};
      const auto mode = static_cast<AttemptMode>(prng.below(3));
      const Prepare prepare = attempt(kBase, mode, owners);
      if (!resident.check(prepare).ok()) continue;
      const bool mixture = !resident.whole();
      resident.begin_writing(kBase, owners);
      const bool whole = prng.below(2) == 0;
      Words wanted = base;
      for (std::size_t word = 0; word < 4; ++word) {
        const OwnerBinding& of = owners[word / 2];
        wanted[word] = candidate_word(word, of.candidate.counter);
        const bool dense = of.dense || mode == AttemptMode::kDense;
        const bool sent = dense || wanted[word] != base[word];
        if (!sent || (!whole && prng.below(2) == 0)) continue;
        // Mixed attempts add a difference.
        storage[word] = dense || mode == AttemptMode::kOverwrite
                            ? wanted[word]
                            : storage[word] + (wanted[word] - base[word]);
      }
      if (!whole) continue;
      ASSERT_EQ(storage, wanted) << "seed " << seed << " step " << step;
      ++accepted;
      if (mixture) ++repairs;
    }
  }
  EXPECT_GT(accepted, campaign_cases(20'000));
  EXPECT_GT(repairs, 0U);
}

}  // namespace
}  // namespace dcr
