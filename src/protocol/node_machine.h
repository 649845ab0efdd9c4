// The state of a NodeEndpoint: attempts (node.cc), fetching and decoding (node_fetch.cc), receivers
// (node_feed.cc). Handlers note what came; `advance` does what is due, lowest order numbers first.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "protocol/node.h"
#include "protocol/node_stream.h"

namespace dcr {

class NodeEndpoint::Machine {
 public:
  explicit Machine(NodeEndpointOptions options);

  void step(const NodeEvent& event, Milliseconds now, std::vector<NodeEffect>* effects);
  Milliseconds wake_at() const;
  std::uint64_t incarnation() const { return session_.incarnation(); }
  StatusReply status() const;

 private:
  using State = NodeStream::Payload::State;

  // The attempt of `current` (docs/PROTOCOL.md rule 3).
  struct Current {
    std::uint64_t attempt = 0;
    bool asynchronous = false;
    Endpoint coordinator;
    std::vector<Endpoint> owners;  // by rank
    std::optional<AttemptFailed> failed;
    bool opened = false;
    bool staged = false, full = false;  // said, in asynchronous mode
  };

  // ---- node.cc
  void on(const Started& event);
  void on(const TimePassed& event);
  void on(const MessageArrived& event);
  void on(const ControlAnswered& event);
  void on(const EndFetched& event);
  void on(const PayloadFetched& event);
  void on(const PayloadDecoded& event);
  void on_message(const Endpoint& from, const Prepare& message);
  void on_message(const Endpoint& from, const OpenApply& message);
  void on_message(const Endpoint& from, const StopAndWait& message);
  void on_message(const Endpoint& from, const Look& message);
  void on_message(const Endpoint& from, const PayloadsSent& message);
  void on_message(const Endpoint& from, const Credit& message);
  template <typename T>
  void on_message(const Endpoint& /*from*/, const T& /*message*/) {}  // for others

  void advance();
  void begin_current(const Prepare& message);
  void take_hint(const Endpoint& from, const PayloadsSent& hint);
  void report();
  void report_staging();
  void emit(NodeEffect effect) { effects_->push_back(std::move(effect)); }
  void send(const Endpoint& to, Message message);
  Endpoint self() const { return {options_.name, session_.incarnation()}; }
  NodeStream* attempt_stream();
  NodeStream* find(const StreamId& id);
  void drop(StreamId id);  // a copy: the stream that holds it goes
  void fail(NodeStream* stream, const Status& status);

  // ---- node_fetch.cc
  void fetch_ends(NodeStream* stream);
  void fetch_payloads(NodeStream* stream);
  std::optional<std::uint64_t> next_to_fetch(const NodeStream& stream) const;
  bool has_room(const NodeStream& stream, std::uint64_t order) const;
  bool out_of_room(const NodeStream& stream) const;
  void decode(NodeStream* stream);
  std::uint64_t decoded_bytes() const;
  NodeStream* answered(const StreamId& id);
  Status take_end(NodeStream* stream, std::uint32_t owner, const AttemptEnd& end);
  Status take_entry(NodeStream* stream, std::uint32_t owner, std::uint64_t number,
                    const PayloadEntry& entry);
  void answered_late(NodeStream* stream, std::uint64_t order);
  void miss(NodeStream* stream, std::uint64_t order, Milliseconds again_at);

  // ---- node_feed.cc
  void keep_early(const Endpoint& from, const Credit& credit);
  NodeStream* stream_for(const Endpoint& from, const StreamId& id);
  NodeStream* begin_restore(const StreamId& id);
  void hand_over(NodeStream* stream);
  void hand_over(NodeStream* stream, NodeStream::Feed* feed);
  void send_ends(const NodeStream& stream, const NodeStream::Feed& feed);
  void let_go(NodeStream* stream);
  void forget_silent();
  Milliseconds silent_ms() const;

  const NodeEndpointOptions options_;
  MemberSession session_;
  std::vector<NodeEffect>* effects_ = nullptr;  // of the running step
  Milliseconds now_ = 0;
  bool ended_ = false;
  bool join_asked_ = false;
  Milliseconds repeat_at_ = kNever;

  std::uint64_t fence_ = 0;
  std::optional<Current> current_;
  std::map<StreamId, NodeStream> streams_;
  std::map<StreamId, std::uint64_t> dropped_;  // work of streams that are gone, unanswered
  std::uint64_t fetches_ = 0;                  // of payloads, of all streams, gone ones too
  // Hints and credit may come before the prepare that they belong to. By the sender's name.
  std::map<std::string, std::pair<Endpoint, PayloadsSent>> early_;
  std::map<std::string, std::pair<Endpoint, Credit>> early_credit_;
};

}  // namespace dcr
