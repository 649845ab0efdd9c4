#include "run/operations.h"

#include <type_traits>

namespace dcr {
namespace {

const char* operation_of_message(const Message& message) {
  return std::visit(
      [](const auto& sent) {
        using T = std::decay_t<decltype(sent)>;
        if constexpr (std::is_same_v<T, CloseGate>) return "wait_for_requests";
        if constexpr (std::is_same_v<T, OpenApply>) return "open_apply";
        if constexpr (std::is_same_v<T, Flush>) return "flush";
        if constexpr (std::is_same_v<T, StopAndWait>) return "stop_and_wait";
        if constexpr (std::is_same_v<T, Cleanup>) return "cleanup";
        return "";
      },
      message);
}

const char* operation_of_call(const ControlRequest& request) {
  return std::visit(
      [](const auto& asked) {
        using T = std::decay_t<decltype(asked)>;
        if constexpr (std::is_same_v<T, PrepareRequest>) return "prepare";
        if constexpr (std::is_same_v<T, CommitRequest>) return "commit";
        if constexpr (std::is_same_v<T, ObsoleteRequest>) return "mark_obsolete";
        if constexpr (std::is_same_v<T, ReadRequest>) return "read_commit";
        return "";
      },
      request);
}

// What the machines have in common.
template <typename T>
const char* operation_of_shared(const T& effect) {
  if constexpr (std::is_same_v<T, SendMessage>) return operation_of_message(effect.message);
  if constexpr (std::is_same_v<T, CallControl>) return operation_of_call(effect.request);
  return "";
}

const char* operation_of_kind(OwnerWorkDone::Kind kind) {
  using Kind = OwnerWorkDone::Kind;
  switch (kind) {
    case Kind::kConstructAndSend:
      return "build_complete";
    case Kind::kStopSending:
      return "stop_and_wait";
    case Kind::kRemovePayloads:
      return "cleanup";
    case Kind::kUpdateBaseline:
      return "commit";
    case Kind::kSendBaseline:
    case Kind::kRemoveRestores:
    case Kind::kDigestBase:
    case Kind::kSampleBaseline:
      return "";
  }
  return "";
}

const char* operation_of_kind(ReceiverWorkDone::Kind kind) {
  using Kind = ReceiverWorkDone::Kind;
  switch (kind) {
    case Kind::kBeginStream:
      return "prepare";
    case Kind::kIngestPayload:
      return "ingest";
    case Kind::kApplyQueued:
      return "apply";
    case Kind::kFinishStream:
      return "flush";
    case Kind::kStopApplying:
      return "stop_and_wait";
    case Kind::kCheckBase:
    case Kind::kEndOfOwner:
    case Kind::kCompareSample:
      return "";
  }
  return "";
}

}  // namespace

const char* operation_of(const CoordinatorEffect& effect) {
  return std::visit([](const auto& one) { return operation_of_shared(one); }, effect);
}

// Owners answer the coordinator's calls by work; what they send themselves is none of its.
const char* operation_of(const OwnerEffect& effect) {
  return std::visit(
      [](const auto& one) {
        using T = std::decay_t<decltype(one)>;
        using Kind = OwnerWorkDone::Kind;
        if constexpr (std::is_same_v<T, ConstructAndSend>) {
          return operation_of_kind(Kind::kConstructAndSend);
        }
        if constexpr (std::is_same_v<T, StopSending>) return operation_of_kind(Kind::kStopSending);
        if constexpr (std::is_same_v<T, RemovePayloads>) {
          return operation_of_kind(Kind::kRemovePayloads);
        }
        if constexpr (std::is_same_v<T, UpdateBaseline>) {
          return operation_of_kind(Kind::kUpdateBaseline);
        }
        return "";
      },
      effect);
}

const char* operation_of(const NodeEffect& effect) {
  return std::visit(
      [](const auto& one) {
        using T = std::decay_t<decltype(one)>;
        if constexpr (std::is_same_v<T, FetchPayload>) return "receive";
        if constexpr (std::is_same_v<T, DecodePayload>) return "decode";
        if constexpr (std::is_same_v<T, HandOver>) return "hand_over";
        return "";
      },
      effect);
}

const char* operation_of(const ReceiverEffect& effect) {
  return std::visit(
      [](const auto& one) {
        using T = std::decay_t<decltype(one)>;
        using Kind = ReceiverWorkDone::Kind;
        if constexpr (std::is_same_v<T, BeginStream>) return operation_of_kind(Kind::kBeginStream);
        if constexpr (std::is_same_v<T, IngestPayload>) {
          return operation_of_kind(Kind::kIngestPayload);
        }
        if constexpr (std::is_same_v<T, ApplyQueued>) return operation_of_kind(Kind::kApplyQueued);
        if constexpr (std::is_same_v<T, FinishStream>) {
          return operation_of_kind(Kind::kFinishStream);
        }
        if constexpr (std::is_same_v<T, StopApplying>) {
          return operation_of_kind(Kind::kStopApplying);
        }
        return "";
      },
      effect);
}

const char* operation_of(const GateEffect& effect) {
  if (std::holds_alternative<CloseAndDrain>(effect)) return "wait_for_requests";
  return std::holds_alternative<OpenFor>(effect) ? "commit" : "";
}

const char* operation_of(const CoordinatorEvent&) { return ""; }

const char* operation_of(const OwnerEvent& event) {
  const auto* const done = std::get_if<OwnerWorkDone>(&event);
  return done == nullptr ? "" : operation_of_kind(done->kind);
}

const char* operation_of(const NodeEvent& event) {
  if (std::holds_alternative<PayloadFetched>(event)) return "receive";
  return std::holds_alternative<PayloadDecoded>(event) ? "decode" : "";
}

const char* operation_of(const ReceiverEvent& event) {
  const auto* const done = std::get_if<ReceiverWorkDone>(&event);
  return done == nullptr ? "" : operation_of_kind(done->kind);
}

const char* operation_of(const GateEvent& event) {
  const auto* const done = std::get_if<GateWorkDone>(&event);
  if (done == nullptr) return "";
  return done->opened ? "commit" : "wait_for_requests";
}

}  // namespace dcr
