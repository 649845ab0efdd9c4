// What owners, nodes, receivers and gates do alike with the control plane: enrol, take the fence,
// join, look regularly at K, the leader and their own row, and notice that they are barred.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocol/machine.h"

namespace dcr {

struct MemberOptions {
  std::string name;
  Role role = Role::kOwner;
  std::string engine;  // of a receiver
  Waits waits;
};

// One call at a time is under way; an unavailable store is asked again, and an unknown outcome too.
class MemberSession {
 public:
  explicit MemberSession(MemberOptions options);

  // Starts with enrolment.
  void start(Milliseconds now);
  // Wants to be a member with this proof and these details, until it is.
  void join(std::optional<VersionId> restored, Bytes needs);
  void leave_waiting();  // no longer: the proof is void
  void look();           // read records and the own row soon

  // The next call that is due, if any; `answered` takes its reply.
  std::optional<CallControl> next_call(Milliseconds now);
  void answered(const ControlAnswered& answer, Milliseconds now);
  Milliseconds wake_at() const;

  std::uint64_t incarnation() const;
  bool enrolled() const;
  bool barred() const;
  const Status& failure() const;                            // for the operator
  std::optional<JoinOutcome> joined() const;                // of the last join
  const std::optional<ControlRecords>& records() const;     // the newest that was read
  Milliseconds read_at() const;                             // when their reading began
  std::string leader() const;                               // or empty
};

}  // namespace dcr
