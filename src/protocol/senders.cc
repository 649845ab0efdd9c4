#include "protocol/senders.h"

#include <type_traits>
#include <variant>

namespace dcr {
namespace {

template <typename T, typename... Kinds>
constexpr bool kIsOneOf = (std::is_same_v<T, Kinds> || ...);

template <typename T>
bool may_say(Role role) {
  if (kIsOneOf<T, Prepare, CloseGate, OpenApply, Flush, StopAndWait, Cleanup, Look, RefitEnded>) {
    return role == Role::kCoordinator;
  }
  if (kIsOneOf<T, Prepared, AttemptFailed, Stopped>) {
    return role == Role::kOwner || role == Role::kNode || role == Role::kReceiver;
  }
  if (kIsOneOf<T, RefitRequest, Sent, BaselineUpdated, CleanedUp, PayloadsSent, RestoreSent,
               BaseDigests, Sample>) {
    return role == Role::kOwner;
  }
  if (kIsOneOf<T, Staged, StagingFull, OwnerEnd, PayloadReady, StreamFailed>) {
    return role == Role::kNode;
  }
  if (kIsOneOf<T, GateClosed, Completed, Credit, RestoreRequest, BaseDigestsRequest, GateClose,
               GateProof, Refused, Applying, SampleRequest>) {
    return role == Role::kReceiver;
  }
  if (kIsOneOf<T, GateIsClosed, GateState>) return role == Role::kGate;
  if (kIsOneOf<T, OperatorReply>) return role == Role::kOwner || role == Role::kGate;
  return kIsOneOf<T, StatusRequest, StatusReply>;
}

}  // namespace

bool may_send(const SenderRole& sender, const Message& message) {
  return std::visit(
      [&sender](const auto& said) {
        using T = std::decay_t<decltype(said)>;
        if (sender.is_operator && std::is_same_v<T, OperatorCommand>) return true;
        return may_say<T>(sender.is_operator ? Role::kCoordinator : sender.role);
      },
      message);
}

}  // namespace dcr
