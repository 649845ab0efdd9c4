// What every Collective does alike, case by case. A collective passes by running these.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "channel/test_collective.h"
#include "dcr/ports.h"

namespace dcr {

// The ranks of a training job, each with a sink for its parts.
class CollectiveWorld {
 public:
  static constexpr std::uint32_t kRanks = 3;

  virtual ~CollectiveWorld() = default;
  virtual Collective& rank(std::uint32_t number) = 0;
  virtual TestPartSink& sink(std::uint32_t number) = 0;
  // What owners do in a round: every rank sends, then all reduce their flags, in place.
  using Send = std::function<Status(std::uint32_t rank, Collective& collective)>;
  virtual void round(const Send& send, std::vector<Bytes>* flags) = 0;
};

using MakeCollectiveWorld = std::unique_ptr<CollectiveWorld> (*)();

class CollectiveConformanceTest : public ::testing::TestWithParam<MakeCollectiveWorld> {
 protected:
  static constexpr std::uint32_t kRanks = CollectiveWorld::kRanks;

  static Status nothing(std::uint32_t /*rank*/, Collective& /*collective*/) { return {}; }
  static Bytes bytes_of(std::size_t size, std::uint8_t seed) {
    Bytes bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::uint8_t>(seed + i * 7);
    return bytes;
  }
  static void expect_header(const PartHeader& found, const PartHeader& expected) {
    EXPECT_EQ(found.attempt, expected.attempt);
    EXPECT_EQ(found.from, expected.from);
    EXPECT_EQ(found.tensor, expected.tensor);
    EXPECT_EQ(found.part, expected.part);
    EXPECT_EQ(found.first, expected.first);
  }

  std::unique_ptr<CollectiveWorld> world_ = GetParam()();
};

TEST_P(CollectiveConformanceTest, KnowsItsRanks) {
  for (std::uint32_t i = 0; i < kRanks; ++i) {
    EXPECT_EQ(world_->rank(i).rank(), i);
    EXPECT_EQ(world_->rank(i).size(), kRanks);
  }
}

TEST_P(CollectiveConformanceTest, FlagsBecomeTheirMaximum) {
  std::vector<Bytes> flags = {{0, 1, 0, 3}, {0, 0, 1, 2}, {0, 0, 0, 0}};
  world_->round(nothing, &flags);
  for (const Bytes& of_rank : flags) EXPECT_EQ(of_rank, (Bytes{0, 1, 1, 3}));
  // Again, and with others.
  flags.assign(kRanks, Bytes(1));
  flags[2][0] = 1;
  world_->round(nothing, &flags);
  for (const Bytes& of_rank : flags) EXPECT_EQ(of_rank, Bytes{1});
  flags.assign(kRanks, Bytes(100'000, 0));
  flags[1][99'999] = 255;
  world_->round(nothing, &flags);
  for (const Bytes& of_rank : flags) EXPECT_EQ(of_rank[99'999], 255);
  flags.assign(kRanks, Bytes());
  world_->round(nothing, &flags);
}

TEST_P(CollectiveConformanceTest, PartsComeWholeToTheRankThatTheyAreFor) {
  constexpr std::uint64_t kFragment = kCollectiveFragmentBytesMax;
  const std::size_t sizes[] = {0, 1, 1000, kFragment, kFragment + 1, kCollectivePartBytesMax};
  for (const std::size_t size : sizes) {
    SCOPED_TRACE(size);
    const Bytes bytes = bytes_of(size, 5);
    std::vector<Bytes> flags(kRanks, Bytes(1));
    const PartHeader header{9, 0, 77, 3, 1000};
    world_->round(
        [&](std::uint32_t rank, Collective& collective) {
          return rank == 0 ? collective.send_part(2, header, bytes) : Status();
        },
        &flags);
    ASSERT_EQ(world_->sink(2).parts.size(), 1U);
    EXPECT_TRUE(world_->sink(2).parts[0] == bytes);
    expect_header(world_->sink(2).headers[0], header);
    world_->sink(2).parts.clear();
    world_->sink(2).headers.clear();
  }
  EXPECT_TRUE(world_->sink(0).parts.empty() && world_->sink(1).parts.empty());
}

TEST_P(CollectiveConformanceTest, EverybodySendsToEverybodyOnceAndInOrder) {
  std::vector<Bytes> flags(kRanks, Bytes(1));
  constexpr std::uint64_t kParts = 20;
  for (std::uint64_t round = 0; round < 3; ++round) {
    world_->round(
        [&](std::uint32_t rank, Collective& collective) -> Status {
          for (std::uint64_t part = 0; part < kParts; ++part) {
            for (std::uint32_t to = 0; to < kRanks; ++to) {
              DCR_TRY(collective.send_part(to, {9, rank, 1, part, round}, bytes_of(100, 1)));
            }
          }
          return {};
        },
        &flags);
  }
  for (std::uint32_t to = 0; to < kRanks; ++to) {
    std::vector<std::uint64_t> next(kRanks, 0);
    EXPECT_EQ(world_->sink(to).headers.size(), 3 * kParts * kRanks);
    for (const PartHeader& header : world_->sink(to).headers) {
      EXPECT_EQ(header.first * kParts + header.part, next[header.from]++);
    }
  }
}

TEST_P(CollectiveConformanceTest, WhatASinkSaysIsTheSendersToHear) {
  world_->sink(1).status = Status(Code::kMismatch, "it came twice", "layer.w");
  std::vector<Bytes> flags(kRanks, Bytes(1));
  Status heard;
  world_->round(
      [&](std::uint32_t rank, Collective& collective) -> Status {
        if (rank != 0) return {};
        heard = collective.send_part(1, {9, 0, 1, 0, 0}, bytes_of(10, 1));
        return {};
      },
      &flags);
  EXPECT_EQ(heard.code(), Code::kMismatch);
  EXPECT_EQ(heard.message(), "it came twice");
  EXPECT_EQ(heard.tensor(), "layer.w");
  // The next part is another.
  world_->sink(1).status = Status();
  world_->round(
      [&](std::uint32_t rank, Collective& collective) {
        return rank == 0 ? collective.send_part(1, {9, 0, 1, 1, 0}, bytes_of(10, 1)) : Status();
      },
      &flags);
  EXPECT_EQ(world_->sink(1).parts.size(), 1U);
}

TEST_P(CollectiveConformanceTest, ThereIsNoRankBeyondTheLast) {
  const Bytes bytes(1);
  EXPECT_EQ(world_->rank(0).send_part(kRanks, {9, 0, 1, 0, 0}, bytes).code(), Code::kInternal);
}

}  // namespace dcr
