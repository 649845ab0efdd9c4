// One message of every kind with every field set, and random ones.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/prng.h"
#include "protocol/message_fields.h"

namespace dcr {

inline std::vector<Message> sample_messages() {
  const VersionId version{7, 9};
  const Candidate candidate{3, 4};
  const Failure failure{Code::kMismatch, "layer.weight", "what failed"};
  const StreamId stream{true, 8};
  const EarlyClose early{"node-0 has no room", 1200};
  Digest digest{};
  digest.fill(0xab);
  Prepare prepare;
  prepare.attempt = 300;
  prepare.base = version;
  prepare.label = "step 8";
  prepare.mode = AttemptMode::kOverwrite;
  prepare.asynchronous = true;
  prepare.digest = digest;
  prepare.owners = {{{"owner-1", 3}, candidate, true}, {{"owner-0", 5}, {5, 6}, false}};
  prepare.nodes = {{"node-0", 10}, {"node-1", 11}};
  prepare.receivers = {{{"receiver-0", 12}, "engine-0", "node-1"},
                       {{"receiver-1", 13}, "engine-0", "node-0"}};
  prepare.needs = {Need::kAny, Need::kAny, Need::kDense, Need::kSkip};
  return {
      RefitRequest{candidate, "step 8", version, true, 2},
      Sent{300, AttemptMode::kDense, 5, 6000, 70, 8},
      BaselineUpdated{version, failure},
      CleanedUp{300},
      prepare,
      CloseGate{300},
      OpenApply{300},
      Flush{300},
      StopAndWait{300},
      Cleanup{300},
      Look{},
      RefitEnded{candidate, {version, "step 8"}, failure, 2, {"owner-1"}, 3, early},
      Prepared{300},
      AttemptFailed{300, true, failure},
      Stopped{300},
      Staged{300},
      StagingFull{300},
      GateClosed{300},
      Completed{300, 5, 6, 7},
      PayloadsSent{stream, 5, true},
      Credit{stream, 1, 2, 3, true},
      OwnerEnd{stream, 1, 2},
      PayloadReady{stream, 1, 2},
      StreamFailed{stream, failure},
      RestoreRequest{version},
      RestoreSent{version, 5, failure},
      BaseDigestsRequest{},
      BaseDigests{{digest, digest}, failure},
      GateClose{5, "its restore failed", 300},
      GateIsClosed{5},
      GateProof{6, version, 300},
      GateState{true, version, "drains", 6, 300},
      StatusRequest{},
      StatusReply{"prepared", "waits", 300, version, true, "none", 1500},
      OperatorCommand{7, OperatorCommand::Kind::kVerify, "/checkpoints/8", "step 8", true, version},
      OperatorReply{
          7, failure, {version, "step 8"}, 2, 6000, {"owner-1"}, 5, 6, 7, 8, 9, early, 10},
      Refused{failure, 300},
      Applying{300, 42, "audits what came"},
      SampleRequest{version, 17},
      Sample{version, {1, 2, 3}}};
}

// Sets fields at random, where MessageReader reads them: to small values mostly, and to the
// largest.
class RandomFields {
 public:
  template <typename T>
  using Of = T;

  explicit RandomFields(Prng* prng) : prng_(prng) {}

