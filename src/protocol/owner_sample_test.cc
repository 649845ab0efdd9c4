// Samples of the baseline for receivers to compare with what they hold.
#include "protocol/test_owner.h"

namespace dcr {
namespace {

using OwnerSampleTest = OwnerEndpointTest;

TEST_F(OwnerSampleTest, DrawsOneForEachWhoAsks) {
  refit();
  const VersionId version = world.control.read()->commit.id;
  const Endpoint other = world.member("receiver-1", Role::kReceiver);
  owner->receive(receiver, SampleRequest{version, 7});
  owner->receive(other, SampleRequest{version, 8});
  for (const std::uint64_t seed : {7U, 8U}) {
    const SampleBaseline work = owner->take_work<SampleBaseline>();
    EXPECT_EQ(work.version, version);
    EXPECT_EQ(work.seed, seed);
    OwnerWorkDone done = done_of(OwnerWorkDone::Kind::kSampleBaseline, version.version);
    done.sample = {static_cast<std::uint8_t>(seed)};
    owner->step(done);
    const auto said = owner->take<Sample>();
    ASSERT_EQ(said.size(), 1U);
    EXPECT_EQ(said[0].first, seed == 7 ? receiver.name : other.name);
    EXPECT_EQ(said[0].second, (Sample{version, {static_cast<std::uint8_t>(seed)}}));
  }
  EXPECT_TRUE(owner->work.empty());
}

TEST_F(OwnerSampleTest, OneThatAsksAgainIsAnsweredOnce) {
  refit();
  const VersionId version = world.control.read()->commit.id;
  const Endpoint other = world.member("receiver-1", Role::kReceiver);
  owner->receive(other, SampleRequest{version, 1});
  for (const std::uint64_t seed : {7U, 8U, 9U}) {
    owner->receive(receiver, SampleRequest{version, seed});
  }
  for (const std::uint64_t seed : {1U, 9U}) {
    EXPECT_EQ(owner->take_work<SampleBaseline>().seed, seed);
    owner->step(done_of(OwnerWorkDone::Kind::kSampleBaseline, version.version));
  }
  EXPECT_TRUE(owner->work.empty());
}

// Of another version, of one whose baseline it does not have, and where drawing it fails.
TEST_F(OwnerSampleTest, WhatItCannotAnswerItPassesOver) {
  owner->receive(receiver, SampleRequest{{1, 1}, 7});
  EXPECT_TRUE(owner->work.empty());
  refit();
  const VersionId version = world.control.read()->commit.id;
  owner->receive(receiver, SampleRequest{{}, 7});
  EXPECT_TRUE(owner->work.empty());
  owner->receive(receiver, SampleRequest{version, 7});
  owner->take_work<SampleBaseline>();
  OwnerWorkDone failed = done_of(OwnerWorkDone::Kind::kSampleBaseline, version.version);
  failed.status = Status(Code::kIo, "cannot be read");
  owner->step(failed);
  EXPECT_TRUE(owner->take<Sample>().empty());
  start(std::nullopt);
  owner->receive(receiver, SampleRequest{version, 7});
  EXPECT_TRUE(owner->take<Sample>().empty());
}

// What the trainer waits for comes first; a request of before it is about a version that is over.
TEST_F(OwnerSampleTest, ARefitComesFirst) {
  refit();
  const VersionId version = world.control.read()->commit.id;
  call_refit();
  const Prepare message = prepare();
  owner->receive(world.leader, message);
  owner->receive(receiver, SampleRequest{version, 7});
  sweep(message.attempt);
  owner->take_work<ConstructAndSend>();
  EXPECT_TRUE(owner->work.empty());
  owner->step(done_of(OwnerWorkDone::Kind::kConstructAndSend, message.attempt));
  EXPECT_EQ(owner->take_work<SampleBaseline>().version, version);
}

}  // namespace
}  // namespace dcr
