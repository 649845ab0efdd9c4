// Nodes under loss, repetition and reordering: every receiver gets every payload, nothing is handed
// over that is not decoded or not wanted, and memory keeps to its bounds.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/prng.h"
#include "protocol/node.h"
#include "protocol/test_driver.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

using Driver = TestDriver<NodeEndpoint, NodeEvent, NodeEffect>;

constexpr std::uint64_t kEventsMax = 100'000;
constexpr std::uint64_t kPayloadBytesMax = 200;
constexpr std::uint64_t kDecodedBytes = 5;  // of each

class RandomNode {
 public:
  explicit RandomNode(std::uint64_t seed) : prng_(seed) {
    world_.lead();
    owners_ = 1 + prng_.below(4);
    for (std::uint64_t i = 0; i < owners_; ++i) {
      owner_endpoints_.push_back(world_.member("owner-" + std::to_string(i), Role::kOwner));
    }
    for (std::uint64_t i = 1 + prng_.below(3); i > 0; --i) {
      receivers_.push_back(
          {world_.member("receiver-" + std::to_string(i), Role::kReceiver), {}, {}});
    }
    options_.name = "node-0";
    options_.owners = static_cast<std::uint32_t>(owners_);
    options_.staging_bytes_max = prng_.below(600);
    options_.decoded_bytes_max = prng_.below(4000);
    options_.window_payloads = static_cast<std::uint32_t>(1 + prng_.below(9));
    node_ = std::make_unique<Driver>(NodeEndpoint(options_), world_.control);
    node_->step(Started{});
    node_->pass(0);
  }

  void run() {
    for (int attempts = 0; attempts < 3 && !testing::Test::HasFailure(); ++attempts) {
      prng_.below(4) == 0 ? run_restore() : run_attempt();
    }
  }

 private:
  struct Receiver {
    Endpoint endpoint;
    std::set<std::uint64_t> taken;
    std::map<std::uint32_t, std::uint64_t> ends;
    std::uint64_t next = 0;
    std::uint64_t room = 0;  // of the last credit that it gave
  };
  struct Held {
    bool decoded = false;
  };

  void run_attempt() {
    std::vector<OwnerCandidate> candidates;
    for (const Endpoint& owner : owner_endpoints_) {
      candidates.push_back({owner.name, {owner.incarnation, 1}});
    }
    const TransitionRecord record = world_.prepare(candidates);
    prepare_ = Prepare();
    prepare_->attempt = record.attempt;
    prepare_->asynchronous = prng_.below(2) == 0;
    prepare_->owners = record.owners;
    prepare_->nodes = record.nodes;
    for (const Receiver& receiver : receivers_) {
      prepare_->receivers.push_back({receiver.endpoint, "engine", "node-0"});
    }
    begin({false, record.attempt});
    asynchronous_ = prepare_->asynchronous;
    const bool stopped = prng_.below(3) == 0;
    go_on(stopped ? prng_.below(200) : kEventsMax);
    ASSERT_TRUE(world_.control.mark_obsolete(record.attempt).ok());
    deliver(world_.leader, StopAndWait{record.attempt});
    node_->receive(world_.leader, StopAndWait{record.attempt});
    take_effects();
    EXPECT_EQ(node_->take<Stopped>().back().second.attempt, record.attempt);
    over_.insert(stream_);
    answer_all();
    ASSERT_TRUE(held_.empty()) << "payloads of a stopped attempt are kept";
  }

  void run_restore() {
    prepare_.reset();
    asynchronous_ = false;
    begin({true, ++restores_});
    go_on(kEventsMax);
    node_->pass(options_.waits.repeat_ms * 400);
    take_effects();
    answer_all();
    over_.insert(stream_);
    ASSERT_TRUE(held_.empty()) << "payloads of a restore are kept";
  }

  void begin(StreamId stream) {
    stream_ = stream;
    opened_ = false;
    asked_to_open_ = false;
    sizes_.clear();
    for (std::uint64_t owner = 0; owner < owners_; ++owner) {
      auto& sizes = sizes_.emplace_back();
      for (std::uint64_t n = prng_.below(7); n > 0; --n)
        sizes.push_back(1 + prng_.below(kPayloadBytesMax));
    }
    stored_.assign(owners_, 0);
    ended_.assign(owners_, false);
    for (Receiver& receiver : receivers_) {
      receiver.taken.clear();
      receiver.ends.clear();
      receiver.next = 0;
      receiver.room = 0;
    }
  }

  // Random events until all receivers have everything, or so many have passed.
  void go_on(std::uint64_t events) {
    const bool all = events == kEventsMax;
    for (; events > 0 && !done() && !testing::Test::HasFailure(); --events) one_event();
    if (all && events == 0) ADD_FAILURE() << "it never ends";
  }

