// The control plane in memory: the executable reference that every store must equal, operation for
// operation, and the store of simulations and tests. Its records live as long as it does.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "control/transactions.h"
#include "dcr/control.h"

namespace dcr {

class MemoryControl final : public ControlPlane {
 public:
  // `state`: from new_control_state.
  explicit MemoryControl(ControlState state) : state_(std::move(state)) {}

  Result<ControlRecords> read() override;
  Result<std::optional<Member>> read_member(const std::string& name) override;
  Result<Membership> read_members() override;
  Result<Enrolment> enrol(const EnrolRequest& request) override;
  Result<Joined> join(const JoinRequest& request) override;
  Result<ControlRecords> bar(std::uint64_t token, const std::vector<Endpoint>& barred) override;
  Result<ControlRecords> claim(const Endpoint& holder, const LeaderRow& seen) override;
  Result<LeaderRow> beat(std::uint64_t token) override;
  Result<TransitionRecord> prepare(const PrepareRequest& request) override;
  Result<TransitionRecord> open(std::uint64_t attempt) override;
  Result<ControlRecords> commit(std::uint64_t attempt) override;
  Result<ControlRecords> mark_obsolete(std::uint64_t attempt) override;
  Result<ControlRecords> abort_transition(std::uint64_t token) override;

 private:
  std::mutex mutex_;
  ControlState state_;  // guarded by mutex_
};

}  // namespace dcr
