#include "protocol/control_call.h"

#include <array>
#include <utility>

namespace dcr {
namespace {

constexpr std::array<const char*, std::variant_size_v<ControlRequest>> kRequestNames = {
    "read",
    "read_member",
    "read_members",
    "enrol",
    "join",
    "bar",
    "claim",
    "beat",
    "prepare",
    "open",
    "commit",
    "mark_obsolete",
    "abort_transition"};

template <typename T>
ControlReply reply_of(Result<T> result) {
  ControlReply reply;
  reply.status = result.status();
  if (result.ok()) reply.value = std::move(result).value();
  return reply;
}

// One operation for each request.
class Call {
 public:
  explicit Call(ControlPlane* control) : control_(control) {}

  ControlReply operator()(const ReadRequest& /*request*/) const {
    return reply_of(control_->read());
  }
  ControlReply operator()(const ReadMemberRequest& request) const {
    return reply_of(control_->read_member(request.name));
  }
  ControlReply operator()(const ReadMembersRequest& /*request*/) const {
    return reply_of(control_->read_members());
  }
  ControlReply operator()(const EnrolRequest& request) const {
    return reply_of(control_->enrol(request));
  }
  ControlReply operator()(const JoinRequest& request) const {
    return reply_of(control_->join(request));
  }
  ControlReply operator()(const BarRequest& request) const {
    return reply_of(control_->bar(request.token, request.barred));
  }
  ControlReply operator()(const ClaimRequest& request) const {
    return reply_of(control_->claim(request.holder, request.seen));
  }
  ControlReply operator()(const BeatRequest& request) const {
    return reply_of(control_->beat(request.token));
  }
  ControlReply operator()(const PrepareRequest& request) const {
    return reply_of(control_->prepare(request));
  }
  ControlReply operator()(const OpenRequest& request) const {
    return reply_of(control_->open(request.attempt));
  }
  ControlReply operator()(const CommitRequest& request) const {
    return reply_of(control_->commit(request.attempt));
  }
  ControlReply operator()(const ObsoleteRequest& request) const {
    return reply_of(control_->mark_obsolete(request.attempt));
  }
  ControlReply operator()(const AbortRequest& request) const {
    return reply_of(control_->abort_transition(request.token));
  }

 private:
  ControlPlane* control_;
};

}  // namespace

ControlReply call_control(ControlPlane& control, const ControlRequest& request) {
  return std::visit(Call(&control), request);
}

const char* control_request_name(const ControlRequest& request) {
  return kRequestNames[request.index()];
}

}  // namespace dcr
