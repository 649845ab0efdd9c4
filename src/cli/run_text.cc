#include "cli/run_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "cli/text.h"

namespace dcr {
namespace {

std::string version_text(const CommitRecord& record) {
  return fmt::format("version {} ({})", record.id.version, printable(record.label));
}

// "attempt 4 is active, for version 3, mixed".
std::string transition_text(const TransitionRecord& transition) {
  if (transition.attempt == 0) return "no attempt yet";
  return fmt::format("attempt {} is {}, for version {}, {}{}", transition.attempt,
                     attempt_state_name(transition.state), transition.base.version + 1,
                     attempt_mode_name(transition.mode),
                     transition.dirty() ? ", some of it may be written" : "");
}

std::string held_text(const std::optional<std::uint64_t>& version) {
  return version ? fmt::format("holds version {}", *version) : "holds no version";
}

// "open for 3.0 s, holds version 2, committed is version 3: 1 version behind".
std::string engine_text(const EngineStatus& engine, std::uint64_t committed) {
  std::string text = "gate is silent";
  if (engine.answered) {
    text = fmt::format("{} for {}", engine.open ? "open" : "closed", seconds_text(engine.seconds));
    if (!engine.open) text += ": " + printable(engine.reason);
  }
  text += fmt::format("; {}, committed is version {}", held_text(engine.held), committed);
  if (engine.held && *engine.held < committed) {
    text += fmt::format(": {} behind", counted(committed - *engine.held, "version"));
  }
  return text;
}

// "3 constructing, 1 sent", of those that answered.
std::string states_text(const RunStatus& status, Role role) {
  std::map<std::string, std::uint64_t> counts;
  for (const Member& member : status.membership.members) {
    if (member.role != role) continue;
    const auto found = status.endpoints.find(member.endpoint.name);
    if (found != status.endpoints.end()) ++counts[printable(found->second.state)];
  }
  std::vector<std::string> texts;
  texts.reserve(counts.size());
  for (const auto& [state, count] : counts) texts.push_back(fmt::format("{} {}", count, state));
  return fmt::format("{}", fmt::join(texts, ", "));
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
  if (report.gate_closed_early) {
    text +=
        fmt::format("gates were closed early, {} after the attempt was prepared: {}\n",
                    seconds_text(1e-3 * static_cast<double>(report.gate_closed_early->after_ms)),
                    printable(report.gate_closed_early->reason));
  }
  return text;
}

std::string status_text(const RunStatus& status, const std::vector<EngineStatus>& engines) {
  const ControlRecords& records = status.membership.records;
  std::string text =
      fmt::format("committed: {}\ntransition: {}\nleader: {}\n", version_text(records.commit),
                  transition_text(records.transition),
                  records.leader.holder.name.empty() ? "nobody" : records.leader.holder.name);
  for (const EngineStatus& engine : engines) {
    text +=
        fmt::format("engine {}: {}\n", engine.name, engine_text(engine, records.commit.id.version));
  }
  for (const Member& member : status.membership.members) {
    if (member.role == Role::kGate) continue;  // it is the engine's
    text += fmt::format("{} {}: {}", role_name(member.role), member.endpoint.name,
                        member_state_name(member.state));
    const auto found = status.endpoints.find(member.endpoint.name);
    if (found == status.endpoints.end()) {
      text += ", silent\n";
      continue;
    }
    const StatusReply& reply = found->second;
    text += ", " + printable(reply.state);
    if (!reply.detail.empty()) text += " (" + printable(reply.detail) + ")";
    if (member.role == Role::kReceiver || member.role == Role::kOwner) {
      text += ", " + held_text(reply.held ? std::optional(reply.held->version) : std::nullopt);
    }
    text += "\n";
  }
  return text;
}

std::string status_line(const RunStatus& status) {
  const ControlRecords& records = status.membership.records;
  const auto leader = status.endpoints.find(records.leader.holder.name);
  std::string text = transition_text(records.transition);
  if (leader == status.endpoints.end()) {
    text += "; no leader answers";
  } else {
    text += "; " + printable(leader->second.state);
    if (!leader->second.detail.empty()) text += ": " + printable(leader->second.detail);
  }
  for (const Role role : {Role::kOwner, Role::kNode, Role::kReceiver, Role::kGate}) {
    const std::string states = states_text(status, role);
    if (!states.empty()) text += fmt::format("; {}s: {}", role_name(role), states);
  }
  return text;
}

std::string abort_text(bool commit_found, const ControlRecords& after) {
  if (commit_found) return fmt::format("a commit was found: {}\n", version_text(after.commit));
  return fmt::format("{}; {} stays committed\n", transition_text(after.transition),
                     version_text(after.commit));
}

std::string restore_text(const std::vector<std::string>& receivers) {
  if (receivers.empty()) return "every receiver holds the committed version\n";
  return fmt::format("these have restored the committed version, and serve it: {}\n",
                     fmt::join(receivers, ", "));
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
  for (const LocalEarlyClose& early : result.gates_closed_early) {
    text +=
        fmt::format("version {}: gates were closed early, {} after the attempt was prepared: {}\n",
                    early.version, seconds_text(early.seconds), printable(early.reason));
  }
  return text;
}

}  // namespace dcr