  void require(const char* /*field*/, bool /*holds*/) {}
  template <typename T>
  void number(const char* /*field*/, T& value, std::uint64_t least = 0,
              std::uint64_t most = kCounterMax) {
    const std::uint64_t small =
        least + prng_->below(std::min<std::uint64_t>(most - least, 300) + 1);
    value = static_cast<T>(prng_->below(10) == 0 ? most : small);
  }
  void flag(const char* /*field*/, bool& value) { value = prng_->below(2) == 0; }
  template <typename Enum>
  void choice(const char* /*field*/, Enum& value, Enum first, Enum last) {
    const auto low = static_cast<std::uint64_t>(first);
    value = static_cast<Enum>(low + prng_->below(static_cast<std::uint64_t>(last) - low + 1));
  }
  void digest(const char* /*field*/, Digest& value) {
    for (std::uint8_t& byte : value) byte = static_cast<std::uint8_t>(prng_->next());
  }
  void text(const char* /*field*/, std::string& value, std::uint64_t bytes_max) {
    constexpr const char* kPieces[] = {"a", " ", "é", "→", "\U0001f980"};
    const std::uint64_t pieces = prng_->below(20) == 0 ? bytes_max / 4 : prng_->below(8);
    for (std::uint64_t i = 0; i < pieces; ++i) value += kPieces[prng_->below(5)];
  }
  void name(const char* /*field*/, std::string& value) {
    value = "name-" + std::to_string(prng_->below(50));
    if (prng_->below(10) == 0) value.resize(kEndpointNameBytesMax, 'x');
  }
  void label(const char* field, std::string& value) { text(field, value, kLabelBytesMax); }
  void bytes(const char* /*field*/, Bytes& value, std::uint64_t bytes_max) {
    value.resize(static_cast<std::size_t>(prng_->below(20) == 0 ? bytes_max : prng_->below(300)));
    for (std::uint8_t& byte : value) byte = static_cast<std::uint8_t>(prng_->next());
  }
  template <typename Entry, typename Fields>
  void list(const char* /*field*/, std::vector<Entry>& value, std::uint64_t /*count_max*/,
            Fields fields) {
    value.resize(prng_->below(6));
    for (Entry& entry : value) fields(*this, entry);
  }
  template <typename T, typename Fields>
  void optional(const char* /*field*/, std::optional<T>& value, Fields fields) {
    if (prng_->below(2) == 0) fields(*this, value.emplace());
  }
  void needs(const char* /*field*/, std::vector<Need>& value) {
    for (std::uint64_t run = prng_->below(5); run > 0; --run) {
      value.insert(value.end(), prng_->below(70) + 1, static_cast<Need>(prng_->below(4)));
    }
  }

 private:
  Prng* prng_;
};

// Those fields that depend on others, so that `message` can be.
inline void make_fit(VersionId* id) {
  if (id->version == 0 || id->baseline == 0) *id = {};
  if (id->version > id->baseline) std::swap(id->version, id->baseline);
}
template <typename Kind>
void make_fit(Kind* message) {
  if constexpr (requires { message->version.baseline; }) make_fit(&message->version);
  if constexpr (requires { message->base.baseline; }) make_fit(&message->base);
  if constexpr (requires { message->committed.baseline; }) make_fit(&message->committed);
  if constexpr (requires { message->committed.id; }) make_fit(&message->committed.id);
  if constexpr (requires { message->serving; }) make_fit(&message->serving);
  if constexpr (requires { message->baseline->baseline; }) {
    if (message->baseline) make_fit(&*message->baseline);
  }
  if constexpr (requires { message->resident->baseline; }) {
    if (message->resident) make_fit(&*message->resident);
  }
  if constexpr (requires { message->held->baseline; }) {
    if (message->held) make_fit(&*message->held);
  }
}
inline void make_fit(Prepare* message) {
  make_fit(&message->base);
  if (message->attempt <= message->base.baseline) message->base = {};
  if (message->owners.empty()) message->owners.resize(1);
  if (message->nodes.empty()) message->nodes.resize(1, {"", 1});
  if (message->receivers.empty()) message->receivers.resize(1);
  std::uint64_t number = 100;
  for (OwnerBinding& owner : message->owners) {
    owner.endpoint = {"owner-" + std::to_string(++number), number};
    owner.candidate.incarnation = number;
  }
  std::reverse(message->owners.begin(), message->owners.end());
  for (Endpoint& node : message->nodes) node.name = "node-" + std::to_string(++number);
  for (Prepare::Receiver& receiver : message->receivers) {
    receiver.endpoint = {"receiver-" + std::to_string(++number), number};
    receiver.engine = "engine-0";
    receiver.node = message->nodes[number % message->nodes.size()].name;
  }
}

// A message of the same kind as `like`, with other contents.
inline Message random_message(const Message& like, Prng* prng) {
  return std::visit(
      [prng](const auto& kind) {
        std::decay_t<decltype(kind)> message;
        RandomFields random(prng);
        fields(random, message);
        make_fit(&message);
        return Message(std::move(message));
      },
      like);
}

}  // namespace dcr
