#include "protocol/node.h"

#include <gtest/gtest.h>

#include "protocol/test_driver.h"

namespace dcr {
namespace {

using Driver = TestDriver<NodeEndpoint, NodeEvent, NodeEffect>;

PayloadEntry entry_of(std::uint32_t owner, std::uint64_t number, std::uint64_t bytes = 100) {
  PayloadEntry entry;
  entry.bytes = bytes;
  entry.digest[0] = static_cast<std::uint8_t>(owner + 1);
  entry.digest[1] = static_cast<std::uint8_t>(number);
  return entry;
}

class NodeEndpointTest : public testing::Test {
 public:
  NodeEndpointTest() {
    world.lead();
    owners = {world.member("owner-0", Role::kOwner), world.member("owner-1", Role::kOwner)};
    receiver = world.member("receiver-0", Role::kReceiver);
    other = world.member("receiver-1", Role::kReceiver);
    start();
  }

  void start() {
    NodeEndpointOptions options;
    options.name = "node-0";
    options.owners = 2;
    options.staging_bytes_max = staging_bytes_max;
    options.decoded_bytes_max = decoded_bytes_max;
    node = std::make_unique<Driver>(NodeEndpoint(options), world.control);
    node->step(Started{});
    node->pass(0);
  }
  Prepare prepare(bool asynchronous = false) {
    const TransitionRecord record = world.prepare(
        {{"owner-0", {owners[0].incarnation, 1}}, {"owner-1", {owners[1].incarnation, 1}}});
    Prepare message;
    message.attempt = record.attempt;
    message.base = record.base;
    message.asynchronous = asynchronous;
    message.owners = record.owners;
    message.nodes = record.nodes;
    message.receivers = {{receiver, "engine", "node-0"}, {other, "engine", "node-1"}};
    return message;
  }
  Prepare begin(bool asynchronous = false) {
    const Prepare message = prepare(asynchronous);
    node->receive(world.leader, message);
    EXPECT_EQ(node->take<Prepared>().size(), 1U);
    stream = {false, message.attempt};
    return message;
  }
  // Nothing is there yet of what the node asks for.
  void answer_nothing() {
    while (!node->work.empty()) {
      if (const auto* const end = std::get_if<FetchEnd>(&node->work.front())) {
        const EndFetched answer{end->stream, end->owner, {}, std::nullopt};
        node->work.pop_front();
        node->step(answer);
      } else {
        const FetchPayload fetch = node->take_work<FetchPayload>();
        node->step(PayloadFetched{fetch.stream, fetch.owner, fetch.number, {}, false, 0, 0, {}});
      }
    }
  }
  void fetched(std::uint32_t owner, std::uint64_t number, std::uint64_t decoded = 1000) {
    const FetchPayload fetch = node->take_work<FetchPayload>();
    EXPECT_EQ(fetch.stream, stream);
    EXPECT_EQ(fetch.owner, owner);
    EXPECT_EQ(fetch.number, number);
    const PayloadEntry entry = entry_of(owner, number);
    node->step(PayloadFetched{stream, owner, number, {}, true, entry.bytes, decoded, entry});
  }
  void decoded(std::uint32_t owner, std::uint64_t number) {
    const DecodePayload decode = node->take_work<DecodePayload>();
    EXPECT_EQ(decode.owner, owner);
    EXPECT_EQ(decode.number, number);
    node->step(PayloadDecoded{stream, owner, number, {}});
  }
  // The owner's end of `payloads` payloads comes.
  void ended(std::uint32_t owner, std::uint64_t payloads) {
    node->receive(owners[owner], PayloadsSent{stream, 0, true});
    const auto fetch = std::find_if(node->work.begin(), node->work.end(), [&](const auto& effect) {
      const auto* const end = std::get_if<FetchEnd>(&effect);
      return end != nullptr && end->owner == owner;
    });
    ASSERT_NE(fetch, node->work.end());
    node->work.erase(fetch);
    AttemptEnd end;
    for (std::uint64_t n = 0; n < payloads; ++n) end.payloads.push_back(entry_of(owner, n));
    node->step(EndFetched{stream, owner, {}, end});
  }
  void credit(std::uint64_t next, std::uint64_t payloads = 100, std::uint64_t bytes = 1 << 20) {
    node->receive(receiver, Credit{stream, next, payloads, bytes});
  }
  void expect_handed(std::uint32_t owner, std::uint64_t number) {
    const HandOver handed = node->take_work<HandOver>();
    EXPECT_EQ(handed.receiver, receiver);
    EXPECT_EQ(handed.stream, stream);
    EXPECT_EQ(handed.owner, owner);
    EXPECT_EQ(handed.number, number);
  }

