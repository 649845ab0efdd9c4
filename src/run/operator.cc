#include "run/operator.h"

#include <algorithm>
#include <set>
#include <utility>

#include "run/operator_restore.h"
#include "tensor/text.h"

namespace dcr {
namespace {

constexpr std::uint64_t kRepeatMs = 250;
constexpr std::uint64_t kOthersMs = 2'000;
constexpr std::uint64_t kLookAtCancelMs = 50;
constexpr std::size_t kAnswersWaitingMax = 65'536;

void add_engine(const OperatorReply& reply, EnginesReport* report) {
  ++report->engines;
  report->bytes_compared += reply.bytes_compared;
  report->bytes_differing += reply.bytes_differing;
  report->reads += reply.reads;
  report->reads_different += reply.reads_different;
  report->gate_seconds =
      std::max(report->gate_seconds, 1e-3 * static_cast<double>(reply.gate_closed_ms));
}

}  // namespace

std::vector<EngineStatus> engines_of(const RunConfig& config, const RunStatus& status) {
  std::map<std::string, std::set<std::string>> receivers;  // by engine
  for (const EngineConfig& engine : config.engines) {
    for (const PeerConfig& receiver : engine.receivers) {
      receivers[engine.gate.name].insert(receiver.name);
    }
  }
  for (const Member& member : status.membership.members) {
    if (member.role == Role::kGate) receivers[member.endpoint.name];
    if (member.role == Role::kReceiver) receivers[member.engine].insert(member.endpoint.name);
  }
  std::vector<EngineStatus> engines;
  for (const auto& [name, of] : receivers) {
    EngineStatus& shown = engines.emplace_back();
    shown.name = name;
    const auto gate = status.endpoints.find(name);
    if (gate != status.endpoints.end()) {
      shown.answered = true;
      shown.open = gate->second.gate_open;
      shown.reason = gate->second.gate_reason;
      shown.seconds = 1e-3 * static_cast<double>(gate->second.gate_for_ms);
    }
    bool all = true;
    for (const std::string& receiver : of) {
      const auto found = status.endpoints.find(receiver);
      all = all && found != status.endpoints.end() && found->second.held;
      if (!all) continue;
      const std::uint64_t version = found->second.held->version;
      shown.held = std::min(shown.held.value_or(version), version);
    }
    if (!all) shown.held.reset();
  }
  return engines;
}

Status refit_failure(const std::string& owner, const OperatorReply& reply,
                     std::uint64_t attempts_max) {
  Status failure = status_of(*reply.failure).with_context(owner);
  if (reply.attempts < attempts_max) return failure;
  return {
      Code::kConflict,
      "an operator is needed: the refit was given up after " + std::to_string(reply.attempts) +
          " attempts, version " + std::to_string(reply.committed.id.version) +
          " stays committed; see to what fails every time, and refit again: " + failure.message(),
      failure.tensor()};
}

bool is_operator(const RunPeers& peers, const std::string& name) {
  const std::optional<RunPeer> peer = peers.find(name);
  return peer && peer->role.is_operator;
}

Result<std::unique_ptr<Operator>> Operator::open(ProcessContext& context, const std::string& name) {
  DCR_ASSIGN(std::unique_ptr<Mailbox> mailbox, Mailbox::open(context, name));
  return std::make_unique<Operator>(context, name, std::move(mailbox));
}

Operator::Operator(ProcessContext& context, std::string name, std::unique_ptr<Mailbox> mailbox)
    : context_(context), name_(std::move(name)), mailbox_(std::move(mailbox)) {
  // Operators have no row in the control plane; each run of one is a life of its own.
  mailbox_->set_incarnation(next_id());
  mailbox_->start([this](const Endpoint& from, Message message) {
    static_cast<void>(answers_.try_push({from, std::move(message)}, kAnswersWaitingMax));
  });
}

void Operator::take_answer(std::uint64_t wait_ms) {
  auto answer = answers_.pop(wait_ms);
  if (!answer) return;
  const std::string& from = answer->first.name;
  if (auto* const reply = std::get_if<OperatorReply>(&answer->second)) {
    // A reply to an earlier command may come late.
    const auto last = replies_.find(from);
    if (last == replies_.end() || last->second.id <= reply->id) replies_[from] = std::move(*reply);
  } else if (auto* const status = std::get_if<StatusReply>(&answer->second)) {
    if (is_operator(*context_.peers(), from)) return;
    status_.endpoints[from] = std::move(*status);
    status_.incarnations[from] = answer->first.incarnation;
  }
}

Result<std::map<std::string, OperatorReply>> Operator::command(OperatorCommand command,
                                                               const std::vector<std::string>& to,
                                                               std::optional<std::uint64_t> wait_ms,
                                                               bool repeat_failures,
                                                               const std::function<void()>& idle) {
  command.id = command_id_ = next_id();
  std::map<std::string, OperatorReply> replies;
  const std::uint64_t begin = now_ms();
  std::uint64_t repeat_at = begin;
  std::optional<std::uint64_t> failed_at;
  while (replies.size() < to.size()) {
    const std::uint64_t now = now_ms();
    // The others may wait for the one that failed.
    if (failed_at && now - *failed_at >= kOthersMs) break;
    if (cancelled()) return Status(Code::kCancelled, "stopped");
    if (wait_ms && now - begin >= *wait_ms) break;
    if (now >= repeat_at) {
      for (const std::string& name : to) {
        if (!replies.contains(name)) mailbox_->send(name, 0, command);
      }
      repeat_at = now + kRepeatMs;
      if (idle) idle();
    }
    take_answer(repeat_at - now);
    for (const std::string& name : to) {
      const auto reply = replies_.find(name);
      if (reply == replies_.end() || reply->second.id != command.id) continue;
      if (reply->second.failure && repeat_failures) continue;
      if (reply->second.failure && !failed_at) failed_at = now;
      replies[name] = reply->second;
    }
  }
  return replies;
}

Result<RefitReport> Operator::refit(const std::string& path, const std::string& label,
                                    bool asynchronous, const std::function<void()>& idle) {
  OperatorCommand refit;
  refit.kind = OperatorCommand::Kind::kRefit;
  refit.path = path;
  refit.label = label;
  refit.asynchronous = asynchronous;
  DCR_ASSIGN(const ControlRecords records, context_.control().read());
  refit.base = records.commit.id;
  std::vector<std::string> owners;
  for (const PeerConfig& owner : context_.config().owner_peers) owners.push_back(owner.name);
  DCR_ASSIGN(const auto replies, command(std::move(refit), owners, std::nullopt, false, idle));
  RefitReport report;
  for (const auto& [owner, reply] : replies) {
    if (reply.failure) {
      return refit_failure(owner, reply, context_.config().waits.attempts_max);
    }
    report.committed = reply.committed;
    report.attempts = std::max(report.attempts, reply.attempts);
    report.payload_bytes += reply.payload_bytes;
    if (!reply.without_baseline.empty()) report.without_baseline = reply.without_baseline;
    if (reply.gate_closed_early) report.gate_closed_early = reply.gate_closed_early;
  }
  return report;
}

Result<RunStatus> Operator::status(std::uint64_t wait_ms) {
  status_ = {};
  DCR_ASSIGN(status_.membership, context_.control().read_members());
  std::set<std::string> waiting;
  for (const PeerConfig& peer : all_peers(context_.config())) waiting.insert(peer.name);
  for (const Member& member : status_.membership.members) waiting.insert(member.endpoint.name);
  std::erase_if(waiting, [this](const auto& name) { return is_operator(*context_.peers(), name); });
  const std::uint64_t begin = now_ms();
  std::uint64_t repeat_at = begin;
  while (status_.endpoints.size() < waiting.size()) {
    const std::uint64_t now = now_ms();
    const std::uint64_t spent = now - begin;
    if (now >= repeat_at) {
      // An answer is lost where the other's connection to this operator is not back yet.
      for (const std::string& name : waiting) {
        if (!status_.endpoints.contains(name)) mailbox_->send(name, 0, StatusRequest{});
      }
      repeat_at = now + kRepeatMs;
    }
    if (spent >= wait_ms) break;
    if (cancelled()) return Status(Code::kCancelled, "stopped");
    take_answer(std::min(wait_ms - spent, kLookAtCancelMs));
  }
  for (const auto& [name, reply] : status_.endpoints) waiting.erase(name);
  status_.silent.assign(waiting.begin(), waiting.end());
  return status_;
}

Result<RunCounts> Operator::counts(std::uint64_t wait_ms) {
  DCR_ASSIGN(const Membership members, context_.control().read_members());
  std::set<std::string> gates, all;
  for (const EngineConfig& engine : context_.config().engines) gates.insert(engine.gate.name);
  for (const PeerConfig& owner : context_.config().owner_peers) all.insert(owner.name);
  for (const Member& member : members.members) {
    if (member.role == Role::kGate) gates.insert(member.endpoint.name);
    if (member.role == Role::kOwner) all.insert(member.endpoint.name);
  }
  all.insert(gates.begin(), gates.end());
  const std::vector<std::string> asked(all.begin(), all.end());
  OperatorCommand count;
  count.kind = OperatorCommand::Kind::kCount;
  DCR_ASSIGN(const auto replies, command(std::move(count), asked, wait_ms, false, {}));
  RunCounts counts;
  for (const auto& [name, reply] : replies) {
    if (gates.contains(name)) {
      add_engine(reply, &counts.engines);
      continue;
    }
    ++counts.owners;
    counts.refit_seconds =
        std::max(counts.refit_seconds, 1e-3 * static_cast<double>(reply.refit_ms));
    counts.payload_bytes += reply.payload_bytes;
  }
  return counts;
}

Result<EnginesReport> Operator::verify(const std::string& path,
                                       const std::vector<std::string>& engines,
                                       std::uint64_t wait_ms, const std::function<void()>& idle) {
  OperatorCommand verify;
  verify.kind = OperatorCommand::Kind::kVerify;
  verify.path = path;
  DCR_ASSIGN(const auto replies, command(std::move(verify), engines, wait_ms, true, idle));
  EnginesReport report;
  for (const auto& [engine, reply] : replies) add_engine(reply, &report);
  if (report.engines == engines.size()) return report;
  DCR_ASSIGN(const RunStatus now, status(kOthersMs));
  std::vector<std::string> missing;
  for (const std::string& engine : engines) {
    if (replies.contains(engine)) continue;
    std::string why = gate_waits_for(now, engine, 0);
    const auto last = replies_.find(engine);
    const bool failed =
        last != replies_.end() && last->second.id == command_id_ && last->second.failure;
    if (why.empty() && failed) {
      why = engine + " says: " + last->second.failure->message;
    }
    missing.push_back(why.empty() ? engine + " compares" : why);
  }
  return Status(Code::kUnavailable,
                "within " + std::to_string(wait_ms) + " ms not compared: " + joined(missing));
}

}  // namespace dcr
