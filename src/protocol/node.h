// A rollout node's agent (docs/PROTOCOL.md "Node"): fetches each payload once, has it validated and
// decoded once, stages it, and hands it to the node's receivers as they give credit. Data path
// only: what to apply, and when, receivers hear from the coordinator.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "dcr/transport.h"
#include "protocol/machine.h"
#include "protocol/member.h"

namespace dcr {

// Payloads under way to a node at a time, of all streams; and, where payloads are applied as they
// come, that wait to be decoded.
inline constexpr std::uint64_t kNodeFetchesMax = 8;

struct NodeEndpointOptions {
  std::string name;
  std::uint32_t owners = 1;  // of the run
  // Payloads as they were sent, which wait until receivers apply (asynchronous mode). Those under
  // way (kNodeFetchesMax) whose size no end has told yet may take it above.
  std::uint64_t staging_bytes_max = 0;
  // Decoded payloads, of all streams; beside them the one of each whose turn it is.
  std::uint64_t decoded_bytes_max = 0;
  // Fetched or being fetched of a stream whose payloads are applied as they come (paper C).
  std::uint32_t window_payloads = 264;
  Waits waits;
};

// ---- work; any number at a time, each answered once

struct FetchEnd {
  StreamId stream;
  std::uint32_t owner = 0;
};
// Fetches a payload, compares size and digest with its owner's end if that is given, and validates
// it whole. It is kept as it came until Drop.
struct FetchPayload {
  StreamId stream;
  std::uint32_t owner = 0;
  std::uint64_t number = 0;
  std::optional<PayloadEntry> entry;
};
// Decodes a payload that was fetched, into sealed memory; the bytes as they came are let go.
struct DecodePayload {
  StreamId stream;
  std::uint32_t owner = 0;
  std::uint64_t number = 0;
};
// Hands a decoded payload to a receiver: PayloadReady with its memory. Not answered: credit is the
// answer.
struct HandOver {
  Endpoint receiver;
  StreamId stream;
  std::uint32_t owner = 0;
  std::uint64_t number = 0;
};
// Lets go of payloads of the stream below this order number (number × owners + owner); kOrderAll:
// of everything of it, also of what is still being fetched. What is fetched after this is another
// one, though it may have the same number. Not answered.
inline constexpr std::uint64_t kOrderAll = ~std::uint64_t{0};
struct DropPayloads {
  StreamId stream;
  std::uint64_t below = kOrderAll;
};

struct EndFetched {
  StreamId stream;
  std::uint32_t owner = 0;
  Status status;                  // kIo, kUnavailable: asked again; else the stream fails
  std::optional<AttemptEnd> end;  // nothing: it is not there yet
};
struct PayloadFetched {
  StreamId stream;
  std::uint32_t owner = 0;
  std::uint64_t number = 0;
  Status status;
  bool there = false;
  std::uint64_t stored_bytes = 0;
  std::uint64_t decoded_bytes = 0;
  PayloadEntry entry;  // of the bytes that came: compared with the end when that comes later
};
struct PayloadDecoded {
  StreamId stream;
  std::uint32_t owner = 0;
  std::uint64_t number = 0;
  Status status;
};

using NodeEvent = std::variant<Started, TimePassed, MessageArrived, ControlAnswered, EndFetched,
                               PayloadFetched, PayloadDecoded>;
using NodeEffect = std::variant<SendMessage, CallControl, Note, Ended, FetchEnd, FetchPayload,
                                DecodePayload, HandOver, DropPayloads>;

class NodeEndpoint {
  class Machine;

 public:
  // REQUIRES: at least one owner, window_payloads >= 1.
  explicit NodeEndpoint(NodeEndpointOptions options);
  ~NodeEndpoint();
  NodeEndpoint(NodeEndpoint&&) noexcept;
  NodeEndpoint& operator=(NodeEndpoint&&) noexcept;

  // After Ended nothing more happens; the shell lets go of everything.
  void step(const NodeEvent& event, Milliseconds now, std::vector<NodeEffect>* effects);
  Milliseconds wake_at() const;

  std::uint64_t incarnation() const;
  StatusReply status() const;

 private:
  std::unique_ptr<Machine> machine_;
};

}  // namespace dcr