  std::uint64_t staging_bytes_max = 250;
  std::uint64_t decoded_bytes_max = 10'000;
  TestControl world;
  std::vector<Endpoint> owners;
  Endpoint receiver, other;
  std::unique_ptr<Driver> node;
  StreamId stream;
};

TEST_F(NodeEndpointTest, CreditMayComeBeforeThePrepare) {
  const Prepare message = prepare();
  stream = {false, message.attempt};
  credit(0);
  // Of one that another node feeds; and of an attempt that this node never hears of.
  node->receive({other.name, other.incarnation}, Credit{stream, 0, 100, 1 << 20});
  node->receive({"receiver-2", 7}, Credit{{false, message.attempt + 1}, 0, 100, 1 << 20});
  EXPECT_TRUE(node->work.empty());
  node->receive(world.leader, message);
  EXPECT_EQ(node->take<Prepared>().size(), 1U);
  answer_nothing();
  ended(1, 0);
  ended(0, 1);
  const auto ends = node->take<OwnerEnd>();
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(ends[0].first, "receiver-0");
  EXPECT_EQ(ends[1].first, "receiver-0");
  fetched(0, 0);
  decoded(0, 0);
  expect_handed(0, 0);
  EXPECT_TRUE(node->work.empty());
}

TEST_F(NodeEndpointTest, FetchesDecodesAndHandsOverOnce) {
  begin();
  answer_nothing();
  ended(1, 0);
  ended(0, 2);
  credit(0);
  const auto ends = node->take<OwnerEnd>();
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(ends[0], (std::pair<std::string, OwnerEnd>("receiver-0", {stream, 0, 2})));
  EXPECT_EQ(ends[1].second, (OwnerEnd{stream, 1, 0}));
  EXPECT_EQ(std::get<FetchPayload>(node->work.front()).entry, entry_of(0, 0));
  fetched(0, 0);
  fetched(0, 1);
  decoded(0, 0);
  decoded(0, 1);
  expect_handed(0, 0);
  expect_handed(0, 1);
  credit(2);
  EXPECT_EQ(node->take_work<DropPayloads>().below, 2U);
  EXPECT_TRUE(node->work.empty());
  credit(4);
  EXPECT_EQ(node->take_work<DropPayloads>().below, 4U);
  EXPECT_EQ(node->machine.status().state, "done");
}

// Hints make it immediate; without any it is looked for from time to time.
TEST_F(NodeEndpointTest, LooksByItself) {
  begin();
  answer_nothing();
  node->pass(199);
  EXPECT_TRUE(node->work.empty());
  node->pass(1);
  EXPECT_EQ(node->work.size(), 4U);  // both ends, both first payloads
  answer_nothing();
  node->receive(owners[1], PayloadsSent{stream, 1, false});
  EXPECT_EQ(node->take_work<FetchPayload>().owner, 1U);
}

TEST_F(NodeEndpointTest, HintsMayComeBeforeThePrepare) {
  const Prepare message = prepare();
  stream = {false, message.attempt};
  node->receive(owners[0], PayloadsSent{stream, 3, true});
  EXPECT_TRUE(node->work.empty());
  node->receive(world.leader, message);
  std::size_t payloads = 0;
  for (const NodeEffect& effect : node->work) {
    const auto* const fetch = std::get_if<FetchPayload>(&effect);
    payloads += fetch != nullptr && fetch->owner == 0 ? 1 : 0;
  }
  EXPECT_EQ(payloads, 3U);
}

// Rule 9: the lowest order number first, whatever comes.
TEST_F(NodeEndpointTest, HandsOverInOrder) {
  begin();
  answer_nothing();
  credit(0);
  node->receive(owners[1], PayloadsSent{stream, 1, false});
  fetched(1, 0);
  decoded(1, 0);
  EXPECT_TRUE(node->work.empty());  // owner 0 may still send something before it
  ended(0, 0);
  expect_handed(1, 0);
}

TEST_F(NodeEndpointTest, KeepsToCreditButForTheNextOne) {
  begin();
  answer_nothing();
  ended(0, 3);
  ended(1, 0);
  credit(0, 0, 0);
  for (std::uint64_t n = 0; n < 3; ++n) fetched(0, n);
  for (std::uint64_t n = 0; n < 3; ++n) decoded(0, n);
  expect_handed(0, 0);
  EXPECT_TRUE(node->work.empty());
  credit(1, 5, 1500);
  EXPECT_EQ(node->take_work<DropPayloads>().below, 1U);
  expect_handed(0, 1);
  EXPECT_TRUE(node->work.empty());  // 2000 bytes would not fit
  EXPECT_EQ(node->take<OwnerEnd>().size(), 2U);
  credit(1, 5, 2000);  // more room: nothing was lost
  expect_handed(0, 2);
  EXPECT_TRUE(node->work.empty());
  EXPECT_TRUE(node->take<OwnerEnd>().empty());
  credit(1, 5, 2000);  // the same again: what it lacks is handed over again
  expect_handed(0, 1);
  expect_handed(0, 2);
  EXPECT_TRUE(node->work.empty());
  EXPECT_EQ(node->take<OwnerEnd>().size(), 2U);
  credit(0, 5, 2000);  // an old one
  EXPECT_TRUE(node->work.empty());
}

TEST_F(NodeEndpointTest, AReceiverTakesAStreamASecondTime) {
  begin();
  answer_nothing();
  ended(0, 1);
  ended(1, 0);
  credit(0);
  fetched(0, 0);
  decoded(0, 0);
  expect_handed(0, 0);
  credit(1);
  EXPECT_EQ(node->take_work<DropPayloads>().below, 1U);
  node->take<OwnerEnd>();
  node->receive(receiver, Credit{stream, 0, 100, 1 << 20, true});
  EXPECT_EQ(node->take<OwnerEnd>().size(), 2U);
  fetched(0, 0);  // it was dropped
  decoded(0, 0);
  credit(1);  // of the first time
  expect_handed(0, 0);
  EXPECT_TRUE(node->work.empty());
  node->receive(receiver, Credit{stream, 1, 100, 1 << 20, true});
  EXPECT_EQ(node->take_work<DropPayloads>().below, 1U);
  node->receive(receiver, Credit{stream, 0, 100, 1 << 20, true});
  EXPECT_TRUE(node->work.empty());
}

TEST_F(NodeEndpointTest, OnlyItsBoundReceiversAreFed) {
  begin();
  answer_nothing();
  ended(0, 1);
  ended(1, 0);
  fetched(0, 0);
  decoded(0, 0);
  node->receive(other, Credit{stream, 0, 9, 9});
  node->receive({"receiver-0", 99}, Credit{stream, 0, 9, 9});
  EXPECT_TRUE(node->work.empty());
  credit(0);
  expect_handed(0, 0);
}

TEST_F(NodeEndpointTest, DecodedBytesAreBoundedButForTheTurn) {
  decoded_bytes_max = 2500;
  start();
  begin();
  answer_nothing();
  ended(0, 4);
  ended(1, 0);
  credit(0, 0, 0);
  fetched(0, 0, 3000);
  for (std::uint64_t n = 1; n < 4; ++n) fetched(0, n);
  decoded(0, 0);
  expect_handed(0, 0);
  EXPECT_TRUE(node->work.empty());
  credit(2, 0, 0);
  node->take_work<DropPayloads>();
  EXPECT_EQ(node->take_work<DecodePayload>().number, 1U);
  EXPECT_EQ(node->take_work<DecodePayload>().number, 2U);
  EXPECT_TRUE(node->work.empty());
}

// Rule 3.
TEST_F(NodeEndpointTest, FencesAttempts) {
  const Prepare first = begin();
  node->receive(world.leader, first);
  EXPECT_EQ(node->take<Prepared>().size(), 1U);
  ended(0, 1);
  ended(1, 0);
  credit(0);
  node->work.clear();
  ASSERT_TRUE(world.control.mark_obsolete(1).ok());
  node->receive(world.leader, StopAndWait{1});
  EXPECT_EQ(node->take<Stopped>()[0].second.attempt, 1U);
  EXPECT_EQ(node->take_work<DropPayloads>().below, kOrderAll);
  // What comes late is let go, and handed to nobody.
  node->step(PayloadFetched{stream, 0, 0, {}, true, 100, 1000, entry_of(0, 0)});
  EXPECT_EQ(node->take_work<DropPayloads>().stream, stream);
  credit(0);
  node->receive(world.leader, first);
  node->receive(world.leader, OpenApply{1});
  EXPECT_TRUE(node->take<Prepared>().empty());
  EXPECT_TRUE(node->work.empty());
  begin();
  EXPECT_EQ(stream.number, 2U);
  node->receive(world.leader, StopAndWait{1});
  EXPECT_EQ(node->take<Stopped>()[0].second.attempt, 1U);
  EXPECT_EQ(node->machine.status().attempt, 2U);
}

TEST_F(NodeEndpointTest, AStopComesBeforeItsPrepare) {
  const Prepare message = prepare();
  node->receive(world.leader, StopAndWait{1});
  EXPECT_EQ(node->take<Stopped>().size(), 1U);
  node->receive(world.leader, message);
  EXPECT_TRUE(node->take<Prepared>().empty());
  EXPECT_TRUE(node->work.empty());
}

TEST_F(NodeEndpointTest, AnotherNumberOfOwnersIsRejected) {
  Prepare message = prepare();
  message.owners.pop_back();
  node->receive(world.leader, message);
  const auto failed = node->take<AttemptFailed>();
  ASSERT_GE(failed.size(), 1U);
  EXPECT_TRUE(failed[0].second.rejected);
  EXPECT_TRUE(node->work.empty());
}

// ---- asynchronous mode

TEST_F(NodeEndpointTest, StagesUntilReceiversApply) {
  begin(true);
  answer_nothing();
  ended(0, 2);
  ended(1, 0);
  EXPECT_TRUE(node->take<Staged>().empty());
  fetched(0, 0);
  fetched(0, 1);
  EXPECT_EQ(node->take<Staged>().size(), 1U);
  EXPECT_TRUE(node->work.empty());
  node->pass(400);
  EXPECT_EQ(node->take<Staged>().size(), 2U);
  EXPECT_EQ(node->machine.status().state, "staged");
  node->receive(world.leader, OpenApply{1});
  decoded(0, 0);
  decoded(0, 1);
  credit(0);
  expect_handed(0, 0);
  expect_handed(0, 1);
  node->pass(400);
  EXPECT_TRUE(node->take<Staged>().empty());
}

TEST_F(NodeEndpointTest, NothingChangedIsStagedWithTheEnds) {
  begin(true);
  answer_nothing();
  ended(0, 0);
  ended(1, 0);
  EXPECT_EQ(node->take<Staged>().size(), 1U);
}

TEST_F(NodeEndpointTest, SaysThatStagingIsFull) {
  begin(true);
  answer_nothing();
  ended(0, 3);  // 300 bytes, and 250 fit
  ended(1, 0);
  fetched(0, 0);
  EXPECT_TRUE(node->take<StagingFull>().empty());
  fetched(0, 1);
  EXPECT_EQ(node->take<StagingFull>().size(), 1U);
  EXPECT_TRUE(node->work.empty());
  node->receive(world.leader, OpenApply{1});
  EXPECT_EQ(node->take_work<FetchPayload>().number, 2U);
  decoded(0, 0);
}

TEST_F(NodeEndpointTest, ANodeWithoutReceiversHasNothingToStage) {
  Prepare message = prepare(true);
  message.receivers[0].node = "node-1";
  node->receive(world.leader, message);
  EXPECT_EQ(node->take<Staged>().size(), 1U);
  EXPECT_TRUE(node->work.empty());
}

// ---- failures

TEST_F(NodeEndpointTest, ADamagedPayloadFailsTheAttempt) {
  begin();
  answer_nothing();
  ended(0, 2);
  ended(1, 0);
  credit(0);
  node->take_work<FetchPayload>();
  node->step(
      PayloadFetched{stream, 0, 0, {Code::kCorrupt, "payload 0: bad", "w"}, false, 0, 0, {}});
  const Failure failure{Code::kCorrupt, "w", "node-0: payload 0: bad"};
  EXPECT_EQ(node->take<AttemptFailed>()[0].second, (AttemptFailed{1, false, failure}));
  EXPECT_EQ(node->take<StreamFailed>()[0].second, (StreamFailed{stream, failure}));
  node->pass(200);
  EXPECT_EQ(node->take<AttemptFailed>().size(), 1U);
  credit(0);
  EXPECT_EQ(node->take<StreamFailed>().size(), 1U);
}

TEST_F(NodeEndpointTest, AStoreThatDoesNotAnswerIsAskedAgain) {
  begin();
  answer_nothing();
  ended(0, 1);
  ended(1, 0);
  node->take_work<FetchPayload>();
  node->step(PayloadFetched{stream, 0, 0, {Code::kUnavailable, "away"}, false, 0, 0, {}});
  EXPECT_TRUE(node->work.empty());
  node->pass(200);
  fetched(0, 0);
  EXPECT_TRUE(node->take<AttemptFailed>().empty());
}

TEST_F(NodeEndpointTest, ThePayloadIsTheOneThatTheEndCounts) {
  for (const bool count : {true, false}) {
    begin();
    answer_nothing();
    node->receive(owners[0], PayloadsSent{stream, 1, false});
    const FetchPayload fetch = node->take_work<FetchPayload>();
    EXPECT_EQ(fetch.entry, std::nullopt);
    node->step(PayloadFetched{stream, 0, 0, {}, true, 100, 1000, entry_of(0, 7)});
    node->work.clear();
    node->receive(owners[0], PayloadsSent{stream, 1, true});
    AttemptEnd end;
    if (count) end.payloads.push_back(entry_of(0, 0));
    node->step(EndFetched{stream, 0, {}, end});
    const auto failed = node->take<AttemptFailed>();
    ASSERT_EQ(failed.size(), 1U);
    EXPECT_EQ(failed[0].second.failure.message,
              count ? "node-0: payload 0 of owner 0 has another size or digest than its owner's "
                      "end says"
                    : "node-0: payload 0 of owner 0 came, but its end counts 0");
    ASSERT_TRUE(world.control.mark_obsolete(stream.number).ok());
    node->receive(world.leader, StopAndWait{stream.number});
    node->take<Stopped>();
    node->work.clear();
  }
}

// ---- restores

TEST_F(NodeEndpointTest, FeedsReceiversThatRestore) {
  stream = {true, 1};
  credit(0);
  answer_nothing();
  node->pass(200);
  node->work.clear();
  for (const std::uint32_t owner : {0U, 1U}) {
    AttemptEnd end;
    if (owner == 1) end.payloads.push_back(entry_of(1, 0));
    node->step(EndFetched{stream, owner, {}, end});
  }
  EXPECT_EQ(node->take<OwnerEnd>().size(), 2U);
  node->step(PayloadFetched{stream, 0, 0, {}, false, 0, 0, {}});
  node->step(PayloadFetched{stream, 1, 0, {}, true, 100, 1000, entry_of(1, 0)});
  decoded(1, 0);
  expect_handed(1, 0);
  // Another one comes later, from the start.
  credit(2);
  EXPECT_EQ(node->take_work<DropPayloads>().below, 2U);
  node->receive(other, Credit{stream, 0, 9, 9});
  fetched(1, 0);
  decoded(1, 0);
  EXPECT_EQ(node->take_work<HandOver>().receiver, other);
  // When all have been silent for long, nothing is kept.
  node->pass(120'000);
  EXPECT_EQ(node->take_work<DropPayloads>().below, kOrderAll);
  EXPECT_TRUE(node->work.empty());
}

TEST_F(NodeEndpointTest, TheNewestRestoresAreFed) {
  for (const std::uint64_t number : {3U, 4U, 5U, 2U}) {
    node->receive(receiver, Credit{{true, number}, 0, 9, 9});
  }
  const auto failed = node->take<StreamFailed>();
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_EQ(failed[0].second.stream, (StreamId{true, 3}));
}

TEST_F(NodeEndpointTest, EndsWhenItIsBarred) {
  begin();
  node->work.clear();
  ASSERT_TRUE(world.control.mark_obsolete(1).ok());
  ASSERT_TRUE(world.control.bar(world.token, {{"node-0", node->machine.incarnation()}}).ok());
  node->pass(1000);
  while (!std::holds_alternative<DropPayloads>(node->work.front())) node->work.pop_front();
  EXPECT_EQ(node->take_work<DropPayloads>().below, kOrderAll);
  EXPECT_EQ(node->take_work<Ended>().status.code(), Code::kConflict);
  EXPECT_EQ(node->machine.wake_at(), kNever);
}

}  // namespace
}  // namespace dcr
