// What the processes of a run directory do beside their own work: bar members whose process is
// gone, and end when the run has had no member for a time.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "dcr/cancel.h"
#include "dcr/control.h"
#include "run/process_context.h"
#include "run/run_directory.h"

namespace dcr {

// Not thread-safe, but for ended().
class RunKeeper {
 public:
  // Nothing is owned. `cancel`: asks this process to end.
  RunKeeper(RunDirectory& directory, std::string name, Clock& clock, const CancelToken* cancel)
      : directory_(directory),
        name_(std::move(name)),
        clock_(clock),
        cancel_(cancel),
        member_ns_(clock.nanoseconds()) {}

  // To be called now and then; looks a few times a second, and tells `log` what it finds.
  void look(ControlPlane& control, const ProcessOptions& options);

  // Asks this process to end.
  const CancelToken& ended() const { return ended_; }

 private:
  Status bar_the_gone(ControlPlane& control, const ProcessOptions& options);

  RunDirectory& directory_;
  const std::string name_;  // of this process
  Clock& clock_;
  const CancelToken* const cancel_;
  CancelToken ended_;
  std::uint64_t looked_ns_ = 0;
  std::uint64_t member_ns_;  // when there was one last
};

// The run's coordinator, or its node's agent, of this name, until it is asked to end or the run has
// had no member for a time (kCancelled); at once where another process is that endpoint (OK).
Status run_directory_coordinator(RunDirectory& directory, const ProcessOptions& options,
                                 const std::string& name);
Status run_directory_node(RunDirectory& directory, const ProcessOptions& options,
                          const std::string& name);

}  // namespace dcr
