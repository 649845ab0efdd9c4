#include "cli/run_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/text.h"

namespace dcr {
namespace {

std::string version_text(const CommitRecord& record) {
  return fmt::format("version {} ({})", record.id.version, printable(record.label));
}

// "attempt 4 is active, for version 3, mixed".
std::string transition_text(const TransitionRecord& transition) {
  if (transition.attempt == 0) return "no attempt yet";
  const char* const states[] = {"none", "active", "obsolete", "committed"};
  return fmt::format("attempt {} is {}, for version {}, {}{}", transition.attempt,
                     states[static_cast<unsigned>(transition.state)], transition.base.version + 1,
                     attempt_mode_name(transition.mode),
                     transition.dirty() ? ", some of it may be written" : "");
}

std::string held_text(const StatusReply& reply) {
  return reply.held ? fmt::format("holds version {}", reply.held->version) : "holds no version";
}

}  // namespace

std::string run_refit_text(const RefitReport& report) {
  std::string text =
      fmt::format("{} is committed after {}, {} of payloads\n", version_text(report.committed),
                  counted(report.attempts, "attempt"), bytes_text(report.payload_bytes));
  if (!report.without_baseline.empty()) {
    text += fmt::format("without baseline, their next refit sends everything: {}\n",
                        fmt::join(report.without_baseline, ", "));
  }
  return text;
}

std::string status_text(const RunStatus& status) {
  const ControlRecords& records = status.membership.records;
  std::string text =
      fmt::format("committed: {}\ntransition: {}\nleader: {}\n", version_text(records.commit),
                  transition_text(records.transition),
                  records.leader.holder.name.empty() ? "nobody" : records.leader.holder.name);
  for (const Member& member : status.membership.members) {
    const char* const states[] = {"enrolled", "waiting", "member"};
    text += fmt::format("{} {}: {}", role_name(member.role), member.endpoint.name,
                        states[static_cast<unsigned>(member.state)]);
    const auto found = status.endpoints.find(member.endpoint.name);
    if (found == status.endpoints.end()) {
      text += ", silent\n";
      continue;
    }
    const StatusReply& reply = found->second;
    text += ", " + printable(reply.state);
    if (!reply.detail.empty()) text += " (" + printable(reply.detail) + ")";
    if (member.role == Role::kReceiver || member.role == Role::kOwner) {
      text += ", " + held_text(reply);
    }
    if (member.role == Role::kReceiver && reply.held) {
      const std::uint64_t lag = records.commit.id.version - reply.held->version;
      if (lag > 0) text += fmt::format(", {} behind", counted(lag, "version"));
    }
    if (member.role == Role::kGate) {
      text += reply.gate_open ? ", open" : ", closed: " + printable(reply.gate_reason);
    }
    text += "\n";
  }
  return text;
}

std::string status_line(const RunStatus& status) {
  const ControlRecords& records = status.membership.records;
  const auto leader = status.endpoints.find(records.leader.holder.name);
  std::string text = transition_text(records.transition);
  if (leader == status.endpoints.end()) return text + "; no leader answers";
  text += "; " + printable(leader->second.state);
  if (!leader->second.detail.empty()) text += ": " + printable(leader->second.detail);
  return text;
}

std::string abort_text(const ControlRecords& before, const ControlRecords& after) {
  if (after.commit.id != before.commit.id) {
    return fmt::format("a commit was found: {}\n", version_text(after.commit));
  }
  return fmt::format("{}; {} stays committed\n", transition_text(after.transition),
                     version_text(after.commit));
}

std::string restore_text(const std::vector<std::string>& receivers) {
  if (receivers.empty()) return "every receiver holds the committed version\n";
  return fmt::format("these restore the committed version: {}\n", fmt::join(receivers, ", "));
}

std::string local_text(const LocalResult& result) {
  std::string text =
      fmt::format("{} in {}, {}; {}, {}; {} of payloads, {}\n", counted(result.refits, "refit"),
                  counted(result.attempts, "attempt"), version_text(result.committed),
                  counted(result.kills, "kill"), counted(result.pauses, "pause"),
                  bytes_text(result.payload_bytes), seconds_text(result.seconds));
  text += fmt::format(
      "{}: {} compared with dense loads, {} differ; gates closed {} at most; {} of all weights "
      "while gates were open, {} differ\n",
      counted(result.receivers, "receiver"), bytes_text(result.bytes_compared),
      result.bytes_differing == 0 ? std::string("none") : bytes_text(result.bytes_differing),
      seconds_text(result.gate_seconds), counted(result.reads, "read"),
      result.reads_different == 0 ? std::string("none") : count_text(result.reads_different));
  return text;
}

}  // namespace dcr
