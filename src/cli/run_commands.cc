#include "cli/run_commands.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "cli/json.h"
#include "cli/run_text.h"
#include "run/coordinator_process.h"
#include "run/engine_process.h"
#include "run/local_cluster.h"
#include "run/node_process.h"
#include "run/operator.h"
#include "run/operator_restore.h"
#include "run/owner_process.h"
#include "run/run_identity.h"
#include "run/run_keeper.h"
#include "runtime/child_process.h"
#include "runtime/clock.h"
#include "runtime/event_queue.h"
#include "runtime/file.h"

namespace dcr {
namespace {

constexpr std::uint64_t kStatusWaitMs = 2000;
constexpr std::uint64_t kWatchMs = 1000;
constexpr const char* kOfCheckpoints =
    "dcr owner, dcr receiver and dcr refit are for runs of checkpoints";
// On one machine a silent process is dead, or was paused for longer than anybody wants to wait.
constexpr std::uint64_t kLocalLeaderMs = 2000;
constexpr std::uint64_t kLocalStopMs = 5000;
constexpr std::uint64_t kLocalJoinHoldMs = 5000;

Result<std::vector<OperationPoint>> points_of(const std::vector<std::string>& texts) {
  std::vector<OperationPoint> points;
  for (const std::string& text : texts) {
    DCR_ASSIGN(points.emplace_back(), parse_operation_point(text));
  }
  return points;
}

// Removes a directory and everything in it.
void remove_tree(const std::string& path) {
  FileSystem& files = posix_file_system();
  const auto entries = files.list(path);
  if (!entries.ok()) return;
  for (const DirectoryEntry& entry : *entries) {
    const std::string inner = join_path(path, entry.name);
    if (entry.kind == FileKind::kDirectory) {
      remove_tree(inner);
    } else {
      static_cast<void>(files.remove(inner));  // what stays is seen below
    }
  }
  static_cast<void>(files.remove_directory(path));
}

// A directory in the system's place for temporary ones, that goes with its object.
class TemporaryDirectory {
 public:
  static Result<std::unique_ptr<TemporaryDirectory>> make() {
    const char* const place = getenv("TMPDIR");  // NOLINT(concurrency-mt-unsafe)
    const std::string path =
        join_path(place == nullptr || *place == 0 ? "/tmp" : place,
                  fmt::format("dcr-{}-{}", getpid(), monotonic_clock().nanoseconds()));
    DCR_TRY(posix_file_system().make_directory(path, 0700));
    return std::make_unique<TemporaryDirectory>(path);
  }
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  ~TemporaryDirectory() { remove_tree(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

// The path from the root on, for processes that may have another working directory.
Result<std::string> absolute_path(const std::string& path) {
  if (path.starts_with('/')) return path;
  std::array<char, 4096> here{};
  if (getcwd(here.data(), here.size()) == nullptr) {
    return Status(Code::kIo, "cannot find the working directory, of which " + path + " is meant");
  }
  return join_path(here.data(), path);
}

// A cluster's file or directory, and what this process has open of its run.
struct Opened {
  RunConfig config;
  std::shared_ptr<RunDirectory> directory;
  std::unique_ptr<RunDirectory::Presence> presence;  // of an operator in the directory
  std::string name;                                  // the operator's
  std::unique_ptr<ProcessContext> context;
};

Result<ProcessOptions> process_options(const CommandLine& line, const CancelToken& cancel,
                                       const Say& say) {
  ProcessOptions options;
  options.cancel = &cancel;
  options.clock = &monotonic_clock();
  DCR_ASSIGN(options.points, points_of(line.run.kills));
  options.log = [say](const std::string& endpoint, const std::string& text) {
    if (say) say(endpoint + ": " + text);
  };
  options.span_file = line.run.spans;
  return options;
}

// Makes the operator known in a run directory that is there.
Status enter_directory(const CommandLine& line, const CancelToken& cancel, Opened* opened) {
  DCR_ASSIGN(const std::string path, absolute_path(line.run.run_directory));
  DCR_TRY(posix_file_system().info(join_path(path, "settings.toml"), true).status());
  DCR_ASSIGN(opened->directory, RunDirectory::open(path, &cancel));
  opened->config = opened->directory->config();
  opened->name = line.run.name;
  DCR_ASSIGN(opened->presence, opened->directory->enter_operator(&opened->name));
  return {};
}

Result<std::unique_ptr<Opened>> open_run(const CommandLine& line, const CancelToken& cancel,
                                         const Say& say) {
  auto opened = std::make_unique<Opened>();
  opened->name = line.run.name;
  DCR_ASSIGN(ProcessOptions options, process_options(line, cancel, say));
  if (!line.run.run_directory.empty()) {
    DCR_TRY(enter_directory(line, cancel, opened.get()));
    DCR_ASSIGN(opened->context, ProcessContext::open(opened->config, std::move(options),
                                                     opened->directory->peers()));
    return opened;
  }
  DCR_ASSIGN(opened->config, read_run_config(line.run.config));
  // Elsewhere than where the others look nobody would notice that it is another run's.
  const bool makes = line.command == Command::kCoordinator || !opened->config.base.empty();
  if (makes) DCR_TRY(create_run(opened->config, &cancel));
  DCR_ASSIGN(opened->context, open_shared_run(opened->config, std::move(options)));
  return opened;
}

Status run_process(const CommandLine& line, ProcessContext& context) {
  const std::string& name = line.run.name;
  switch (line.command) {
    case Command::kCoordinator:
      if (context.config().base.empty()) DCR_TRY(check_store(context, name, true));
      return run_coordinator(context, name, false, {});
    case Command::kOwner:
      DCR_TRY(check_has_base(context.config(), kOfCheckpoints));
      return run_owner(context, name);
    case Command::kNode:
      return run_node(context, name);
    default:
      DCR_TRY(check_has_base(context.config(), kOfCheckpoints));
      return run_engine(context, name);
  }
}

Status run_in_directory(const CommandLine& line, const CancelToken& cancel, const Say& say) {
  DCR_ASSIGN(const ProcessOptions options, process_options(line, cancel, say));
  DCR_ASSIGN(const std::string path, absolute_path(line.run.run_directory));
  DCR_ASSIGN(const std::shared_ptr<RunDirectory> directory, RunDirectory::open(path, &cancel));
  return line.command == Command::kNode
             ? run_directory_node(*directory, options, line.run.name)
             : run_directory_coordinator(*directory, options, line.run.name);
}

// A process of a cluster is asked to end by a signal, which is not a failure.
Result<Outcome> call_process(const CommandLine& line, const CancelToken& cancel, const Say& say) {
  if (!line.run.run_directory.empty()) {
    const Status status = run_in_directory(line, cancel, say);
    if (!status.ok() && status.code() != Code::kCancelled) return status;
    return Outcome{};
  }
  DCR_ASSIGN(const std::unique_ptr<Opened> opened, open_run(line, cancel, say));
  const Status status = run_process(line, *opened->context);
  opened->context->write_spans();
  if (!status.ok() && status.code() != Code::kCancelled) return status;
  return Outcome{};
}

Result<Outcome> call_refit(const CommandLine& line, Opened& opened) {
  DCR_TRY(check_has_base(opened.config, kOfCheckpoints));
  DCR_ASSIGN(const std::unique_ptr<Operator> as, Operator::open(*opened.context, opened.name));
  DCR_ASSIGN(const std::string path, absolute_path(line.run.path));
  const std::string& label = line.run.label == line.run.path ? path : line.run.label;
  DCR_ASSIGN(const RefitReport report, as->refit(path, label, line.run.asynchronous, {}));
  Outcome outcome;
  outcome.text = line.json ? run_refit_json(report) : run_refit_text(report);
  return outcome;
}

Result<std::string> status_now(const CommandLine& line, const Opened& opened, Operator& as) {
  DCR_ASSIGN(const RunStatus status, as.status(kStatusWaitMs));
  const std::vector<EngineStatus> engines = engines_of(opened.config, status);
  if (!line.json) return status_text(status, engines);
  // Members of a run directory count for themselves.
  RunCounts counts;
  if (opened.directory == nullptr && !opened.config.base.empty()) {
    DCR_ASSIGN(counts, as.counts(kStatusWaitMs));
  }
  return status_json(status, engines, counts);
}

Result<Outcome> call_status(const CommandLine& line, Opened& opened, const CancelToken& cancel,
                            const Show& show) {
  DCR_ASSIGN(const std::unique_ptr<Operator> as, Operator::open(*opened.context, opened.name));
  Outcome outcome;
  EventQueue<bool> nothing;
  while (line.run.watch) {
    const Result<std::string> text = status_now(line, opened, *as);
    if (cancel.cancelled()) return outcome;  // which is how watching ends
    DCR_TRY(text.status());
    DCR_TRY(show(line.json ? *text : *text + "\n"));
    nothing.pop(kWatchMs);
  }
  DCR_ASSIGN(outcome.text, status_now(line, opened, *as));
  return outcome;
}

Result<Outcome> call_abort(const CommandLine& line, Opened& opened) {
  DCR_ASSIGN(const ControlRecords before, opened.context->control().read());
  const Status status = run_coordinator(*opened.context, opened.name, true, {});
  if (!status.ok()) return status;
  DCR_ASSIGN(const ControlRecords after, opened.context->control().read());
  // Each attempt commits one version at most, and the record says which did: the last one before,
  // or one that began when this operator had just looked.
  const std::uint64_t attempt = before.transition.attempt;
  const bool found = attempt != 0 && after.commit.id.baseline >= attempt;
  Outcome outcome;
  outcome.text = line.json ? abort_json(found, after) : abort_text(found, after);
  return outcome;
}

Result<Outcome> call_restore(const CommandLine& line, Opened& opened, const Say& say) {
  DCR_ASSIGN(const std::unique_ptr<Operator> as, Operator::open(*opened.context, opened.name));
  DCR_ASSIGN(const std::vector<Member> behind, as->restore(kStatusWaitMs));
  DCR_TRY(as->wait_for_restored(behind, say));
  const std::vector<std::string> names = names_of(behind);
  Outcome outcome;
  outcome.text = line.json ? restore_json(names) : restore_text(names);
  return outcome;
}

Status write_report(const std::string& path, const std::string& text) {
  FileSystem& files = posix_file_system();
  Status removed = files.remove(path);
  if (!removed.ok() && removed.code() != Code::kNotFound) return removed;
  DCR_ASSIGN(const std::unique_ptr<File> file, files.create(path, 0644));
  return file->write(0, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

Result<Outcome> call_local(const CommandLine& line, const CancelToken& cancel, const Say& say) {
  LocalOptions options;
  DCR_ASSIGN(options.base, absolute_path(line.run.from));
  for (const std::string& version : line.run.versions) {
    DCR_ASSIGN(options.versions.emplace_back(), absolute_path(version));
  }
  options.owners = line.run.owners;
  options.nodes = line.run.nodes;
  options.receivers_per_node = line.run.receivers_per_node;
  options.asynchronous = line.run.asynchronous;
  options.convert = line.run.convert;
  options.memory_bytes_max = line.run.memory_bytes_max;
  options.staging_bytes_max = line.run.staging_bytes_max;
  DCR_ASSIGN(options.points, points_of(line.run.kills));
  DCR_ASSIGN(options.program, this_program());
  std::unique_ptr<TemporaryDirectory> temporary;
  if (line.run.directory.empty()) {
    DCR_ASSIGN(temporary, TemporaryDirectory::make());
    options.directory = temporary->path();
  } else {
    DCR_ASSIGN(options.directory, absolute_path(line.run.directory));
    const Status made = posix_file_system().make_directory(options.directory, 0700);
    if (!made.ok()) return made;
  }
  options.cancel = &cancel;
  options.clock = &monotonic_clock();
  options.waits.leader_ms = kLocalLeaderMs;
  options.waits.stop_ms = kLocalStopMs;
  options.waits.join_hold_ms = kLocalJoinHoldMs;
  options.note = say ? say : [](const std::string&) {};
  std::string shown;
  options.progress = [&](const RunStatus& status) {
    const std::string text = status_line(status);
    if (say && text != shown) say(text);
    shown = text;
  };
  DCR_ASSIGN(const LocalResult result, run_local(options));
  if (!line.run.report.empty()) DCR_TRY(write_report(line.run.report, local_json(result)));
  Outcome outcome;
  outcome.exit_code =
      result.bytes_differing == 0 && result.reads_different == 0 ? kExitDone : kExitDiffers;
  outcome.text = line.json ? local_json(result) : local_text(result);
  for (const std::string& point : result.not_reached) {
    outcome.warnings.push_back("no process came to " + point);
  }
  return outcome;
}

}  // namespace

bool is_run_command(Command command) { return command >= Command::kLocal; }

Result<Outcome> run_cluster_command(const CommandLine& line, const CancelToken& cancel,
                                    const Say& say, const Show& show) {
  if (line.command == Command::kLocal) return call_local(line, cancel, say);
  if (line.command <= Command::kReceiver) return call_process(line, cancel, say);
  DCR_ASSIGN(const std::unique_ptr<Opened> opened, open_run(line, cancel, say));
  switch (line.command) {
    case Command::kRunRefit:
      return call_refit(line, *opened);
    case Command::kStatus:
      return call_status(line, *opened, cancel, show);
    case Command::kAbort:
      return call_abort(line, *opened);
    default:
      return call_restore(line, *opened, say);
  }
}

}  // namespace dcr
