#include "run/operator_restore.h"

#include <set>
#include <utility>

#include "runtime/event_queue.h"
#include "tensor/text.h"

namespace dcr {
namespace {

constexpr std::uint64_t kAgainMs = 250;
constexpr std::uint64_t kAskMs = 2'000;
constexpr std::uint64_t kAllSilentMs = 60'000;
// Owners hear of a commit, and do something about it, a moment after it.
constexpr std::uint64_t kBaselinesMs = 10'000;
// The leader beats between a look at it and the claim.
constexpr unsigned kClaimsMax = 10;

// What it says in a life later than `incarnation`.
const StatusReply* reply_of(const RunStatus& status, const std::string& name,
                            std::uint64_t incarnation) {
  const auto found = status.endpoints.find(name);
  if (found == status.endpoints.end()) return nullptr;
  const auto in = status.incarnations.find(name);
  return in != status.incarnations.end() && in->second > incarnation ? &found->second : nullptr;
}

bool holds(const StatusReply& reply, std::uint64_t version) {
  return reply.held && reply.held->version >= version;
}

std::string text_of(const std::string& name, const StatusReply& reply) {
  return name + " holds " +
         (reply.held ? "version " + std::to_string(reply.held->version) : "no version") +
         " and is " + reply.state + (reply.detail.empty() ? "" : ", " + reply.detail);
}

// A receiver in a life that has begun, and will end with K or begin anew by itself.
bool is_on_its_way(const StatusReply& reply) {
  return reply.state == "enrolling" || reply.state == "proving_base" || reply.state == "restoring";
}

bool is_refused(const StatusReply& reply) { return reply.state == "refused"; }

// Before the first refit of a run that has no base nobody can hold K.
bool has_no_weights(const RunConfig& config, const ControlRecords& records) {
  return config.base.empty() && records.commit.id.version == 0;
}

std::set<std::string> gates_of(const RunConfig& config, const RunStatus& status) {
  std::set<std::string> gates;
  for (const EngineConfig& engine : config.engines) gates.insert(engine.gate.name);
  for (const Member& member : status.membership.members) {
    if (member.role == Role::kGate) gates.insert(member.endpoint.name);
  }
  return gates;
}

std::vector<std::string> owners_without_baseline(const RunStatus& status) {
  std::vector<std::string> owners;
  for (const Member& member : status.membership.members) {
    if (member.role != Role::kOwner) continue;
    const StatusReply* const reply = reply_of(status, member.endpoint.name, 0);
    if (reply == nullptr || reply->state != "idle") continue;
    if (reply->held != status.membership.records.commit.id) owners.push_back(member.endpoint.name);
  }
  return owners;
}

}  // namespace

std::vector<std::string> names_of(const std::vector<Member>& members) {
  std::vector<std::string> names;
  names.reserve(members.size());
  for (const Member& member : members) names.push_back(member.endpoint.name);
  return names;
}

std::string RestoreProgress::text() const {
  std::vector<std::string> all = receivers;
  all.insert(all.end(), gates.begin(), gates.end());
  return joined(all);
}

std::string gate_waits_for(const RunStatus& status, const std::string& name,
                           std::uint64_t version) {
  const StatusReply* const reply = reply_of(status, name, 0);
  if (reply == nullptr) return "gate " + name + " is silent";
  if (!reply->gate_open) return "gate " + name + " is closed, " + reply->gate_reason;
  return holds(*reply, version) ? "" : "gate " + name + " is open for an earlier version";
}

RestoreProgress restore_progress(const RunConfig& config, const RunStatus& status,
                                 const std::vector<Member>& receivers, std::uint64_t version) {
  RestoreProgress progress;
  std::set<std::string> gates = gates_of(config, status);
  for (const Member& receiver : receivers) {
    const std::string& name = receiver.endpoint.name;
    const StatusReply* const reply = reply_of(status, name, receiver.endpoint.incarnation);
    gates.insert(receiver.engine);
    if (reply == nullptr) {
      const bool old = reply_of(status, name, 0) != nullptr;
      progress.silent = progress.silent && !old;
      progress.receivers.push_back(name + (old ? " begins anew" : " is silent"));
    } else if (is_refused(*reply)) {
      progress.refused.push_back(name + " takes no part: " + reply->detail);
    } else if (!holds(*reply, version)) {
      progress.silent = false;
      progress.receivers.push_back(text_of(name, *reply));
    }
  }
  for (const Member& receiver : receivers) {
    const StatusReply* const reply = reply_of(status, receiver.endpoint.name, 0);
    if (reply != nullptr && is_refused(*reply)) gates.erase(receiver.engine);
  }
  for (const std::string& gate : gates) {
    std::string waits = gate_waits_for(status, gate, version);
    if (waits.empty()) continue;
    progress.silent = progress.silent && reply_of(status, gate, 0) == nullptr;
    progress.gates.push_back(std::move(waits));
  }
  progress.without_baseline = owners_without_baseline(status);
  return progress;
}

Result<std::vector<Member>> Operator::restore(std::uint64_t wait_ms) {
  DCR_ASSIGN(const RunStatus now, status(wait_ms));
  const ControlRecords& records = now.membership.records;
  const VersionId committed = records.commit.id;
  std::vector<Member> behind;
  if (has_no_weights(context_.config(), records)) return behind;
  std::vector<Endpoint> barred;
  std::set<std::string> enrolled;
  for (const Member& member : now.membership.members) {
    if (member.role != Role::kReceiver) continue;
    enrolled.insert(member.endpoint.name);
    const StatusReply* const reply = reply_of(now, member.endpoint.name, 0);
    // What was committed while answers came is no reason either.
    const bool later = reply != nullptr && holds(*reply, committed.version + 1);
    if (later || (reply != nullptr && reply->held == committed)) continue;
    behind.push_back(member);
    if (reply != nullptr && (is_refused(*reply) || is_on_its_way(*reply))) {
      behind.back().endpoint.incarnation = 0;
    } else {
      barred.push_back(member.endpoint);
    }
  }
  for (const EngineConfig& engine : context_.config().engines) {
    for (const PeerConfig& receiver : engine.receivers) {
      if (enrolled.contains(receiver.name)) continue;
      Member& away = behind.emplace_back();
      away.endpoint.name = receiver.name;
      away.role = Role::kReceiver;
      away.engine = engine.gate.name;
    }
  }
  if (!barred.empty()) DCR_TRY(bar(barred));
  return behind;
}

Status Operator::bar(const std::vector<Endpoint>& endpoints) {
  ControlPlane& control = context_.control();
  for (unsigned claims = 1;; ++claims) {
    DCR_ASSIGN(const Enrolment enrolled, control.enrol({name_, Role::kCoordinator, {}}));
    const ControlRecords& records = enrolled.records;
    if (records.transition.state == AttemptState::kActive) {
      return {Code::kConflict, "attempt " + std::to_string(records.transition.attempt) +
                                   " is active: wait for it, or end it with dcr abort"};
    }
    const Result<ControlRecords> claimed =
        control.claim({name_, enrolled.incarnation}, records.leader);
    if (claimed.ok()) return control.bar(claimed->leader.token, endpoints).status();
    if (claimed.status().code() != Code::kConflict || claims == kClaimsMax) {
      return claimed.status();
    }
  }
}

Status Operator::wait_for_restored(const std::vector<Member>& receivers,
                                   const std::function<void(const std::string& what)>& waits) {
  DCR_ASSIGN(const ControlRecords records, context_.control().read());
  if (has_no_weights(context_.config(), records)) return {};
  const std::uint64_t restore_ms = context_.config().waits.restore_ms;
  std::uint64_t changed_at = now_ms();
  std::uint64_t baselines_at = changed_at;  // when somebody could send what is missing
  std::string what;
  EventQueue<bool> nothing;
  while (true) {
    DCR_ASSIGN(const RunStatus status_now, status(kAskMs));
    const RestoreProgress progress =
        restore_progress(context_.config(), status_now, receivers, records.commit.id.version);
    if (progress.done()) {
      if (progress.refused.empty()) return {};
      return {Code::kUnsupported, joined(progress.refused)};
    }
    const std::uint64_t now = now_ms();
    if (std::string next = progress.text(); next != what) {
      what = std::move(next);
      changed_at = now;
      if (waits) waits(what);
    }
    const std::vector<std::string>& without = progress.without_baseline;
    if (without.empty() || progress.receivers.empty()) baselines_at = now;
    if (now - baselines_at >= kBaselinesMs) {
      const VersionId committed = status_now.membership.records.commit.id;
      return {Code::kConflict, "an operator is needed: refit again, which sends everything, for " +
                                   joined(without) + " cannot send version " +
                                   std::to_string(committed.version) +
                                   " without a baseline of it: " + what};
    }
    const std::uint64_t stood_ms = now - changed_at;
    if (stood_ms >= restore_ms || (progress.silent && stood_ms >= kAllSilentMs)) {
      return {Code::kUnavailable, "for " + std::to_string(stood_ms) + " ms: " + what};
    }
    nothing.pop(kAgainMs);
  }
}

}  // namespace dcr