  void one_event() {
    switch (prng_.below(8)) {
      case 0:
        return send_something();
      case 1:
        if (prepare_) deliver(world_.leader, *prepare_);
        return;
      case 2:
        return give_credit(&receivers_[prng_.below(receivers_.size())]);
      case 3:
        node_->pass(1 + prng_.below(150));
        return take_effects();
      case 4:
        return open();
      case 5:
        if (prepare_ && prng_.below(8) == 0)
          deliver(world_.leader, StopAndWait{stream_.number - 1});
        return;
      default:
        return answer_one();
    }
  }

  // An owner goes on, and may say so.
  void send_something() {
    const std::uint64_t owner = prng_.below(owners_);
    if (stored_[owner] < sizes_[owner].size()) {
      ++stored_[owner];
    } else {
      ended_[owner] = true;
    }
    if (stream_.restore) return;
    deliver(owner_endpoints_[owner], PayloadsSent{stream_, stored_[owner], ended_[owner]});
  }

  void open() {
    if (!asynchronous_) return;
    // Only after it was asked to.
    if (!asked_to_open_) return;
    opened_ = true;
    deliver(world_.leader, OpenApply{stream_.number});
  }

  void give_credit(Receiver* receiver) {
    while (receiver->taken.contains(receiver->next) || absent(receiver->next)) ++receiver->next;
    receiver->room = prng_.below(6);
    deliver(receiver->endpoint, Credit{stream_, receiver->next, receiver->room, prng_.below(3000)});
  }
  // Whether a receiver knows that there is no such payload.
  bool absent(std::uint64_t order) const { return done_at(order) && order < owners_ * 10; }
  bool done_at(std::uint64_t order) const {
    return order / owners_ >= sizes_[order % owners_].size() && ended_[order % owners_];
  }

  // Messages are lost, or come twice.
  void deliver(const Endpoint& from, const Message& message) {
    for (std::uint64_t times = prng_.below(4) == 0 ? prng_.below(3) : 1; times > 0; --times) {
      node_->receive(from, message);
    }
    take_effects();
  }

  void take_effects() {
    while (!node_->work.empty()) {
      NodeEffect effect = std::move(node_->work.front());
      node_->work.pop_front();
      if (const auto* const handed = std::get_if<HandOver>(&effect)) {
        hand_over(*handed);
      } else if (const auto* const dropped = std::get_if<DropPayloads>(&effect)) {
        drop(*dropped);
      } else {
        ASSERT_FALSE(std::holds_alternative<Ended>(effect));
        pending_.push_back(std::move(effect));
      }
    }
    for (const auto& [to, end] : node_->take<OwnerEnd>()) take_end(to, end);
    for (const auto& [to, failed] : node_->take<AttemptFailed>()) {
      ADD_FAILURE() << failed.failure.message;
    }
    for (const auto& [to, failed] : node_->take<StreamFailed>()) {
      ADD_FAILURE() << failed.failure.message;
    }
    for (const auto& [to, staged] : node_->take<Staged>()) {
      if (staged.attempt != stream_.number) continue;
      asked_to_open_ = true;
      for (std::uint64_t owner = 0; owner < owners_; ++owner) EXPECT_TRUE(ended_[owner]);
    }
    for (const auto& [to, full] : node_->take<StagingFull>()) {
      asked_to_open_ = asked_to_open_ || full.attempt == stream_.number;
    }
    check_bounds();
  }

  void check_bounds() {
    std::uint64_t staged = 0;
    std::uint64_t decoded = 0;
    std::uint64_t payloads = 0;
    for (const auto& [key, held] : held_) {
      if (key.first != stream_) continue;
      const std::uint64_t bytes = size_of(key.second);
      staged += bytes;
      if (held.decoded) decoded += bytes * kDecodedBytes;
      ++payloads;
    }
    // The turn goes back when a receiver comes later to a restore.
    const std::uint64_t turns = stream_.restore ? receivers_.size() : 1;
    EXPECT_LE(decoded, options_.decoded_bytes_max + turns * kPayloadBytesMax * kDecodedBytes);
    if (asynchronous_ && !opened_) {
      EXPECT_LE(staged, options_.staging_bytes_max + kNodeFetchesMax * kPayloadBytesMax);
    } else if (!asynchronous_) {
      EXPECT_LE(payloads, options_.window_payloads + turns);
    }
  }

  void take_end(const std::string& to, const OwnerEnd& end) {
    if (end.stream != stream_) return;
    EXPECT_EQ(end.payloads, sizes_[end.owner].size());
    for (Receiver& receiver : receivers_) {
      if (receiver.endpoint.name == to) receiver.ends[end.owner] = end.payloads;
    }
  }

  void hand_over(const HandOver& work) {
    ASSERT_EQ(work.stream, stream_) << "a payload of another stream is handed over";
    ASSERT_FALSE(asynchronous_ && !opened_) << "handed over before receivers apply";
    const std::uint64_t order = work.number * owners_ + work.owner;
    const auto found = held_.find({work.stream, order});
    ASSERT_TRUE(found != held_.end() && found->second.decoded) << "it is not decoded";
    for (Receiver& receiver : receivers_) {
      if (receiver.endpoint != work.receiver) continue;
      if (prng_.below(5) == 0) return;  // lost
      receiver.taken.insert(order);
    }
  }

