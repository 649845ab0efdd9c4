// What each operation of a ControlPlane does, as a function on the records: stores make it atomic
// and durable, and nothing else. An error means that nothing was changed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dcr/control.h"

namespace dcr {

// All that a store holds.
struct ControlState {
  ControlRecords records;
  std::uint64_t incarnations = 0;  // handed out so far
  std::map<std::string, Member> members;
  bool operator==(const ControlState&) const = default;
};

// What a new store holds. Error: kInvalidArgument for a label.
Result<ControlState> new_control_state(const RunId& run, const std::string& label);

Result<Enrolment> enrol_in(ControlState* state, const EnrolRequest& request);
Result<Joined> join_in(ControlState* state, const JoinRequest& request);
Result<ControlRecords> bar_in(ControlState* state, std::uint64_t token,
                              const std::vector<Endpoint>& barred);
Result<ControlRecords> claim_in(ControlState* state, const Endpoint& holder, const LeaderRow& seen);
Result<LeaderRow> beat_in(ControlState* state, std::uint64_t token);
Result<TransitionRecord> prepare_in(ControlState* state, const PrepareRequest& request);
Result<TransitionRecord> open_in(ControlState* state, std::uint64_t attempt);
Result<ControlRecords> commit_in(ControlState* state, std::uint64_t attempt);
Result<ControlRecords> mark_obsolete_in(ControlState* state, std::uint64_t attempt);
Result<ControlRecords> abort_in(ControlState* state, std::uint64_t token);

// The members, ascending by name.
std::vector<Member> member_list(const ControlState& state);

// That records that were read fit together, as they do after every transaction. Error: kCorrupt.
Status check_records(const ControlRecords& records, std::uint64_t incarnations);

}  // namespace dcr
