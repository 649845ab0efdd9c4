#include "sim/oracle.h"

#include <algorithm>

#include "sim/world.h"

namespace dcr {
namespace {

std::string text_of(VersionId id) {
  return "version " + std::to_string(id.version) + " of attempt " + std::to_string(id.baseline);
}

}  // namespace

Oracle::Oracle(World& world) : world_(world) { history_[0] = {{}, World::kBaseLabel}; }

bool Oracle::was_committed(const CommitRecord& record) const {
  const auto found = history_.find(record.id.version);
  return found != history_.end() && found->second == record;
}

const Oracle::Fence& Oracle::fence(const SimProcess& process) {
  Fence& fence = fences_[&process];
  if (fence.life != process.life()) fence = {process.life(), 0, 0};
  return fence;
}

void Oracle::on_send(const SimProcess& from, const Message& message) {
  if (const auto* const stopped = std::get_if<Stopped>(&message)) {
    fence(from);
    std::uint64_t& through = fences_[&from].stopped;
    through = std::max(through, stopped->attempt);
  } else if (const auto* const prepared = std::get_if<Prepared>(&message)) {
    fence(from);
    Fence& last = fences_[&from];
    if (prepared->attempt <= last.stopped) {
      world_.fail(from.name() + " is prepared for attempt " + std::to_string(prepared->attempt) +
                  ", which it had called stopped");
    }
    last.prepared = std::max(last.prepared, prepared->attempt);
  }
}

void Oracle::on_call(const ControlRequest& request, const ControlReply& reply) {
  if (!reply.status.ok()) return;
  if (const auto* const open = std::get_if<OpenRequest>(&request)) {
    opened_ = open->attempt;
    written_[open->attempt] = std::get<TransitionRecord>(reply.value).owners;
  }
  if (std::holds_alternative<PrepareRequest>(request)) {
    check_repair(std::get<TransitionRecord>(reply.value));
  }
  if (const auto* const records = std::get_if<ControlRecords>(&reply.value)) {
    const TransitionRecord& last = records->transition;
    if (last.state == AttemptState::kObsolete) {
      obsolete_.insert(last.attempt);
      aborted_ = aborted_ || std::holds_alternative<AbortRequest>(request);
    }
    if (records->commit != committed()) {
      world_.fail("K is " + text_of(records->commit.id) + ", which no commit made it");
    }
  }
  const auto* const join = std::get_if<JoinRequest>(&request);
  const auto* const joined = std::get_if<Joined>(&reply.value);
  if (join == nullptr || joined == nullptr || joined->outcome != JoinOutcome::kJoined) return;
  SimProcess* const process = world_.find(join->endpoint);
  if (process == nullptr || process->role() != Role::kReceiver) return;
  // Who has taken part in an attempt since the commit was admitted by its prepare; that it joined
  // is then answered again, whatever the attempt has written.
  if (fence(*process).prepared > committed().id.baseline) return;
  compare(static_cast<ReceiverProcess&>(*process), committed(), "joins");
}

// What attempts since the last commit may have written, an attempt overwrites: all that has changed
// where the weights are the same, else everything.
void Oracle::check_repair(const TransitionRecord& attempt) {
  for (const auto& [opened, owners] : written_) {
    if (attempt.mode == AttemptMode::kMixed) {
      world_.fail("attempt " + std::to_string(attempt.attempt) + " is mixed after attempt " +
                  std::to_string(opened) + " was opened");
    }
    for (const OwnerBinding& owner : attempt.owners) {
      const bool same = std::any_of(owners.begin(), owners.end(), [&](const OwnerBinding& before) {
        return before.endpoint.name == owner.endpoint.name && before.candidate == owner.candidate;
      });
      if (owner.dense || (same && !aborted_ && owners.size() == attempt.owners.size())) continue;
      world_.fail(owner.endpoint.name + " does not send everything after attempt " +
                  std::to_string(opened) + " was opened");
    }
  }
}

void Oracle::on_commit(const ControlRecords& before, const ControlRecords& after) {
  if (before.commit == after.commit) return;
  const CommitRecord& commit = after.commit;
  const TransitionRecord& attempt = before.transition;
  world_.trace([&] { return "commit of " + text_of(commit.id) + ", " + commit.label; });
  if (commit.id.version != before.commit.id.version + 1 || commit.id.baseline != attempt.attempt ||
      attempt.state != AttemptState::kActive || obsolete_.contains(attempt.attempt)) {
    world_.fail("K becomes " + text_of(commit.id) + " after " + text_of(before.commit.id));
  }
  if (attempt.leader != before.leader.token) {
    world_.fail("a coordinator that was replaced commits " + text_of(commit.id));
  }
  const auto weights = world_.trainer().weights_of(commit.label);
  if (!weights) return world_.fail("committed under the label " + commit.label);
  if (world_.trainer().told_failed(commit.label)) {
    world_.fail("the refit " + commit.label + " is committed after it had failed for good");
  }
  written_.clear();
  aborted_ = false;
  history_[commit.id.version] = commit;
  if (history_.size() > kRemembered) history_.erase(history_.begin());
  obsolete_.erase(obsolete_.begin(), obsolete_.lower_bound(attempt.attempt));
  payloads_.erase(payloads_.begin(), payloads_.lower_bound(attempt.attempt));
  for (const Endpoint& endpoint : attempt.receivers) {
    SimProcess* const process = world_.find(endpoint);
    if (process == nullptr) continue;
    const auto& receiver = static_cast<ReceiverProcess&>(*process);
    compare(receiver, commit, "is committed");
    if (receiver.gate().serving()) {
      world_.fail("the gate of " + endpoint.name + " is open at the commit of " +
                  text_of(commit.id));
    }
  }
  check_members();
}

// Whoever is a member takes part in every attempt: none serves what was committed before.
void Oracle::check_members() {
  const Membership membership = world_.control().plane().read_members().value();
  for (const Member& member : membership.members) {
    if (member.role != Role::kReceiver || member.state != MemberState::kMember) continue;
    SimProcess* const process = world_.find(member.endpoint);
    if (process == nullptr) continue;
    const auto& serving = static_cast<ReceiverProcess&>(*process).gate().serving();
    if (serving && *serving != committed().id) {
      world_.fail(member.endpoint.name + " is a member and its gate serves " + text_of(*serving) +
                  " when " + text_of(committed().id) + " is committed");
    }
  }
}

void Oracle::compare(const ReceiverProcess& receiver, const CommitRecord& committed,
                     const char* when) {
  const auto weights = world_.trainer().weights_of(committed.label);
  if (!weights) return world_.fail("the label " + committed.label + " was never given");
  const auto differs = receiver.model().differs(world_.model().dense(*weights, receiver.rank()));
  if (differs) {
    world_.diverged(receiver.name() + " " + when + ", but does not hold " + text_of(committed.id) +
                    ": " + *differs);
  }
  if (receiver.writing()) {
    world_.fail(receiver.name() + " " + when + " while it writes");
  }
}

void Oracle::on_write(const ReceiverProcess& receiver, const StreamId& stream) {
  const std::string what = receiver.name() + " writes of " +
                           (stream.restore ? "restore " : "attempt ") +
                           std::to_string(stream.number);
  if (receiver.gate().serving()) {
    world_.fail(what + " while its gate is open");
  }
  if (stream.restore) return;
  const Fence& last = fence(receiver);
  if (stream.number > opened_) world_.fail(what + ", which was not opened");
  if (stream.number <= last.stopped) world_.fail(what + ", which it had called stopped");
  if (stream.number < last.prepared) world_.fail(what + ", though a later one is prepared");
}

void Oracle::on_open(const GateProcess& gate, const CommitRecord& committed) {
  if (!was_committed(committed)) {
    return world_.fail(gate.name() + " opens for " + text_of(committed.id) + " " + committed.label +
                       ", which is not what was committed");
  }
  world_.trace([&] { return gate.name() + " opens for " + text_of(committed.id); });
  for (const ReceiverProcess* receiver : gate.receivers()) {
    compare(*receiver, committed, "serves requests");
  }
}

void Oracle::on_put(const OwnerProcess& owner, std::uint64_t attempt, bool restore) {
  if (restore) return;
  if (attempt <= fence(owner).stopped) {
    world_.fail(owner.name() + " sends of attempt " + std::to_string(attempt) +
                ", which it had called stopped");
  }
}

void Oracle::on_hand_over(const NodeProcess& node, const StreamId& stream) {
  if (!stream.restore && stream.number <= fence(node).stopped) {
    world_.fail(node.name() + " hands over of attempt " + std::to_string(stream.number) +
                ", which it had called stopped");
  }
}

void Oracle::on_baseline(const OwnerProcess& owner, std::uint64_t version) {
  if (version > committed().id.version) {
    world_.fail(owner.name() + " makes version " + std::to_string(version) +
                " its baseline, which is not committed");
  }
}

void Oracle::on_constructed(std::uint64_t attempt, const PrepareResult& result) {
  std::uint64_t& payloads = payloads_[attempt];
  payloads += result.pipeline.payloads;
  payloads_most_ = std::max(payloads_most_, payloads);
}

void Oracle::on_refit(const std::string& label, const CommitRecord& committed) {
  if (!was_committed(committed) || committed.label != label) {
    world_.fail("refit " + label + " returns " + text_of(committed.id) + " " + committed.label +
                ", which is not what was committed");
  }
}

void Oracle::on_refit_failed(const std::string& label, std::uint64_t after, bool unknown) {
  if (unknown) return;
  for (const auto& [version, commit] : history_) {
    if (commit.id.baseline > after && commit.label == label) {
      world_.fail("refit " + label + " fails, but is committed as " + text_of(commit.id));
    }
  }
}

Status Oracle::check_base(const std::vector<std::vector<Digest>>& digests,
                          std::uint32_t weights) const {
  if (digests == world_.model().digests(weights)) return {};
  return {Code::kMismatch, "the base that was loaded is another than the owners'"};
}

}  // namespace dcr
