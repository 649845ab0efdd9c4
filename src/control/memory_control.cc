#include "control/memory_control.h"

#include "base/endpoint_name.h"

namespace dcr {

using Lock = std::lock_guard<std::mutex>;

Result<ControlRecords> MemoryControl::read() {
  const Lock lock(mutex_);
  return state_.records;
}

Result<std::optional<Member>> MemoryControl::read_member(const std::string& name) {
  DCR_TRY(check_endpoint_name(name));
  const Lock lock(mutex_);
  const auto found = state_.members.find(name);
  if (found == state_.members.end()) return std::optional<Member>();
  return std::optional<Member>(found->second);
}

Result<Membership> MemoryControl::read_members() {
  const Lock lock(mutex_);
  return Membership{state_.records, member_list(state_)};
}

Result<Enrolment> MemoryControl::enrol(const EnrolRequest& request) {
  const Lock lock(mutex_);
  return enrol_in(&state_, request);
}

Result<Joined> MemoryControl::join(const JoinRequest& request) {
  const Lock lock(mutex_);
  return join_in(&state_, request);
}

Result<ControlRecords> MemoryControl::bar(std::uint64_t token,
                                          const std::vector<Endpoint>& barred) {
  const Lock lock(mutex_);
  return bar_in(&state_, token, barred);
}

Result<ControlRecords> MemoryControl::claim(const Endpoint& holder, const LeaderRow& seen) {
  const Lock lock(mutex_);
  return claim_in(&state_, holder, seen);
}

Result<LeaderRow> MemoryControl::beat(std::uint64_t token) {
  const Lock lock(mutex_);
  return beat_in(&state_, token);
}

Result<TransitionRecord> MemoryControl::prepare(const PrepareRequest& request) {
  const Lock lock(mutex_);
  return prepare_in(&state_, request);
}

Result<TransitionRecord> MemoryControl::open(std::uint64_t attempt) {
  const Lock lock(mutex_);
  return open_in(&state_, attempt);
}

Result<ControlRecords> MemoryControl::commit(std::uint64_t attempt) {
  const Lock lock(mutex_);
  return commit_in(&state_, attempt);
}

Result<ControlRecords> MemoryControl::mark_obsolete(std::uint64_t attempt) {
  const Lock lock(mutex_);
  return mark_obsolete_in(&state_, attempt);
}

Result<ControlRecords> MemoryControl::abort_transition(std::uint64_t token) {
  const Lock lock(mutex_);
  return abort_in(&state_, token);
}

}  // namespace dcr
