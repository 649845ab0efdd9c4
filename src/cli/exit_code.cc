#include "cli/exit_code.h"

namespace dcr {

ExitCode exit_code_for(Code code) {
  switch (code) {
    case Code::kOk:
      return kExitDone;
    case Code::kInvalidArgument:
    case Code::kExists:  // what helps is another name or --force
      return kExitUsage;
    case Code::kCorrupt:
    case Code::kTooLarge:
    case Code::kUnsupported:
    case Code::kMismatch:
    case Code::kNotFound:
      return kExitBadInput;
    case Code::kConflict:
    case Code::kLostLeadership:
    case Code::kUnknownOutcome:
      return kExitOperator;
    case Code::kIo:
    case Code::kCancelled:
    case Code::kUnavailable:
    case Code::kInternal:
      return kExitIo;
  }
  return kExitIo;
}

}  // namespace dcr
