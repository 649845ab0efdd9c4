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
// Nothing is due any more once it is barred or has failed.
class MemberSession {
 public:
  explicit MemberSession(MemberOptions options);

  // Starts with enrolment.
  void start(Milliseconds now);
  // Wants to be a member with this proof and these details, until it is. REQUIRES: enrolled.
  void join(std::optional<VersionId> restored, Bytes needs);
  // The proof is void: no longer waits to join. Whoever is a member stays one.
  void leave_waiting();
  void look();  // read records and the own row soon

  // The next call that is due, if any; `answered` takes its reply, and leaves others' alone.
  std::optional<CallControl> next_call(Milliseconds now);
  void answered(const ControlAnswered& answer, Milliseconds now);
  Milliseconds wake_at() const;

  std::uint64_t incarnation() const { return incarnation_; }  // 0 until it is enrolled
  bool enrolled() const { return incarnation_ != 0; }
  bool barred() const { return barred_; }
  const Status& failure() const { return failure_; }  // for the operator
  // Of the last join. kAdmitted becomes kJoined when the attempt that admitted it ended with K
  // unchanged, for as long as the proof holds.
  std::optional<JoinOutcome> joined() const { return joined_; }
  // The newest that was read, and when their reading began.
  const std::optional<ControlRecords>& records() const { return records_; }
  Milliseconds read_at() const { return read_at_; }
  std::string leader() const;  // or empty

 private:
  bool joining() const;
  ControlRequest next_request() const;
  void take_records(const ControlRecords& records);
  void take_joined(const Joined& joined);
  void take_row(const std::optional<Member>& row);
  void take_error(const Status& status, Milliseconds now);

  MemberOptions options_;
  std::uint64_t incarnation_ = 0;
  bool barred_ = false;
  Status failure_;

  std::optional<JoinRequest> wanted_;
  std::optional<JoinOutcome> joined_;

  std::optional<ControlRecords> records_;
  Milliseconds read_at_ = 0;
  std::uint64_t row_revision_ = 0;  // of the members when the own row was last known to be there

  std::uint64_t calls_ = 0;  // made so far; the last one is `calls_`
  bool calling_ = false;
  Milliseconds called_at_ = 0;
  bool join_called_ = false;      // by the call under way, with the proof that is still wanted
  Milliseconds due_at_ = kNever;  // the next regular call; never before start()
  Milliseconds retry_at_ = 0;     // not before, after a store that did not answer
  bool look_soon_ = false;
};

}  // namespace dcr
