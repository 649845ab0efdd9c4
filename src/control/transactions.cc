#include "control/transactions.h"

#include <algorithm>
#include <utility>

#include "base/endpoint_name.h"
#include "base/mutant.h"

namespace dcr {
namespace {

std::string text_of(const Endpoint& endpoint) {
  return endpoint.name + " (incarnation " + std::to_string(endpoint.incarnation) + ")";
}

std::string text_of(VersionId id) {
  return "version " + std::to_string(id.version) + " of attempt " + std::to_string(id.baseline);
}

Status check_token(const LeaderRow& leader, std::uint64_t token) {
  if (token == 0) return {Code::kInvalidArgument, "leader token 0 is none: claim leadership first"};
  if (token == leader.token) return {};
  return {Code::kLostLeadership,
          "leader token " + std::to_string(token) + " is not the current one: " +
              (leader.token == 0
                   ? "nobody has claimed leadership yet"
                   : text_of(leader.holder) + " leads with token " + std::to_string(leader.token)) +
              "; stop, and leave gates and records to it"};
}

// That `attempt` is the one whose state the record has, and active.
Status check_active(const TransitionRecord& transition, std::uint64_t attempt) {
  if (attempt == 0) return {Code::kInvalidArgument, "attempt 0 is none: attempts count from 1"};
  const bool last = attempt == transition.attempt;
  if (last && transition.state == AttemptState::kActive) return {};
  return {Code::kConflict, "attempt " + std::to_string(attempt) + " is not active: attempt " +
                               std::to_string(transition.attempt) + " is the last one and " +
                               attempt_state_name(transition.state)};
}

Status check_inactive(const TransitionRecord& transition, const char* what) {
  if (transition.state != AttemptState::kActive) return {};
  return {Code::kConflict, std::string(what) + " while attempt " +
                               std::to_string(transition.attempt) +
                               " is active: mark it obsolete first"};
}

void make_obsolete(TransitionRecord* transition) {
  if (transition->state == AttemptState::kActive) transition->state = AttemptState::kObsolete;
}

// The row in which the endpoint's incarnation is alive.
Result<Member*> living(ControlState* state, const Endpoint& endpoint) {
  DCR_TRY(check_endpoint_name(endpoint.name));
  const auto found = state->members.find(endpoint.name);
  if (found == state->members.end()) {
    return Status(Code::kConflict, text_of(endpoint) +
                                       " is barred, or was never enrolled: enrol again and restore "
                                       "before joining");
  }
  if (found->second.endpoint.incarnation != endpoint.incarnation) {
    return Status(Code::kConflict, text_of(endpoint) + " is barred: incarnation " +
                                       std::to_string(found->second.endpoint.incarnation) +
                                       " has taken its place");
  }
  return &found->second;
}

Status check_restored(const Member& member, const std::optional<VersionId>& restored) {
  const bool receiver = member.role == Role::kReceiver;
  if (restored && !plausible(*restored)) {
    return {Code::kInvalidArgument, text_of(member.endpoint) + " says that it has restored " +
                                        text_of(*restored) + ", which cannot be"};
  }
  if (receiver || !restored) return {};
  return {Code::kInvalidArgument,
          text_of(member.endpoint) + " is no receiver and restores nothing"};
}

// Candidates of exactly the owners that will be bound.
Status check_candidates(const std::vector<const Member*>& bound,
                        const std::vector<OwnerCandidate>& candidates) {
  std::size_t next = 0;
  for (const Member* member : bound) {
    if (member->role != Role::kOwner) continue;
    if (next == candidates.size() || candidates[next].owner != member->endpoint.name) {
      return {Code::kConflict, "owner " + text_of(member->endpoint) +
                                   " is a member, but the request has no candidate of it in order "
                                   "of names: read the members again"};
    }
    if (candidates[next].candidate.incarnation != member->endpoint.incarnation) {
      return {Code::kConflict, "owner " + text_of(member->endpoint) +
                                   ": the candidate is of incarnation " +
                                   std::to_string(candidates[next].candidate.incarnation)};
    }
    ++next;
  }
  if (next == candidates.size()) return {};
  return {Code::kConflict, "the request has a candidate of " + candidates[next].owner +
                               ", which is no member that is an owner: read the members again"};
}

Status check_prepare(const ControlState& state, const PrepareRequest& request,
                     const std::vector<const Member*>& bound) {
  const ControlRecords& records = state.records;
  const TransitionRecord& last = records.transition;
  DCR_TRY(check_inactive(last, "a prepare"));
  if (request.after != last.attempt) {
    return {Code::kConflict, "the last attempt is " + std::to_string(last.attempt) + ", not " +
                                 std::to_string(request.after) + ": read the records again"};
  }
  if (request.base != records.commit.id) {
    return {Code::kConflict,
            "committed is " + text_of(records.commit.id) + ", not " + text_of(request.base)};
  }
  if (request.members_revision != records.members_revision) {
    return {Code::kConflict, "the membership has changed since revision " +
                                 std::to_string(request.members_revision) + " (it is " +
                                 std::to_string(records.members_revision) +
                                 " now): read the members again"};
  }
  for (const Role role : {Role::kOwner, Role::kReceiver}) {
    if (std::none_of(bound.begin(), bound.end(),
                     [role](const Member* member) { return member->role == role; })) {
      return {Code::kConflict, "no " + std::string(role_name(role)) +
                                   " is a member or waits to become one: there is nobody to refit"};
    }
  }
  if (last.dirty() && request.mode == AttemptMode::kMixed && !DCR_MUTANT("retry_is_mixed")) {
    return {Code::kConflict,
            "an earlier attempt may have written to receivers: the next one overwrites or is "
            "dense, not mixed"};
  }
  for (const Member* member : bound) {
    if (member->role != Role::kReceiver || has_version(*member, records.commit.id)) continue;
    if (request.mode == AttemptMode::kDense) continue;
    return {Code::kConflict, text_of(member->endpoint) +
                                 " has restored no version: the next attempt is dense, or binds "
                                 "receivers that have"};
  }
  return check_candidates(bound, request.candidates);
}

// Whether an owner's receivers may hold other uncommitted weights than its candidate's.
bool other_weights_written(const TransitionRecord& last, const OwnerCandidate& candidate) {
  if (DCR_MUTANT("other_weights_are_not_dense")) return false;
  for (const WrittenCandidate& written : last.written) {
    if (written.owner != candidate.owner) continue;
    return written.candidate.incarnation == 0 || written.candidate != candidate.candidate;
  }
  return last.dirty();
}

// Whether ownership may have moved since those weights were written: the owners are not the same.
bool owners_differ(const std::vector<WrittenCandidate>& written,
                   const std::vector<OwnerCandidate>& candidates) {
  return !std::equal(
      written.begin(), written.end(), candidates.begin(), candidates.end(),
      [](const WrittenCandidate& a, const OwnerCandidate& b) { return a.owner == b.owner; });
}

// Adds a candidate to what may be written; two of one owner make it unknown.
void note_written(std::vector<WrittenCandidate>* written, const std::string& owner,
                  const Candidate& candidate) {
  const auto place = std::lower_bound(
      written->begin(), written->end(), owner,
      [](const WrittenCandidate& entry, const std::string& name) { return entry.owner < name; });
  if (place == written->end() || place->owner != owner) {
    written->insert(place, {owner, candidate});
  } else if (place->candidate != candidate) {
    place->candidate = {};
  }
}

}  // namespace

Status check_records(const ControlRecords& records, std::uint64_t incarnations) {
  const TransitionRecord& last = records.transition;
  const VersionId made{last.base.version + 1, last.attempt};
  const bool committed = last.state == AttemptState::kCommitted;
  if (last.leader > records.leader.token) {
    return {Code::kCorrupt, "the last attempt's leader token was never claimed"};
  }
  if (records.commit.id != (committed ? made : last.base)) {
    return {Code::kCorrupt, "committed is " + text_of(records.commit.id) +
                                ", which is not what became of the last attempt"};
  }
  if (records.leader.holder.incarnation > incarnations) {
    return {Code::kCorrupt, text_of(records.leader.holder) + " leads but was never enrolled"};
  }
  return {};
}

std::vector<Member> member_list(const ControlState& state) {
  std::vector<Member> members;
  members.reserve(state.members.size());
  for (const auto& [name, member] : state.members) members.push_back(member);
  return members;
}

Result<ControlState> new_control_state(const RunId& run, const std::string& label) {
  DCR_TRY(check_label(label));
  ControlState state;
  state.records.run = run;
  state.records.commit.label = label;
  return state;
}

Result<Enrolment> enrol_in(ControlState* state, const EnrolRequest& request) {
  DCR_TRY(check_endpoint_name(request.name));
  if (request.role == Role::kReceiver) {
    DCR_TRY(check_endpoint_name(request.engine).with_context("engine of " + request.name));
  } else if (!request.engine.empty()) {
    return Status(Code::kInvalidArgument, request.name + ": " +
                                              (request.role == Role::kOwner ? "an " : "a ") +
                                              std::string(role_name(request.role)) +
                                              " has no engine, only receivers have one");
  }
  const auto found = state->members.find(request.name);
  if (found == state->members.end()) {
    if (state->members.size() >= kEndpointsMax) {
      return Status(Code::kTooLarge, "no room for " + request.name + ": " +
                                         std::to_string(kEndpointsMax) +
                                         " endpoints are enrolled, which is the limit; bar those "
                                         "that are gone");
    }
  } else if (found->second.role != request.role) {
    return Status(Code::kMismatch,
                  request.name + " is enrolled as " + std::string(role_name(found->second.role)) +
                      ", not as " + std::string(role_name(request.role)) + ": take another name");
  }
  if (found != state->members.end() && DCR_MUTANT("enrol_keeps_incarnation")) {
    return Enrolment{found->second.endpoint.incarnation, state->records};
  }
  Member& member = state->members[request.name];
  const std::uint64_t overtaken = member.overtaken;
  member = Member{};
  member.endpoint = {request.name, ++state->incarnations};
  member.role = request.role;
  member.engine = request.engine;
  member.overtaken = overtaken;
  ++state->records.members_revision;
  return Enrolment{state->incarnations, state->records};
}

Result<Joined> join_in(ControlState* state, const JoinRequest& request) {
  if (request.needs.size() > kNeedsBytesMax) {
    return Status(Code::kInvalidArgument,
                  request.endpoint.name + ": needs of " + std::to_string(request.needs.size()) +
                      " bytes are more than the limit of " + std::to_string(kNeedsBytesMax));
  }
  DCR_ASSIGN(Member* const member, living(state, request.endpoint));
  if (member->role == Role::kGate) {
    return Status(Code::kInvalidArgument, text_of(request.endpoint) +
                                              " is a gate: the receivers of its engine join, it "
                                              "does not");
  }
  DCR_TRY(check_restored(*member, request.restored));
  ControlRecords& records = state->records;
  const bool active = records.transition.state == AttemptState::kActive;
  const bool current = !request.restored || *request.restored == records.commit.id ||
                       DCR_MUTANT("join_takes_any_version");
  const bool proven = member->role != Role::kReceiver || request.restored;
  if (member->state == MemberState::kMember) {
    const bool joined = !active && current && proven;
    return Joined{joined ? JoinOutcome::kJoined : JoinOutcome::kAdmitted, records};
  }
  Member after = *member;
  after.restored = request.restored;
  after.needs = request.needs;
  JoinOutcome outcome = JoinOutcome::kJoined;
  if (!current) {
    outcome = JoinOutcome::kOvertaken;
    // Counted once, however often it asks.
    if (member->state == MemberState::kWaiting || member->restored != request.restored) {
      ++after.overtaken;
    }
    after.state = MemberState::kEnrolled;
  } else if (!proven || (active && !DCR_MUTANT("join_in_attempt"))) {
    outcome = JoinOutcome::kWaiting;
    after.state = MemberState::kWaiting;
  } else {
    after.overtaken = 0;
    after.state = MemberState::kMember;
  }
  if (after != *member) {
    *member = std::move(after);
    ++records.members_revision;
  }
  return Joined{outcome, records};
}

Result<ControlRecords> bar_in(ControlState* state, std::uint64_t token,
                              const std::vector<Endpoint>& barred) {
  DCR_TRY(check_token(state->records.leader, token));
  DCR_TRY(check_inactive(state->records.transition, "incarnations cannot be barred"));
  for (const Endpoint& endpoint : barred) {
    DCR_TRY(check_endpoint_name(endpoint.name));
    if (endpoint.incarnation > 0 && endpoint.incarnation <= state->incarnations) continue;
    return Status(Code::kInvalidArgument, text_of(endpoint) + ": no such incarnation was given");
  }
  bool changed = false;
  for (const Endpoint& endpoint : barred) {
    const auto found = state->members.find(endpoint.name);
    if (found == state->members.end()) continue;
    if (found->second.endpoint.incarnation > endpoint.incarnation) continue;
    state->members.erase(found);
    changed = true;
  }
  if (changed) ++state->records.members_revision;
  return state->records;
}

Result<ControlRecords> claim_in(ControlState* state, const Endpoint& holder,
                                const LeaderRow& seen) {
  DCR_ASSIGN(const Member* const member, living(state, holder));
  if (member->role != Role::kCoordinator) {
    return Status(Code::kConflict, text_of(holder) + " is enrolled as " +
                                       std::string(role_name(member->role)) +
                                       ": only coordinators lead");
  }
  ControlRecords& records = state->records;
  LeaderRow& leader = records.leader;
  // The claim was done already and its reply lost.
  if (leader.holder == holder && leader.token == seen.token + 1) return records;
  if (leader.token != seen.token || leader.beat != seen.beat) {
    return Status(Code::kConflict, "leadership moved on: " + text_of(leader.holder) +
                                       " leads with token " + std::to_string(leader.token) +
                                       ", beat " + std::to_string(leader.beat) +
                                       "; claim when both stand still");
  }
  leader = {holder, leader.token + 1, 0};
  make_obsolete(&records.transition);
  return records;
}

Result<LeaderRow> beat_in(ControlState* state, std::uint64_t token) {
  DCR_TRY(check_token(state->records.leader, token));
  ++state->records.leader.beat;
  return state->records.leader;
}

Result<TransitionRecord> prepare_in(ControlState* state, const PrepareRequest& request) {
  DCR_TRY(check_label(request.label));
  for (const OwnerCandidate& candidate : request.candidates) {
    DCR_TRY(check_endpoint_name(candidate.owner));
    if (candidate.candidate.counter <= kCounterMax) continue;
    return Status(Code::kInvalidArgument, candidate.owner + ": the candidate's counter is above " +
                                              std::to_string(kCounterMax));
  }
  ControlRecords& records = state->records;
  DCR_TRY(check_token(records.leader, request.token));
  const TransitionRecord& last = records.transition;
  // The prepare was done already and its reply lost.
  if (last.attempt == request.after + 1 && last.leader == request.token &&
      last.state == AttemptState::kActive) {
    return last;
  }
  const std::vector<Member> members = member_list(*state);
  const std::vector<const Member*> bound = bound_members(members, records.commit.id);
  DCR_TRY(check_prepare(*state, request, bound));

  TransitionRecord next;
  next.attempt = last.attempt + 1;
  next.leader = request.token;
  next.base = request.base;
  next.label = request.label;
  next.mode = request.mode;
  next.state = AttemptState::kActive;
  next.digest = request.digest;
  next.written = last.written;
  const bool all_dense = request.mode == AttemptMode::kDense ||
                         (last.dirty() && owners_differ(last.written, request.candidates));
  bool admitted = false;
  for (const Member* member : bound) {
    if (member->role == Role::kOwner) {
      const OwnerCandidate& candidate = request.candidates[next.owners.size()];
      next.owners.push_back({member->endpoint, candidate.candidate,
                             all_dense || other_weights_written(last, candidate)});
    } else {
      (member->role == Role::kNode ? next.nodes : next.receivers).push_back(member->endpoint);
    }
    if (member->state == MemberState::kMember) continue;
    Member& row = state->members[member->endpoint.name];
    row.state = MemberState::kMember;
    row.overtaken = 0;
    if (row.role == Role::kReceiver && !row.restored) {
      row.restored = VersionId{next.base.version + 1, next.attempt};
    }
    admitted = true;
  }
  if (admitted) ++records.members_revision;
  records.transition = std::move(next);
  return records.transition;
}

Result<TransitionRecord> open_in(ControlState* state, std::uint64_t attempt) {
  TransitionRecord& transition = state->records.transition;
  DCR_TRY(check_active(transition, attempt));
  if (DCR_MUTANT("open_notes_nothing")) return transition;
  for (const OwnerBinding& owner : transition.owners) {
    note_written(&transition.written, owner.endpoint.name, owner.candidate);
  }
  return transition;
}

Result<ControlRecords> commit_in(ControlState* state, std::uint64_t attempt) {
  ControlRecords& records = state->records;
  TransitionRecord& transition = records.transition;
  // The commit was done already and its reply lost.
  if (attempt != 0 && records.commit.id.baseline == attempt) return records;
  if (!DCR_MUTANT("commit_unfenced")) DCR_TRY(check_active(transition, attempt));
  if (records.commit.id != transition.base) {
    return Status(Code::kConflict, "committed is " + text_of(records.commit.id) + ", but attempt " +
                                       std::to_string(attempt) + " was made from " +
                                       text_of(transition.base));
  }
  records.commit = {{transition.base.version + 1, attempt}, transition.label};
  transition.state = AttemptState::kCommitted;
  transition.written.clear();
  return records;
}

Result<ControlRecords> mark_obsolete_in(ControlState* state, std::uint64_t attempt) {
  TransitionRecord& transition = state->records.transition;
  if (attempt == 0 || attempt > transition.attempt) {
    return Status(Code::kInvalidArgument, "attempt " + std::to_string(attempt) +
                                              " was never prepared: the last one is " +
                                              std::to_string(transition.attempt));
  }
  if (attempt == transition.attempt) make_obsolete(&transition);
  return state->records;
}

Result<ControlRecords> abort_in(ControlState* state, std::uint64_t token) {
  DCR_TRY(check_token(state->records.leader, token));
  TransitionRecord& transition = state->records.transition;
  make_obsolete(&transition);
  if (transition.state == AttemptState::kObsolete) {
    for (const OwnerBinding& owner : transition.owners) {
      note_written(&transition.written, owner.endpoint.name, {});
    }
    for (WrittenCandidate& written : transition.written) written.candidate = {};
  }
  return state->records;
}

}  // namespace dcr
