#include "dcr/status.h"

namespace dcr {

Action action_for(Code code) {
  switch (code) {
    case Code::kOk:
      return Action::kNone;
    case Code::kCancelled:
    case Code::kUnknownOutcome:
    case Code::kUnavailable:
      return Action::kRetry;
    case Code::kMismatch:
    case Code::kCorrupt:
    case Code::kTooLarge:
    case Code::kUnsupported:
    case Code::kInvalidArgument:
    case Code::kExists:
    case Code::kNotFound:
      return Action::kReject;
    case Code::kIo:
    case Code::kConflict:
    case Code::kLostLeadership:
      return Action::kFail;
    case Code::kInternal:
      return Action::kCallOperator;
  }
  return Action::kCallOperator;
}

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kCorrupt:
      return "corrupt";
    case Code::kTooLarge:
      return "too_large";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kMismatch:
      return "mismatch";
    case Code::kExists:
      return "exists";
    case Code::kNotFound:
      return "not_found";
    case Code::kIo:
      return "io";
    case Code::kCancelled:
      return "cancelled";
    case Code::kConflict:
      return "conflict";
    case Code::kLostLeadership:
      return "lost_leadership";
    case Code::kUnknownOutcome:
      return "unknown_outcome";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kInternal:
      return "internal";
  }
  return "internal";
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return *this;
  return Status(code_, std::string(context) + ": " + message_, tensor_);
}

}  // namespace dcr
