// What every process of a run begins with.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "control/sqlite_control.h"
#include "dcr/cancel.h"
#include "run/control_caller.h"
#include "run/endpoint_loop.h"
#include "run/operation_points.h"
#include "run/run_config.h"
#include "runtime/clock.h"
#include "runtime/threads.h"
#include "transport/directory_store.h"

namespace dcr {

// The endpoint under which a process logs that it has reached one of its points.
inline constexpr const char* kReachedPoint = "reached";
// And that requests of an engine read other weights than their label's: what it counts dies with
// it.
inline constexpr const char* kReadDiffers = "read differs";

// What the caller of a process's function gives it. Nothing is owned.
struct ProcessOptions {
  const CancelToken* cancel = nullptr;  // required: asks the process to end
  Clock* clock = nullptr;               // required
  std::vector<OperationPoint> points;   // of this process
  std::function<void(const std::string& endpoint, const std::string& text)> log;  // thread-safe
  std::function<void()> idle;  // called now and then by every loop; may be empty
  std::string span_file;       // where spans of stages are appended; empty: nowhere
};

// The parts of a run that a process has open.
class ProcessContext {
 public:
  // `config` and what `options` point to must outlive it. `peers`: of the run; null: those that
  // `config` lists. Errors: of SqliteControl::open, and of listed_peers.
  static Result<std::unique_ptr<ProcessContext>> open(
      const RunConfig& config, ProcessOptions options,
      std::shared_ptr<const RunPeers> peers = nullptr);
  ProcessContext(const RunConfig& config, ProcessOptions options,
                 std::shared_ptr<const RunPeers> peers, std::unique_ptr<SqliteControl> control,
                 const RunId& run);

  const RunConfig& config() const { return config_; }
  const RunId& run() const { return run_; }
  const std::shared_ptr<const RunPeers>& peers() const { return peers_; }
  const ProcessOptions& options() const { return options_; }
  OperationPoints& points() { return points_; }
  ControlPlane& control() { return *control_; }
  ObjectStore& objects() { return objects_; }
  SpanRecorder& spans() { return spans_; }
  Inboxes& inboxes() { return inboxes_; }
  // Appends what stages took since the last call to the file, one span a line: stage, endpoint,
  // begin and end in nanoseconds of the clock, processor time. Thread-safe.
  void write_spans();
  LoopParts parts() {
    return {caller_,
            points_,
            *options_.clock,
            [this] { return options_.cancel->cancelled(); },
            options_.log,
            [this] {
              write_spans();
              if (options_.idle) options_.idle();
            }};
  }

 private:
  const RunConfig& config_;
  const ProcessOptions options_;
  const std::shared_ptr<const RunPeers> peers_;
  const std::unique_ptr<SqliteControl> control_;
  const RunId run_;
  OperationPoints points_;
  Inboxes inboxes_;
  SpanRecorder spans_;
  DirectoryObjectStore objects_;
  std::mutex mutex_;
  std::unique_ptr<File> span_file_;    // guarded by mutex_
  std::uint64_t span_file_bytes_ = 0;  // guarded by mutex_
  ControlCaller caller_;
};

// Folders of a run.
std::string objects_path(const RunConfig& config);
std::string sources_path(const RunConfig& config);  // what owners publish
std::string keys_path(const RunConfig& config);
// Where a receiver takes decoded payloads.
std::string payload_socket_path(const RunConfig& config, const std::string& receiver);

// That a folder of a run is this user's, and that nobody else may write to it: who can, takes part.
// Errors: kInvalidArgument; kNotFound, it is not there.
Status check_ours(const std::string& path);
// Makes one with mode 0700, unless it is there, and checks it. Errors: kInvalidArgument; kIo.
Status make_ours(const std::string& path);
// check_ours() of all of them that are there.
Status check_folders(const RunConfig& config);

// The run id in keys and payloads of restores, whose streams have numbers of their own.
Digest restore_run(const RunId& run);
// The same of samples of baselines.
Digest sample_run(const RunId& run);
inline const Digest& stream_run(const RunId& run, const Digest& restores, const StreamId& stream) {
  return stream.restore ? restores : run;
}

// Makes the directory of a run: folders and the control plane, whose version 0 has the base's path
// as its label. One that is there already is left alone, one whose creation was cut short is gone
// on with. Where the configuration lists who takes part, objects get the run's mark
// (run_identity.h). Errors: of make_ours and begin_creation; kIo.
Status create_run(const RunConfig& config, const CancelToken* cancel = nullptr);

}  // namespace dcr
