// The control plane in one SQLite file of a run directory, for the processes of one machine. Write-
// ahead log, full synchronisation: what an operation returned survives power loss.
//
// Writers take a lock between processes first (runtime/process_lock.h), which says who holds it. A
// process that was stopped while it held it blocks all writers; they get kUnavailable after the
// deadline, and `stuck()` names it. Readers are never blocked.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/sqlite_database.h"
#include "control/transactions.h"
#include "dcr/control.h"
#include "runtime/process_lock.h"

namespace dcr {

// A process makes one of these after it has forked, if it does; it must not be carried over a fork.
class SqliteControl : public ControlPlane {
 public:
  struct Options {
    std::string directory;                  // of the run; exists
    std::uint64_t lock_deadline_ms = 5000;  // for each of the two locks
    // Tests put faults here. Called with every statement before it, and with "committed" after a
    // COMMIT; its error takes the place of what the store would say.
    std::function<Status(std::string_view)> fault;
    // The name of the network file system that a path is on, or "".
    std::function<Result<std::string>(const std::string&)> network_of = network_file_system;
  };

  // Makes the store of a run whose base has the label, and opens it. A creation that was cut short
  // may be repeated. Errors: kExists; as open.
  static Result<std::unique_ptr<SqliteControl>> create(Options options, const RunId& run,
                                                       const std::string& label);

  // Opens a store and examines it whole. Errors: kNotFound, there is none; kUnsupported, it is on a
  // network file system or of another version; kMismatch, another program's database; kCorrupt;
  // kUnavailable.
  static Result<std::unique_ptr<SqliteControl>> open(Options options);

  // The process that held the lock during the whole of the last operation that it made fail.
  std::optional<LockHolder> stuck();
  // Ends it, and says whether it did (docs/ARCHITECTURE.md "The control plane"). Its unfinished
  // transaction is undone.
  Result<bool> kill_stuck();

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
  enum class Load : std::uint8_t { kRecords, kMembers };  // the latter: both

  SqliteControl(Options options, std::unique_ptr<ProcessLock> lock)
      : options_(std::move(options)), lock_(std::move(lock)) {}

  static Result<std::unique_ptr<SqliteControl>> make(Options options);
  std::string path() const;
  Status connect(bool create);
  Status check_empty();
  Status examine();
  Status initialize(const ControlState& state);

  Result<ControlState> load(Load what);
  Status save(const ControlState& before, const ControlState& after);

  // Runs `work` between `begin` and COMMIT. On an error nothing is changed, but for
  // kUnknownOutcome.
  Status transaction(const char* begin, const std::function<Status()>& work);

  template <typename Value>
  Result<Value> change(Load what, const std::function<Result<Value>(ControlState*)>& operation);
  template <typename Value>
  Result<Value> look(const std::function<Result<Value>()>& work);

  const Options options_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::unique_ptr<ProcessLock> lock_;
  std::unique_ptr<SqliteDatabase> database_;  // null after a failure: the next operation connects
};

}  // namespace dcr
