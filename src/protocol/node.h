// A rollout node's agent (DESIGN §8 rules 9–11): fetches each payload once, has it validated and
// decoded once, stages it, and hands it to the node's receivers as they give credit. Data path only:
// what to apply, and when, receivers hear from the coordinator.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "dcr/transport.h"
#include "protocol/machine.h"
#include "protocol/member.h"

namespace dcr {

struct NodeEndpointOptions {
  std::string name;
  std::uint32_t owners = 1;  // of the run
  // Payloads as they were sent, which wait until receivers apply (asynchronous mode).
  std::uint64_t staging_bytes_max = 0;
  // Decoded payloads, of all streams; the one whose turn it is beside them.
  std::uint64_t decoded_bytes_max = 0;
  std::uint32_t window_payloads = 264;  // fetched or being fetched of a stream (paper C)
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
// Hands a decoded payload to a receiver. Not answered: credit is the answer.
struct HandOver {
  Endpoint receiver;
  StreamId stream;
  std::uint32_t owner = 0;
  std::uint64_t number = 0;
};
// Lets go of payloads of the stream below this order number (number × owners + owner); kOrderAll:
// of everything of it, also of what is still being fetched. Not answered.
inline constexpr std::uint64_t kOrderAll = ~std::uint64_t{0};
struct DropPayloads {
  StreamId stream;
  std::uint64_t below = kOrderAll;
};

struct EndFetched {
  StreamId stream;
  std::uint32_t owner = 0;
  Status status;  // kIo, kUnavailable: asked again; else the stream fails
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
 public:
  explicit NodeEndpoint(NodeEndpointOptions options);

  void step(const NodeEvent& event, Milliseconds now, std::vector<NodeEffect>* effects);
  Milliseconds wake_at() const;

  std::uint64_t incarnation() const;
  StatusReply status() const;
};

}  // namespace dcr
