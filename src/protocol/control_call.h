// The control plane's operations as values, so that machines ask for them as effects and a shell or
// a simulator carries them out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/assert.h"
#include "dcr/control.h"
#include "dcr/status.h"

namespace dcr {

struct ReadRequest {};
struct ReadMemberRequest {
  std::string name;
};
struct ReadMembersRequest {};
struct BarRequest {
  std::uint64_t token = 0;
  std::vector<Endpoint> barred;
};
struct ClaimRequest {
  Endpoint holder;
  LeaderRow seen;
};
struct BeatRequest {
  std::uint64_t token = 0;
};
struct OpenRequest {
  std::uint64_t attempt = 0;
};
struct CommitRequest {
  std::uint64_t attempt = 0;
};
struct ObsoleteRequest {
  std::uint64_t attempt = 0;
};
struct AbortRequest {
  std::uint64_t token = 0;
};

using ControlRequest =
    std::variant<ReadRequest, ReadMemberRequest, ReadMembersRequest, EnrolRequest, JoinRequest,
                 BarRequest, ClaimRequest, BeatRequest, PrepareRequest, OpenRequest, CommitRequest,
                 ObsoleteRequest, AbortRequest>;

// Its value is that of the request's operation, where the status is ok.
struct ControlReply {
  Status status;
  std::variant<std::monostate, ControlRecords, std::optional<Member>, Membership, Enrolment, Joined,
               LeaderRow, TransitionRecord>
      value;
};

// The value of an answer. REQUIRES: the status is ok, and T is what the request's operation
// returns.
template <typename T>
const T& control_value(const ControlReply& reply) {
  const T* const value = std::get_if<T>(&reply.value);
  DCR_ASSERT(value != nullptr);
  return *value;
}

// Carries a request out; blocks as the control plane does.
ControlReply call_control(ControlPlane& control, const ControlRequest& request);

const char* control_request_name(const ControlRequest& request);

}  // namespace dcr
