// Channels among those who may talk. channel_hostile_test.cc has the others.
#include "channel/channel.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "channel/sockets.h"
#include "channel/test_channel.h"
#include "tests/support/temp_directory.h"

namespace dcr {
namespace {

TEST_F(ChannelTest, MessagesComeAsTheyWereSent) {
  Reports reports;
  const auto a = open("a", &reports);
  const auto b = open("b", &reports);
  const Bytes body = {1, 2, 3};
  ASSERT_TRUE(a->send(b->address(), from_to("a", "b", 5), body).ok());
  expect_next(*b, from_to("a", "b", 5), body);
  ASSERT_TRUE(b->send(a->address(), from_to("b", "a"), {}).ok());
  expect_next(*a, from_to("b", "a"), {});
  // Itself, as any other.
  ASSERT_TRUE(a->send(a->address(), from_to("a", "a"), body).ok());
  expect_next(*a, from_to("a", "a"), body);
  EXPECT_FALSE(a->receive(0));
  EXPECT_EQ(a->counts().sent, 2U);
  EXPECT_EQ(a->counts().received, 2U);
  EXPECT_EQ(reports.text(), "");
}

TEST_F(ChannelTest, OneSizeAfterTheOther) {
  const auto a = open("a");
  const auto b = open("b");
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{65'000}, kFrameBytesMax - 76,
        kFrameBytesMax - 75, kFrameBytesMax - 74, 3 * kFrameBytesMax, kControlBodyBytesMax}) {
    const Bytes body(size, static_cast<std::uint8_t>(size));
    ASSERT_TRUE(a->send(b->address(), from_to("a", "b"), body).ok());
    expect_next(*b, from_to("a", "b"), body);
  }
  const Status status = a->send(b->address(), from_to("a", "b"), Bytes(kControlBodyBytesMax + 1));
  EXPECT_EQ(status.code(), Code::kTooLarge);
  EXPECT_EQ(status.message(), "a message of 16777217 bytes to b is above the limit of 16777216");
}

TEST_F(ChannelTest, WhatCannotBeSentIsRefused) {
  const auto a = open("a");
  EXPECT_EQ(a->send(a->address(), from_to("a", "d"), {}).message(),
            "there is no key of d on the allow-list");
  EXPECT_EQ(a->send(a->address(), from_to("b", "a"), {}).message(), "a cannot send as b");
  EXPECT_EQ(a->send("tcp://localhost:1", from_to("a", "b"), {}).code(), Code::kInvalidArgument);
  EXPECT_EQ(a->send("tcp://127.0.0.1:0", from_to("a", "b"), {}).code(), Code::kInvalidArgument);
}

TEST_F(ChannelTest, OpeningSaysWhatIsWrong) {
  const auto refusal = [](ChannelOptions options) {
    return Channel::open(std::move(options)).status();
  };
  ChannelOptions wrong = options("a");
  wrong.name = "a/b";
  EXPECT_EQ(refusal(std::move(wrong)).code(), Code::kInvalidArgument);
  wrong = options("a");
  wrong.listen = "tcp://*:0";
  EXPECT_EQ(refusal(std::move(wrong)).code(), Code::kInvalidArgument);
  wrong = options("a");
  wrong.keys = make_key_pair();
  EXPECT_EQ(refusal(std::move(wrong)).message(),
            "the allow-list has another key for a than its key file");
  const auto a = open("a");
  wrong = options("b");
  wrong.listen = a->address();
  const Status taken = refusal(std::move(wrong));
  EXPECT_EQ(taken.code(), Code::kIo);
  EXPECT_EQ(taken.message(), "cannot listen at " + a->address() + ": Address already in use");
}

TEST_F(ChannelTest, ListensEverywhereOrByTheNewProtocol) {
  ChannelOptions everywhere = options("a");
  everywhere.listen = "tcp://0.0.0.0:0";
  const auto a = open(std::move(everywhere));
  EXPECT_TRUE(a->address().starts_with("tcp://0.0.0.0:"));
  ChannelOptions six = options("b");
  six.listen = "tcp://[::1]:0";
  Result<std::unique_ptr<Channel>> b = Channel::open(std::move(six));
  if (!b.ok()) GTEST_SKIP() << b.status().message();
  ASSERT_TRUE(a->send((*b)->address(), from_to("a", "b"), {}).ok());
  expect_next(**b, from_to("a", "b"), {});
}

TEST_F(ChannelTest, APeerThatComesLaterGetsTheNewest) {
  Reports reports;
  TestClock clock;
  ChannelOptions given = options("a", &reports);
  given.queues.peer_messages_max = 10;
  given.clock = &clock;
  const auto a = open(std::move(given));
  const std::string address = open("b")->address();  // where nobody is any more
  for (std::uint64_t i = 1; i <= 30; ++i) {
    ASSERT_TRUE(a->send(address, from_to("a", "b", i), {}).ok());
  }
  // The one that is just tried is counted when it is back.
  eventually([&] { return a->counts().dropped_outgoing == 20; });
  EXPECT_EQ(a->counts().sent, 0U);
  EXPECT_EQ(reports.count("messages are dropped: they are sent faster than peers take them"), 1U);
  // Somewhere else: what waits goes there.
  const auto b = open("b");
  ASSERT_TRUE(a->send(b->address(), from_to("a", "b", 31), {}).ok());
  for (std::uint64_t i = 22; i <= 31; ++i) expect_next(*b, from_to("a", "b", i), {});
}

TEST_F(ChannelTest, APeerThatRestartsIsFoundAgain) {
  const auto a = open("a");
  auto b = open("b");
  ASSERT_TRUE(a->send(b->address(), from_to("a", "b", 1), {}).ok());
  expect_next(*b, from_to("a", "b", 1), {});
  const std::string address = b->address();
  b.reset();
  // At its old address…
  ChannelOptions again = options("b");
  again.listen = address;
  b = open(std::move(again));
  // …what was under way when it went may be lost: so senders repeat.
  std::uint64_t incarnation = 2;
  eventually([&] {
    EXPECT_TRUE(a->send(address, from_to("a", "b", incarnation++), {}).ok());
    return b->receive(100).has_value();
  });
  // At a new one.
  b = open("b");
  ASSERT_TRUE(a->send(b->address(), from_to("a", "b", 1'000'000), {}).ok());
  while (true) {
    const std::optional<ReceivedMessage> message = next(*b);
    ASSERT_TRUE(message);
    if (message->envelope.sender.incarnation == 1'000'000) break;
  }
}

TEST_F(ChannelTest, OverSocketsInTheFileSystem) {
  const TempDirectory directory;
  ChannelOptions listening = options("b");
  listening.listen = "ipc://" + directory.at("b.socket");
  const auto a = open("a");
  const auto b = open(std::move(listening));
  EXPECT_EQ(b->address(), "ipc://" + directory.at("b.socket"));
  ASSERT_TRUE(a->send(b->address(), from_to("a", "b"), Bytes{1, 2}).ok());
  expect_next(*b, from_to("a", "b"), {1, 2});
}

TEST_F(ChannelTest, AConnectionThatTookNothingIsMadeAnew) {
  Reports reports, others;
  TestClock clock;
  ChannelOptions given = options("a", &reports);
  given.clock = &clock;
  const auto a = open(std::move(given));
  // This b does not know a: after its refusal libzmq tries no more.
  ChannelOptions strict = options("b", &others);
  strict.peers = std::make_shared<AllowList>();
  auto b = open(std::move(strict));
  const std::string address = b->address();
  ASSERT_TRUE(a->send(address, from_to("a", "b"), {}).ok());
  eventually([&] { return others.count("refused the key") == 1; });
  b.reset();
  ChannelOptions lenient = options("b");
  lenient.listen = address;
  b = open(std::move(lenient));
  eventually([&] {
    clock.advance_ms(11'000);
    return b->receive(100).has_value();
  });
  EXPECT_EQ(reports.text(), "there is no way to b at " + address +
                                ": it is away or takes nothing, or its key or ours is not the one "
                                "on the other's allow-list\n");
  EXPECT_EQ(a->counts().dropped_outgoing, 0U);
}

TEST_F(ChannelTest, AnUnusedConnectionEnds) {
  TestClock clock;
  ChannelOptions given = options("a");
  given.clock = &clock;
  const auto a = open(std::move(given));
  const std::string address = open("b")->address();
  ASSERT_TRUE(a->send(address, from_to("a", "b"), {}).ok());
  const auto c = open("c");
  ASSERT_TRUE(a->send(c->address(), from_to("a", "c"), {}).ok());
  expect_next(*c, from_to("a", "c"), {});
  EXPECT_EQ(a->counts().dropped_outgoing, 0U);
  clock.advance_ms(600'001);
  eventually([&] { return a->counts().dropped_outgoing == 1; });
  // Both come back when they are needed.
  ASSERT_TRUE(a->send(c->address(), from_to("a", "c", 2), {}).ok());
  expect_next(*c, from_to("a", "c", 2), {});
  const auto b = open("b");
  ASSERT_TRUE(a->send(b->address(), from_to("a", "b", 3), {}).ok());
  expect_next(*b, from_to("a", "b", 3), {});
}

TEST_F(ChannelTest, ASlowReceiverIsNotFilledUp) {
  Reports reports;
  const auto a = open("a", &reports);
  const auto b = open("b", &reports);
  const Bytes body(1 << 20, 7);
  constexpr std::uint64_t kMessages = 200;
  for (std::uint64_t i = 1; i <= kMessages; ++i) {
    ASSERT_TRUE(a->send(b->address(), from_to("a", "b", i), body).ok());
    eventually([&] { return a->counts().sent + a->counts().dropped_outgoing + 20 > i; });
  }
  eventually([&] {
    const ChannelCounts sent = a->counts();
    return sent.sent + sent.dropped_outgoing == kMessages && b->counts().received == sent.sent;
  });
  const ChannelCounts counts = b->counts();
  EXPECT_GE(counts.received, 100U);
  // 32 MiB and a little hold so many, with what each needs beside its bytes.
  EXPECT_EQ(counts.received - counts.dropped_incoming, 31U);
  EXPECT_EQ(reports.count("messages are dropped: they come faster than they are taken"), 1U);
  std::uint64_t last = 0, left = 0;
  while (const std::optional<ReceivedMessage> message = b->receive(0)) {
    EXPECT_GT(message->envelope.sender.incarnation, last);
    last = message->envelope.sender.incarnation;
    ++left;
  }
  EXPECT_EQ(left, 31U);
  EXPECT_EQ(last, kMessages);
}

TEST_F(ChannelTest, ManyThreadsSendAndEachKeepsItsOrder) {
  constexpr std::uint64_t kThreads = 4, kMessages = 200;
  for (std::uint64_t i = 0; i < kThreads; ++i) add("t" + std::to_string(i));
  const auto b = open("b");
  std::vector<std::unique_ptr<Channel>> channels;
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < kThreads; ++i) channels.push_back(open("t" + std::to_string(i)));
  const auto a = open("a");
  for (std::uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (std::uint64_t j = 1; j <= kMessages; ++j) {
        const std::string name = "t" + std::to_string(i);
        EXPECT_TRUE(channels[i]->send(b->address(), from_to(name, "b", j), {}).ok());
        EXPECT_TRUE(a->send(b->address(), from_to("a", "b", i * kMessages + j), {}).ok());
      }
    });
  }
  std::map<std::string, std::uint64_t> last;
  std::map<std::uint64_t, std::uint64_t> last_of_thread;
  for (std::uint64_t i = 0; i < 2 * kThreads * kMessages; ++i) {
    const std::optional<ReceivedMessage> message = next(*b);
    if (!message) break;
    const Endpoint& sender = message->envelope.sender;
    std::uint64_t& before = sender.name == "a"
                                ? last_of_thread[(sender.incarnation - 1) / kMessages]
                                : last[sender.name];
    EXPECT_GT(sender.incarnation, before) << sender.name;
    before = sender.incarnation;
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(b->counts().dropped_incoming, 0U);
  EXPECT_EQ(a->counts().sent, kThreads * kMessages);
}

TEST_F(ChannelTest, EndsWhateverWaits) {
  for (int round = 0; round < 3; ++round) {
    const auto a = open("a");
    const auto b = open("b");
    ASSERT_TRUE(a->send("tcp://127.0.0.1:1", from_to("a", "c"), Bytes(1 << 20)).ok());
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(a->send(b->address(), from_to("a", "b"), Bytes(1 << 20)).ok());
    }
  }
}

}  // namespace
}  // namespace dcr
