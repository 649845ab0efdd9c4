// Owners' collectives over channels on the loopback interface, each as in a process of its own.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel/channel_collective.h"
#include "runtime/clock.h"

namespace dcr {

struct TestPartSink final : PartSink {
  Status receive(const PartHeader& header, std::span<const std::uint8_t> bytes) override {
    if (!status.ok()) return status;
    headers.push_back(header);
    parts.emplace_back(bytes.begin(), bytes.end());
    return {};
  }
  Status status;  // what it says instead of taking a part
  std::vector<PartHeader> headers;
  std::vector<Bytes> parts;
};

class CollectiveRanks {
 public:
  static constexpr std::uint64_t kPatienceMs = 60'000;
  static constexpr std::uint64_t kRepeatMs = 20;

  explicit CollectiveRanks(std::uint32_t count) : sinks(count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      keys_.push_back(make_key_pair());
      EXPECT_TRUE(allowed_.add(name(i), keys_[i].public_key).ok());
      peers_.push_back({name(i), ""});
    }
    // All addresses are known before anybody needs them.
    for (std::uint32_t i = 0; i < count; ++i) {
      channels_.push_back(open_channel(i, "tcp://127.0.0.1:0"));
      peers_[i].address = channels_[i]->address();
    }
    ranks.resize(count);
  }

  static std::string name(std::uint32_t rank) { return "owner-" + std::to_string(rank); }
  std::uint32_t count() const { return static_cast<std::uint32_t>(sinks.size()); }

  // A process of that rank, in a life; the first takes the channel that waits for it.
  void start(std::uint32_t rank, std::uint64_t life) {
    auto channel = std::move(channels_[rank]);
    if (channel == nullptr) channel = open_channel(rank, peers_[rank].address);
    ChannelCollectiveOptions options;
    options.run = {7};
    options.rank = rank;
    options.peers = peers_;
    options.repeat_ms = kRepeatMs;
    options.clock = &monotonic_clock();
    ranks[rank] = std::make_unique<ChannelCollective>(options, std::move(channel), life);
    ranks[rank]->connect(sinks[rank]);
  }
  void start_all() {
    for (std::uint32_t i = 0; i < count(); ++i) start(i, 100 + i);
  }
  // The channel of a rank that a test plays itself.
  std::unique_ptr<Channel> take_channel(std::uint32_t rank) { return std::move(channels_[rank]); }
  const std::string& address(std::uint32_t rank) const { return peers_[rank].address; }

  Status begin(std::uint32_t rank, const Meeting& meeting, std::uint64_t wait_ms = kPatienceMs) {
    return ranks[rank]->begin(meeting, wait_ms, cancel);
  }
  void begin_all(const Meeting& meeting) {
    for (std::uint32_t i = 0; i < count(); ++i) EXPECT_TRUE(begin(i, meeting).ok());
  }
  void end_all() {
    for (auto& rank : ranks) rank->end({});
  }
  // Every rank on a thread of its own.
  void on_all(const std::function<void(std::uint32_t)>& body) {
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < count(); ++i) threads.emplace_back(body, i);
    for (std::thread& thread : threads) thread.join();
  }
  // One flag of one rank; the status of its reduction.
  Status reduce(std::uint32_t rank, std::uint8_t* flag) {
    return ranks[rank]->all_reduce_flags({flag, 1});
  }

  CancelToken cancel;
  std::vector<TestPartSink> sinks;
  std::vector<std::unique_ptr<ChannelCollective>> ranks;

 private:
  std::unique_ptr<Channel> open_channel(std::uint32_t rank, const std::string& listen) {
    ChannelOptions options;
    options.name = name(rank);
    options.keys.public_key = keys_[rank].public_key;
    std::copy(keys_[rank].secret.bytes().begin(), keys_[rank].secret.bytes().end(),
              options.keys.secret.writable().begin());
    options.peers = std::make_shared<AllowList>(allowed_);
    options.listen = listen;
    options.clock = &monotonic_clock();
    options.report = [](const Status&) {};
    auto channel = Channel::open(std::move(options));
    EXPECT_TRUE(channel.ok()) << channel.status().message();
    return channel.ok() ? std::move(channel).value() : nullptr;
  }

  std::vector<KeyPair> keys_;
  AllowList allowed_;
  std::vector<CollectivePeer> peers_;
  std::vector<std::unique_ptr<Channel>> channels_;
};

}  // namespace dcr