  void drop(const DropPayloads& work) {
    std::erase_if(held_, [&](const auto& entry) {
      return entry.first.first == work.stream &&
             (work.below == kOrderAll || entry.first.second < work.below);
    });
    // In a restore, for a receiver that comes later, payloads are fetched again.
    if (work.stream != stream_ || stream_.restore || work.below == kOrderAll) return;
    for (const Receiver& receiver : receivers_) {
      for (std::uint64_t order = receiver.next; order < work.below; ++order) {
        EXPECT_TRUE(receiver.taken.contains(order) || absent(order)) << "dropped too early";
      }
    }
  }

  void answer_all() {
    while (!pending_.empty()) answer_one();
  }
  void answer_one() {
    if (pending_.empty()) return;
    const std::size_t index = prng_.below(pending_.size());
    const NodeEffect work = std::move(pending_[index]);
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(index));
    if (const auto* const end = std::get_if<FetchEnd>(&work)) {
      answer(*end);
    } else if (const auto* const fetch = std::get_if<FetchPayload>(&work)) {
      answer(*fetch);
    } else {
      answer(std::get<DecodePayload>(work));
    }
    take_effects();
  }

  PayloadEntry entry_of(std::uint32_t owner, std::uint64_t number) const {
    PayloadEntry entry;
    entry.bytes = sizes_[owner][number];
    entry.digest[0] = static_cast<std::uint8_t>(number * owners_ + owner);
    return entry;
  }
  std::uint64_t size_of(std::uint64_t order) const {
    return sizes_[order % owners_][order / owners_];
  }

  void answer(const FetchEnd& work) {
    EndFetched fetched{work.stream, work.owner, {}, std::nullopt};
    if (prng_.below(6) == 0) {
      fetched.status = {Code::kUnavailable, "away"};
    } else if (work.stream == stream_ && ended_[work.owner]) {
      fetched.end.emplace();
      for (std::uint64_t n = 0; n < sizes_[work.owner].size(); ++n) {
        fetched.end->payloads.push_back(entry_of(work.owner, n));
      }
    }
    node_->step(fetched);
  }
  void answer(const FetchPayload& work) {
    PayloadFetched fetched{work.stream, work.owner, work.number, {}, false, 0, 0, {}};
    if (prng_.below(6) == 0) {
      fetched.status = {Code::kIo, "cut off"};
    } else if (work.stream == stream_ && work.number < stored_[work.owner]) {
      fetched.there = true;
      fetched.entry = entry_of(work.owner, work.number);
      fetched.stored_bytes = fetched.entry.bytes;
      fetched.decoded_bytes = fetched.stored_bytes * kDecodedBytes;
      EXPECT_EQ(work.entry.value_or(fetched.entry), fetched.entry);
      // What comes late of a stopped attempt is dropped at once.
      held_[{work.stream, work.number * owners_ + work.owner}] = {};
    }
    node_->step(fetched);
  }
  void answer(const DecodePayload& work) {
    PayloadDecoded decoded{work.stream, work.owner, work.number, {}};
    const auto found = held_.find({work.stream, work.number * owners_ + work.owner});
    if (found == held_.end()) {
      decoded.status = {Code::kNotFound, "it was let go"};
    } else if (prng_.below(6) == 0) {
      decoded.status = {Code::kIo, "no memory"};
      held_.erase(found);
    } else {
      EXPECT_FALSE(found->second.decoded);
      found->second.decoded = true;
    }
    node_->step(decoded);
  }

  bool done() const {
    for (const Receiver& receiver : receivers_) {
      if (receiver.ends.size() != owners_) return false;
      for (std::uint64_t owner = 0; owner < owners_; ++owner) {
        for (std::uint64_t n = 0; n < sizes_[owner].size(); ++n) {
          if (!receiver.taken.contains(n * owners_ + owner)) return false;
        }
      }
    }
    return true;
  }

  Prng prng_;
  TestControl world_;
  std::uint64_t owners_ = 1;
  std::vector<Endpoint> owner_endpoints_;
  std::vector<Receiver> receivers_;
  NodeEndpointOptions options_;
  std::unique_ptr<Driver> node_;

  StreamId stream_;
  std::uint64_t restores_ = 0;
  std::optional<Prepare> prepare_;
  bool asynchronous_ = false, opened_ = false, asked_to_open_ = false;
  std::vector<std::vector<std::uint64_t>> sizes_;  // of payloads, by owner
  std::vector<std::uint64_t> stored_;              // payloads in the store, by owner
  std::vector<bool> ended_;
  std::vector<NodeEffect> pending_;                          // work
  std::map<std::pair<StreamId, std::uint64_t>, Held> held_;  // the shell's payloads
  std::set<StreamId> over_;
};

TEST(NodeProperty, EveryReceiverGetsEveryPayload) {
  for (std::uint64_t seed = 0; seed < campaign_cases(4000); ++seed) {
    RandomNode node(seed);
    node.run();
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace dcr
