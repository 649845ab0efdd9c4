// Channels on the loopback interface, for their tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "channel/channel.h"
#include "channel/event.h"

namespace dcr {

// Time as a test sets it.
class TestClock final : public Clock {
 public:
  std::uint64_t nanoseconds() override { return now_.load(); }
  void advance_ms(std::uint64_t ms) { now_ += ms * 1'000'000; }

 private:
  std::atomic<std::uint64_t> now_{1};
};

// What a channel reported, from any thread.
class Reports {
 public:
  std::function<void(const Status&)> sink() {
    return [this](const Status& problem) {
      const std::lock_guard<std::mutex> lock(mutex_);
      problems_.push_back(problem);
    };
  }
  std::vector<Status> all() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return problems_;
  }
  // Those whose message begins with `words`.
  std::size_t count(const std::string& words) const {
    std::size_t found = 0;
    for (const Status& problem : all()) found += problem.message().starts_with(words) ? 1U : 0U;
    return found;
  }
  std::string text() const {
    std::string text;
    for (const Status& problem : all()) text += problem.message() + "\n";
    return text;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Status> problems_;
};

// Endpoints with their keys, all on each other's allow-list.
class ChannelTest : public testing::Test {
 protected:
  // How long a test waits for what must come before it calls it lost.
  static constexpr std::uint64_t kLostMs = 60'000;
  static constexpr std::uint64_t kStepMs = 5;

  void SetUp() override {
    for (const char* name : {"a", "b", "c"}) add(name);
  }

  void add(const std::string& name) {
    const auto made = keys_.emplace(name, make_key_pair());
    ASSERT_TRUE(peers_.add(name, made.first->second.public_key).ok());
  }

  static KeyPair copy(const KeyPair& keys) {
    KeyPair other;
    other.public_key = keys.public_key;
    std::copy(keys.secret.bytes().begin(), keys.secret.bytes().end(),
              other.secret.writable().begin());
    return other;
  }

  ChannelOptions options(const std::string& name, Reports* reports = nullptr) {
    ChannelOptions options;
    options.name = name;
    options.keys = copy(keys_.at(name));
    options.peers = std::make_shared<AllowList>(peers_);
    options.clock = &monotonic_clock();
    if (reports != nullptr) options.report = reports->sink();
    return options;
  }

  static std::unique_ptr<Channel> open(ChannelOptions options) {
    Result<std::unique_ptr<Channel>> channel = Channel::open(std::move(options));
    EXPECT_TRUE(channel.ok()) << channel.status().message();
    return channel.ok() ? std::move(channel).value() : nullptr;
  }
  std::unique_ptr<Channel> open(const std::string& name, Reports* reports = nullptr) {
    return open(options(name, reports));
  }

  static Envelope from_to(const std::string& sender, const std::string& addressee,
                          std::uint64_t incarnation = 1) {
    return {{7}, {sender, incarnation}, {addressee, 1}};
  }

  static std::optional<ReceivedMessage> next(Channel& channel) {
    for (std::uint64_t waited = 0; waited < kLostMs; waited += 1'000) {
      std::optional<ReceivedMessage> message = channel.receive(1'000);
      if (message) return message;
    }
    ADD_FAILURE() << "nothing came";
    return std::nullopt;
  }

  static void expect_next(Channel& channel, const Envelope& envelope, const Bytes& body) {
    const std::optional<ReceivedMessage> message = next(channel);
    ASSERT_TRUE(message);
    EXPECT_EQ(message->envelope, envelope);
    EXPECT_TRUE(message->body == body);
  }

  // Lets the channel's thread work until `done`; it takes nothing from the channel.
  static void eventually(const std::function<bool()>& done) {
    const Result<Event> never = Event::make();
    ASSERT_TRUE(never.ok());
    for (std::uint64_t waited = 0; !done(); waited += kStepMs) {
      ASSERT_LT(waited, kLostMs) << "it did not come about";
      never->wait(kStepMs);
    }
  }

  std::map<std::string, KeyPair> keys_;
  AllowList peers_;
};

}  // namespace dcr
