// A run directory: all that a run on one machine needs. Who takes part has a key and a lock here,
// and is found by its name; the processes that nobody starts by hand are started by whoever finds
// that they are missing (docs/RUN_DIRECTORY.md).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dcr/status.h"
#include "run/run_config.h"
#include "run/run_peers.h"
#include "runtime/clock.h"
#include "runtime/process_lock.h"

namespace dcr {

// The agent that feeds all receivers of the machine.
inline constexpr const char* kDirectoryNode = "node-0";

// Thread-safe. A process names a directory by one path only, and has one of these for it: locks of
// one process do not exclude each other.
class RunDirectory {
 public:
  // The one that this process has open; else opens it, and makes what is not there: the control
  // plane, folders that only this user may look into, and the settings. Errors: kInvalidArgument,
  // it is another user's or others may write to it, its path is relative, too long for sockets or
  // has letters that their addresses have not, or a setting is wrong; those of the control plane,
  // which refuses a network file system by name; kCancelled, `cancel`, which may be null, was while
  // another process or thread makes it; kIo.
  static Result<std::shared_ptr<RunDirectory>> open(const std::string& path,
                                                    const CancelToken* cancel = nullptr);
  explicit RunDirectory(RunConfig config);
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  // Without peers.
  const RunConfig& config() const { return config_; }
  const std::shared_ptr<DirectoryPeers>& peers() const { return peers_; }
  std::string log_path(const std::string& name) const;

  // That an endpoint takes part, until it is destroyed or its process ends.
  class Presence {
   public:
    Presence(RunDirectory& directory, std::string name, std::unique_ptr<ProcessLock> lock)
        : directory_(directory), name_(std::move(name)), lock_(std::move(lock)) {}
    ~Presence();
    Presence(const Presence&) = delete;
    Presence& operator=(const Presence&) = delete;

   private:
    RunDirectory& directory_;
    const std::string name_;
    std::unique_ptr<ProcessLock> lock_;
  };

  // Makes an endpoint known, with a key of its own, and takes its lock. The directory must outlive
  // what it returns. Errors: kExists, an endpoint of this name takes part already; kMismatch, the
  // name is that of another role; kInvalidArgument for the name, or its socket's path; kIo.
  Result<std::unique_ptr<Presence>> enter(const std::string& name, const SenderRole& role);
  // An operator, of which several may look at a run at a time: under `name`, or that with a number,
  // which it becomes.
  Result<std::unique_ptr<Presence>> enter_operator(std::string* name);

  // Whether an endpoint of this name takes part, in whichever process. Errors: kIo.
  Result<bool> is_present(const std::string& name);
  // Whether anybody does but for coordinators, nodes and operators.
  Result<bool> has_members();
  // Calls `bar` if nobody of this name takes part, while nobody can begin to. Errors: of `bar`;
  // kIo.
  Status if_gone(const std::string& name, const std::function<Status()>& bar);
  // Whether `name` is the first of the run's own processes that are there: what one of them has to
  // do is that one's.
  Result<bool> is_first_process(const std::string& name);

  // Starts coordinators and the node's agent, as processes of `program` (the command dcr) that
  // outlive this one, where they are missing; a name at most once in a few seconds. Errors: kIo.
  Status start_processes(const std::string& program, Clock& clock);

 private:
  std::string lock_path(const std::string& name) const;

  const RunConfig config_;
  const std::shared_ptr<DirectoryPeers> peers_;
  struct Started {
    std::uint64_t at_ns = 0;
    std::optional<std::int64_t> pid;  // until it is known to have ended
  };

  std::mutex mutex_;
  std::set<std::string> entered_;           // by this process; guarded by mutex_
  std::map<std::string, Started> started_;  // by this process, the last; guarded by mutex_
};

}  // namespace dcr
