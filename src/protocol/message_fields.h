// The fields of every message, in their order on the wire (docs/PROTOCOL.md "Messages"): said once,
// for MessageWriter and MessageReader.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/limits.h"
#include "protocol/messages.h"

namespace dcr {

inline constexpr std::uint64_t kAnyNumber = ~std::uint64_t{0};

// ---- parts of messages

template <typename Io>
void fields(Io& io, typename Io::template Of<VersionId>& part) {
  io.number("version", part.version);
  io.number("baseline", part.baseline);
  io.require("version", plausible(part));
}
template <typename Io>
void fields(Io& io, typename Io::template Of<CommitRecord>& part) {
  fields(io, part.id);
  io.label("label", part.label);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<Endpoint>& part) {
  io.name("name", part.name);
  io.number("incarnation", part.incarnation, 1);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<Candidate>& part) {
  io.number("candidate's incarnation", part.incarnation, 1);
  io.number("candidate's counter", part.counter);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<OwnerBinding>& part) {
  fields(io, part.endpoint);
  fields(io, part.candidate);
  io.require("candidate's incarnation", part.candidate.incarnation == part.endpoint.incarnation);
  io.flag("dense", part.dense);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<Prepare::Receiver>& part) {
  fields(io, part.endpoint);
  io.name("engine", part.engine);
  io.name("node", part.node);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<StreamId>& part) {
  io.flag("restore", part.restore);
  io.number("stream", part.number, 1);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<Failure>& part) {
  io.choice("code", part.code, Code::kInvalidArgument, Code::kInternal);
  io.text("tensor", part.tensor, kTensorNameBytesMax);
  io.text("message", part.message, kMessageTextBytesMax);
}

// What lists and optional fields of parts take.
inline constexpr auto kFields = [](auto& io, auto& part) { fields(io, part); };

template <typename Io, typename Message>
void attempt_field(Io& io, Message& message) {
  io.number("attempt", message.attempt, 1);
}
template <typename Io, typename Message>
void payload_fields(Io& io, Message& message) {
  fields(io, message.stream);
  io.number("owner", message.owner, 0, kEndpointsMax - 1);
  io.number("number", message.number, 0, kPayloadsPerOwnerMax - 1);
}

// ---- owners → coordinator

template <typename Io>
void fields(Io& io, typename Io::template Of<RefitRequest>& message) {
  fields(io, message.candidate);
  io.label("label", message.label);
  io.optional("baseline", message.baseline, kFields);
  io.flag("asynchronous", message.asynchronous);
  io.number("call", message.call, 1);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<Sent>& message) {
  attempt_field(io, message);
  io.choice("mode", message.mode, AttemptMode::kMixed, AttemptMode::kDense);
  io.number("payloads", message.payloads, 0, kPayloadsPerOwnerMax);
  io.number("payload bytes", message.payload_bytes, 0, kAnyNumber);
  io.number("elements", message.elements, 0, kAnyNumber);
  io.number("changed elements", message.changed_elements, 0, kAnyNumber);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<BaselineUpdated>& message) {
  fields(io, message.committed);
  io.optional("failure", message.failure, kFields);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<CleanedUp>& message) {
  attempt_field(io, message);
}

// ---- coordinator → everybody bound

// Whom the attempt binds: each once, and every receiver has its node.
inline bool names_fit(const Prepare& message) {
  std::vector<std::string> owners;
  for (const OwnerBinding& owner : message.owners) owners.push_back(owner.endpoint.name);
  std::sort(owners.begin(), owners.end());
  const auto ascending = [](const auto& list, auto name_of) {
    return std::adjacent_find(list.begin(), list.end(), [&](const auto& a, const auto& b) {
             return name_of(a) >= name_of(b);
           }) == list.end();
  };
  const auto itself = [](const std::string& name) -> const std::string& { return name; };
  const auto of_node = [](const Endpoint& node) -> const std::string& { return node.name; };
  const auto of_receiver = [](const Prepare::Receiver& receiver) -> const std::string& {
    return receiver.endpoint.name;
  };
  if (!ascending(owners, itself) || !ascending(message.nodes, of_node) ||
      !ascending(message.receivers, of_receiver)) {
    return false;
  }
  return std::all_of(message.receivers.begin(), message.receivers.end(), [&](const auto& receiver) {
    const auto node = std::lower_bound(
        message.nodes.begin(), message.nodes.end(), receiver.node,
        [](const Endpoint& endpoint, const std::string& name) { return endpoint.name < name; });
    return node != message.nodes.end() && node->name == receiver.node;
  });
}
template <typename Io>
void fields(Io& io, typename Io::template Of<Prepare>& message) {
  attempt_field(io, message);
  fields(io, message.base);
  io.require("base", message.base.baseline < message.attempt);
  io.label("label", message.label);
  io.choice("mode", message.mode, AttemptMode::kMixed, AttemptMode::kDense);
  io.flag("asynchronous", message.asynchronous);
  io.digest("digest", message.digest);
  io.list("owners", message.owners, kEndpointsMax, kFields);
  io.list("nodes", message.nodes, kEndpointsMax, kFields);
  io.list("receivers", message.receivers, kEndpointsMax, kFields);
  io.require("endpoints", !message.owners.empty() && !message.receivers.empty());
  io.require("endpoints", names_fit(message));
  io.needs("needs", message.needs);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<CloseGate>& message) {
  attempt_field(io, message);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<OpenApply>& message) {
  attempt_field(io, message);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<Flush>& message) {
  attempt_field(io, message);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<StopAndWait>& message) {
  attempt_field(io, message);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<Cleanup>& message) {
  attempt_field(io, message);
}
template <typename Io>
void fields(Io& /*io*/, typename Io::template Of<Look>& /*message*/) {}
template <typename Io>
void fields(Io& io, typename Io::template Of<EarlyClose>& closed) {
  io.text("reason", closed.reason, kMessageTextBytesMax);
  io.number("after", closed.after_ms, 0, kAnyNumber);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<RefitEnded>& message) {
  fields(io, message.candidate);
  fields(io, message.committed);
  io.optional("failure", message.failure, kFields);
  io.number("attempts", message.attempts);
  io.list("without baseline", message.without_baseline, kEndpointsMax,
          [](auto& list, auto& name) { list.name("name", name); });
  io.number("call", message.call);
  io.optional("gate closed early", message.gate_closed_early, kFields);
}

// ---- everybody bound → coordinator

template <typename Io>
void fields(Io& io, typename Io::template Of<Prepared>& message) {
  attempt_field(io, message);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<AttemptFailed>& message) {
  attempt_field(io, message);
  io.flag("rejected", message.rejected);
  fields(io, message.failure);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<Stopped>& message) {
  attempt_field(io, message);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<Staged>& message) {
  attempt_field(io, message);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<StagingFull>& message) {
  attempt_field(io, message);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<GateClosed>& message) {
  attempt_field(io, message);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<Completed>& message) {
  attempt_field(io, message);
  io.number("payloads", message.payloads, 0, kAnyNumber);
  io.number("destinations", message.destinations, 0, kAnyNumber);
  io.number("checked", message.checked, 0, kAnyNumber);
}

template <typename Io>
void fields(Io& io, typename Io::template Of<Applying>& message) {
  attempt_field(io, message);
  io.number("payloads", message.payloads, 0, kAnyNumber);
  io.text("state", message.state, kMessageTextBytesMax);
}

// ---- data path

template <typename Io>
void fields(Io& io, typename Io::template Of<PayloadsSent>& message) {
  fields(io, message.stream);
  io.number("payloads", message.payloads, 0, kPayloadsPerOwnerMax);
  io.flag("ended", message.ended);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<Credit>& message) {
  fields(io, message.stream);
  io.number("next", message.next);
  io.number("payloads", message.payloads);
  io.number("bytes", message.bytes, 0, kAnyNumber);
  io.flag("again", message.again);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<OwnerEnd>& message) {
  fields(io, message.stream);
  io.number("owner", message.owner, 0, kEndpointsMax - 1);
  io.number("payloads", message.payloads, 0, kPayloadsPerOwnerMax);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<PayloadReady>& message) {
  payload_fields(io, message);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<StreamFailed>& message) {
  fields(io, message.stream);
  fields(io, message.failure);
}

// ---- restores and base proofs

template <typename Io>
void fields(Io& io, typename Io::template Of<RestoreRequest>& message) {
  fields(io, message.version);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<RestoreSent>& message) {
  fields(io, message.version);
  io.number("payloads", message.payloads, 0, kPayloadsPerOwnerMax);
  io.optional("failure", message.failure, kFields);
}
template <typename Io>
void fields(Io& /*io*/, typename Io::template Of<BaseDigestsRequest>& /*message*/) {}
template <typename Io>
void fields(Io& io, typename Io::template Of<BaseDigests>& message) {
  io.list("digests", message.digests, kMessageDigestsMax,
          [](auto& list, auto& digest) { list.digest("digest", digest); });
  io.optional("failure", message.failure, kFields);
}

// ---- samples

template <typename Io>
void fields(Io& io, typename Io::template Of<SampleRequest>& message) {
  fields(io, message.version);
  io.number("seed", message.seed, 0, kAnyNumber);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<Sample>& message) {
  fields(io, message.version);
  io.bytes("payload", message.payload, kSampleBytesMax);
}

// ---- gates

template <typename Io>
void fields(Io& io, typename Io::template Of<GateClose>& message) {
  io.number("sequence", message.sequence, 1);
  io.text("why", message.why, kMessageTextBytesMax);
  io.number("engine instance", message.engine_instance, 1);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<GateIsClosed>& message) {
  io.number("sequence", message.sequence, 1);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<GateProof>& message) {
  io.number("sequence", message.sequence, 1);
  io.optional("resident", message.resident, kFields);
  io.number("engine instance", message.engine_instance, 1);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<GateState>& message) {
  io.flag("open", message.open);
  fields(io, message.serving);
  io.text("reason", message.reason, kMessageTextBytesMax);
  io.number("sequence", message.sequence);
  io.number("engine instance", message.engine_instance, 1);
}

// ---- operators

template <typename Io>
void fields(Io& /*io*/, typename Io::template Of<StatusRequest>& /*message*/) {}
template <typename Io>
void fields(Io& io, typename Io::template Of<StatusReply>& message) {
  io.text("state", message.state, kMessageTextBytesMax);
  io.text("detail", message.detail, kMessageTextBytesMax);
  io.number("attempt", message.attempt);
  io.optional("held", message.held, kFields);
  io.flag("gate open", message.gate_open);
  io.text("gate reason", message.gate_reason, kMessageTextBytesMax);
  io.number("gate for", message.gate_for_ms, 0, kAnyNumber);
}

template <typename Io>
void fields(Io& io, typename Io::template Of<OperatorCommand>& message) {
  io.number("id", message.id, 1);
  io.choice("kind", message.kind, OperatorCommand::Kind::kRefit, OperatorCommand::Kind::kCount);
  io.text("path", message.path, kMessageTextBytesMax);
  io.text("label", message.label, kLabelBytesMax);
  io.flag("asynchronous", message.asynchronous);
  fields(io, message.base);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<OperatorReply>& message) {
  io.number("id", message.id, 1);
  io.optional("failure", message.failure, kFields);
  fields(io, message.committed);
  io.number("attempts", message.attempts);
  io.number("payload bytes", message.payload_bytes, 0, kAnyNumber);
  io.list("without baseline", message.without_baseline, kEndpointsMax,
          [](auto& list, auto& name) { list.name("name", name); });
  io.number("bytes compared", message.bytes_compared, 0, kAnyNumber);
  io.number("bytes differing", message.bytes_differing, 0, kAnyNumber);
  io.number("reads", message.reads, 0, kAnyNumber);
  io.number("reads different", message.reads_different, 0, kAnyNumber);
  io.number("gate closed", message.gate_closed_ms, 0, kAnyNumber);
  io.optional("gate closed early", message.gate_closed_early, kFields);
  io.number("refits took", message.refit_ms, 0, kAnyNumber);
}

// ---- what joins say

template <typename Io>
void fields(Io& io, typename Io::template Of<OwnerDetails>& details) {
  io.number("rank", details.rank, 0, kEndpointsMax - 1);
  io.number("owners", details.owners, 1, kEndpointsMax);
  io.require("rank", details.rank < details.owners);
  io.digest("catalogue", details.catalogue);
}
template <typename Io>
void fields(Io& io, typename Io::template Of<ReceiverDetails>& details) {
  io.name("node", details.node);
  io.digest("catalogue", details.catalogue);
  io.digest("fingerprint", details.fingerprint);
  io.needs("needs", details.needs);
}

template <typename Io>
void fields(Io& io, typename Io::template Of<Refused>& message) {
  fields(io, message.failure);
  io.number("engine instance", message.engine_instance, 1);
}

}  // namespace dcr
