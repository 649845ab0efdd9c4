// What dcr/control.h declares for every store and every user of one.
#include "dcr/control.h"

#include <algorithm>

namespace dcr {

std::string_view role_name(Role role) {
  switch (role) {
    case Role::kCoordinator:
      return "coordinator";
    case Role::kOwner:
      return "owner";
    case Role::kNode:
      return "node";
    case Role::kReceiver:
      return "receiver";
    case Role::kGate:
      return "gate";
  }
  return "unknown";
}

bool has_version(const Member& member, VersionId committed) {
  return member.restored && member.restored->baseline <= committed.baseline;
}

std::vector<const Member*> bound_members(const std::vector<Member>& members, VersionId committed) {
  const auto is_bound = [committed](const Member& member) {
    if (member.state == MemberState::kEnrolled) return false;
    return member.state == MemberState::kMember || member.role != Role::kReceiver ||
           member.restored == committed;
  };
  const bool some_restored = std::any_of(members.begin(), members.end(), [&](const Member& member) {
    return member.role == Role::kReceiver && is_bound(member) && has_version(member, committed);
  });
  std::vector<const Member*> bound;
  for (const Member& member : members) {
    if (member.role == Role::kCoordinator || member.role == Role::kGate) continue;
    const bool last_resort =
        member.state == MemberState::kWaiting && !member.restored && !some_restored;
    if (is_bound(member) || last_resort) bound.push_back(&member);
  }
  return bound;
}

Result<AttemptOutcome> ControlPlane::read_commit(std::uint64_t attempt, VersionId base) {
  DCR_ASSIGN(const ControlRecords records, mark_obsolete(attempt));
  if (records.commit.id.baseline == attempt) return AttemptOutcome::kCommitted;
  return records.commit.id == base ? AttemptOutcome::kNotCommitted : AttemptOutcome::kConflict;
}

Status check_label(const std::string& label) {
  if (label.size() > kLabelBytesMax) {
    return {Code::kInvalidArgument, "a label of " + std::to_string(label.size()) +
                                        " bytes is longer than the limit of " +
                                        std::to_string(kLabelBytesMax)};
  }
  for (const char letter : label) {
    const auto byte = static_cast<unsigned char>(letter);
    if (byte >= 0x20 && byte != 0x7f) continue;
    return {Code::kInvalidArgument,
            "a label has the control character " + std::to_string(byte) + ": labels are text"};
  }
  return {};
}

bool plausible(VersionId id) {
  return id.version <= id.baseline && id.baseline <= kCounterMax &&
         (id.version == 0) == (id.baseline == 0);
}

}  // namespace dcr
