// A lock between the processes of one machine that says who holds it, so that a process that was
// stopped while it held it can be found and ended. And which file systems such locks can be trusted
// on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "dcr/cancel.h"
#include "dcr/status.h"

namespace dcr {

// A process that holds a lock: pid and start time together name it for as long as the machine runs.
struct LockHolder {
  std::int64_t pid = 0;
  std::uint64_t start_time = 0;  // in the kernel's ticks since boot
  std::uint64_t turn = 0;        // counts how often the lock was taken
  bool operator==(const LockHolder&) const = default;
};

// The start time of a process. Error: kNotFound.
Result<std::uint64_t> process_start_time(std::int64_t pid);

// A lock on a file of its own, freed by the system when its process ends. Not thread-safe, and
// between processes only: two locks of one process on one file do not exclude each other, and the
// first to be freed or destroyed frees both.
class ProcessLock {
 public:
  // Creates the file if there is none. Error: kIo.
  static Result<std::unique_ptr<ProcessLock>> open(const std::string& path);

  ~ProcessLock();
  ProcessLock(const ProcessLock&) = delete;
  ProcessLock& operator=(const ProcessLock&) = delete;

  // Whether some other process holds the lock.
  Result<bool> is_locked() const;

  // Takes the lock; waits for at most `deadline_ms`, as its own sleeps count, and no longer than
  // until `cancel`, which may be null, is. Errors: kUnavailable, another process holds it (named);
  // kCancelled; kIo.
  Status lock(std::uint64_t deadline_ms, const CancelToken* cancel = nullptr);
  void unlock();

  // The process that held the lock, without once letting go, from the beginning to the end of the
  // last lock() that came to nothing; nothing if there is none, or it is out of sight (in another
  // container).
  const std::optional<LockHolder>& stuck() const { return stuck_; }

  // Kills that process and waits until it is gone, if it still holds the lock in the same turn.
  // Returns whether it did. Errors: kIo, the system does not allow it; kUnavailable, it does not
  // end.
  Result<bool> kill_stuck();

 private:
  ProcessLock(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  Result<std::optional<LockHolder>> holder() const;
  Result<bool> try_lock();
  std::uint64_t read_turn() const;

  const std::string path_;
  const int fd_;
  std::optional<LockHolder> stuck_;
};

// The name of the network file system that holds `path`, or "" if it is a local one. A file system
// that some other program serves counts as a network one. Error: kNotFound, kIo.
Result<std::string> network_file_system(const std::string& path);

// The same by the kernel's number of the file system's type.
std::string network_file_system_name(std::uint64_t magic);

}  // namespace dcr
