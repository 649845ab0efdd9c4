#include "run/operation_points.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "run/run_config.h"
#include "runtime/child_process.h"
#include "tensor/text.h"

namespace dcr {
namespace {

struct RoleOperations {
  const char* role;
  std::vector<std::string> operations;
};

const std::vector<RoleOperations>& roles() {
  static const std::vector<RoleOperations> kAll = {
      {"coordinator",
       {"prepare", "wait_for_requests", "open_apply", "flush", "commit", "read_commit",
        "mark_obsolete", "stop_and_wait", "cleanup"}},
      {"owner",
       {"refit", "prepare", "build_complete", "bitdiff", "all_reduce_flags", "convert", "encode",
        "send", "stop_and_wait", "commit", "cleanup"}},
      {"node", {"receive", "decode", "hand_over"}},
      {"receiver",
       {"prewarm", "prepare", "wait_for_requests", "ingest", "apply", "flush", "stop_and_wait",
        "commit"}},
  };
  return kAll;
}

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Cuts what stands behind the last `mark` off `text`, if it is a number.
Status cut_number(std::string_view* text, char mark, const char* what, std::uint64_t* value) {
  const std::size_t at = text->rfind(mark);
  if (at == std::string_view::npos) return {};
  const auto number = number_of(text->substr(at + 1));
  if (!number) {
    return {Code::kInvalidArgument,
            std::string(what) + " is no number: " + std::string(text->substr(at + 1))};
  }
  *value = *number;
  *text = text->substr(0, at);
  return {};
}

Status check(const OperationPoint& point) {
  const std::vector<std::string> known = operations_of(point.role);
  if (known.empty()) {
    return {Code::kInvalidArgument,
            "no role is named " + point.role + ": it is coordinator, owner, node or receiver"};
  }
  if (std::find(known.begin(), known.end(), point.operation) == known.end()) {
    const std::string near = nearest(point.operation, known);
    return {Code::kInvalidArgument, "the " + point.role + " has no operation " + point.operation +
                                        (near.empty() ? "" : " (did you mean " + near + "?)") +
                                        "; it has " + joined(known)};
  }
  if (point.nth == 0) return {Code::kInvalidArgument, "NTH counts from 1"};
  return {};
}

}  // namespace

std::vector<std::string> operations_of(std::string_view role) {
  for (const RoleOperations& entry : roles()) {
    if (role == entry.role) return entry.operations;
  }
  return {};
}

Result<OperationPoint> parse_operation_point(std::string_view text) {
  const std::string whole(text);
  OperationPoint point;
  const auto parse = [&]() -> Status {
    constexpr std::string_view kPause = "pause:";
    if (text.starts_with(kPause)) {
      point.pause = true;
      text.remove_prefix(kPause.size());
      DCR_TRY(cut_number(&text, ',', "SECONDS", &point.seconds));
    }
    DCR_TRY(cut_number(&text, ':', "NTH", &point.nth));
    const std::size_t at = text.find('@');
    if (at == std::string_view::npos) return {Code::kInvalidArgument, "there is no @"};
    std::string_view role = text.substr(0, at);
    DCR_TRY(cut_number(&role, '.', "INDEX", &point.index));
    std::string_view operation = text.substr(at + 1);
    const std::size_t side = operation.rfind('.');
    if (side != std::string_view::npos) {
      const std::string_view word = operation.substr(side + 1);
      if (word != "before" && word != "after") {
        return {Code::kInvalidArgument, std::string(word) + " is neither before nor after"};
      }
      point.after = word == "after";
      operation = operation.substr(0, side);
    }
    point.role = std::string(role);
    point.operation = std::string(operation);
    return check(point);
  };
  DCR_TRY(parse().with_context(whole + " is no ROLE[.INDEX]@OPERATION[.before|.after][:NTH]"));
  return point;
}

std::string format_operation_point(const OperationPoint& point) {
  std::string text = point.pause ? "pause:" : "";
  text += point.role + "." + std::to_string(point.index) + "@" + point.operation;
  text += point.after ? ".after:" : ".before:";
  text += std::to_string(point.nth);
  if (point.pause) text += "," + std::to_string(point.seconds);
  return text;
}

void OperationPoints::reach(std::string_view operation, bool after) {
  if (points_.empty() || operation.empty()) return;
  std::uint64_t count = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    count = ++counts_[std::string(operation) + (after ? ".after" : ".before")];
  }
  for (const OperationPoint& point : points_) {
    if (point.operation != operation || point.after != after || point.nth != count) continue;
    reached_(point);
    if (point.pause) {
      pause_this_process();
    } else {
      kill_this_process();
    }
  }
}

}  // namespace dcr
