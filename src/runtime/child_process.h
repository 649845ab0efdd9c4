// Processes that this one starts, stops and waits for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dcr/status.h"

namespace dcr {

// The file of the program that runs. Error: kIo.
Result<std::string> this_program();

// SIGKILL: nothing is tidied up. SIGSTOP: returns when another process goes on with it.
std::int64_t this_process();  // the system's number of it
[[noreturn]] void kill_this_process();
void pause_this_process();

// Runs `arguments` as a process that outlives this one, in a session of its own, with no open file
// of this one; what it writes is appended to the file `log`. Returns its number. Error: kIo naming
// what failed.
Result<std::int64_t> start_detached(const std::vector<std::string>& arguments,
                                    const std::string& log);
// Whether such a process has ended, as far as this one, whose child it is, can know: to be asked
// now and then, for the system keeps the number of a child that has ended until then.
bool collect_detached(std::int64_t pid);

// A child process. It gets no open file of this one but standard error, which goes on into `log`.
// It is killed when the thread that started it ends, however that comes. Not thread-safe.
class ChildProcess {
 public:
  // Runs `arguments`, of which the first is the program's file. Standard output and standard error
  // are appended to the file `log`. Error: kIo naming what failed.
  static Result<std::unique_ptr<ChildProcess>> start(const std::vector<std::string>& arguments,
                                                     const std::string& log);

  explicit ChildProcess(std::int64_t pid) : pid_(pid) {}  // for start()
  // Kills and waits.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  enum class State : std::uint8_t {
    kRuns,
    kStopped,  // by a signal, until resume()
    kExited,   // code() is its exit code
    kKilled,   // code() is the signal
  };
  // Asks without waiting.
  State poll();
  int code() const { return code_; }

  // Nothing once poll() has said that it is gone.
  void kill();       // SIGKILL; poll() says when it is gone
  void terminate();  // SIGTERM
  void pause();      // SIGSTOP
  void resume();     // SIGCONT

  std::int64_t pid() const { return pid_; }

  // Processor time of all its threads, in nanoseconds; 0 once poll() has said that it
  // is gone.
  std::uint64_t processor_nanoseconds() const;

 private:
  // Its number is still its own.
  bool is_there() const { return state_ == State::kRuns || state_ == State::kStopped; }
  void signal(int number);

  const std::int64_t pid_;
  State state_ = State::kRuns;
  int code_ = 0;
};

}  // namespace dcr
