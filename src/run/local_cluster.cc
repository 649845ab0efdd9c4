#include "run/local_cluster.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "channel/keys.h"
#include "run/owner_process.h"
#include "runtime/file.h"
#include "runtime/free_ports.h"
#include "source/attempt.h"

namespace dcr {
namespace {

constexpr std::uint64_t kGatesOpenMs = 120'000;
constexpr std::uint64_t kLookAgainMs = 10'000;
constexpr std::uint64_t kLeadsMs = 10'000;
constexpr std::uint64_t kStatusMs = 200;
constexpr unsigned kRefitsToOpenMax = 5;
// What ends by itself so often between two commits would go on so.
constexpr unsigned kEndsMax = 3;  // "third" below
constexpr int kKillSignal = 9;
constexpr std::uint64_t kEndMs = 5'000;
constexpr const char* kOperatorName = "operator";

std::string numbered(const char* name, std::uint64_t number) {
  return std::string(name) + "-" + std::to_string(number);
}

// A process of the cluster and what became of it.
struct Process {
  std::string command;                // "owner"
  std::string name;                   // that the command is given
  std::string role;                   // of its points
  std::uint64_t first = 0, last = 0;  // indices of the role that it stands for
  std::vector<OperationPoint> points;
  std::unique_ptr<ChildProcess> child;
  std::optional<std::uint64_t> stopped_at_ms;
  std::uint64_t stopped_for_ms = 0;  // then it goes on
  std::uint64_t lives = 0;
  unsigned ends = 0;  // that were nobody else's doing, since the last commit
};

class LocalCluster {
 public:
  explicit LocalCluster(const LocalOptions& options) : options_(options) {}

  Result<LocalResult> run() {
    DCR_TRY(write_config());
    DCR_TRY(create_run(config_, options_.cancel));
    ProcessOptions process;
    process.cancel = options_.cancel;
    process.clock = options_.clock;
    process.log = [this](const std::string&, const std::string& text) { options_.note(text); };
    DCR_ASSIGN(context_, ProcessContext::open(config_, std::move(process)));
    DCR_ASSIGN(operator_, Operator::open(*context_, kOperatorName));
    operator_->set_cancelled([this] { return !failure_.ok(); });
    DCR_TRY(start_all());
    DCR_TRY(verify(options_.base));
    for (const std::string& version : options_.versions) {
      if (!differs()) DCR_TRY(refit(version));
    }
    if (!differs()) DCR_TRY(open_all());
    end_all();
    report_points();
    DCR_TRY(read_spans());
    result_.receivers = options_.nodes * options_.receivers_per_node;
    return std::move(result_);
  }

 private:
  std::uint64_t now_ms() const { return options_.clock->nanoseconds() / 1'000'000; }

  Result<PeerConfig> make_peer(const std::string& name) {
    DCR_ASSIGN(const MadeKeys keys,
               make_key_files(posix_file_system(), keys_path(config_), name, false));
    return PeerConfig{name, next_address(), key_text(keys.public_key)};
  }

  std::string next_address() {
    const std::uint16_t port = ports_.back();
    ports_.pop_back();
    return "tcp://127.0.0.1:" + std::to_string(port);
  }

  Status add_peers(const char* name, std::uint64_t count, std::vector<PeerConfig>* peers) {
    for (std::uint64_t i = 0; i < count; ++i) {
      DCR_ASSIGN(peers->emplace_back(), make_peer(numbered(name, i)));
    }
    return {};
  }

  Status write_config() {
    config_.directory = options_.directory;
    config_.base = options_.base;
    config_.owners = "fsdp:" + std::to_string(options_.owners);
    if (options_.convert) config_.owners += ",convert";
    config_.receivers = "fused-tp:" + std::to_string(options_.receivers_per_node);
    config_.memory_bytes_max = options_.memory_bytes_max;
    config_.staging_bytes_max = options_.staging_bytes_max;
    config_.bucket_bytes = options_.bucket_bytes;
    config_.requests = options_.requests;
    config_.waits = options_.waits;
    DCR_TRY(posix_file_system().make_directory(keys_path(config_), 0700));
    // Two coordinators, two operators, each owner twice, and of each node its agent and its
    // engine's gate.
    DCR_ASSIGN(ports_, free_ports(4 + 2 * options_.owners +
                                  options_.nodes * (2 + options_.receivers_per_node)));
    DCR_TRY(add_peers("coordinator", 2, &config_.coordinators));
    DCR_TRY(add_peers("owner", options_.owners, &config_.owner_peers));
    for (PeerConfig& owner : config_.owner_peers) {
      if (options_.convert) owner.collective = next_address();
    }
    DCR_TRY(add_peers("node", options_.nodes, &config_.nodes));
    for (std::uint64_t node = 0; node < options_.nodes; ++node) {
      EngineConfig& engine = config_.engines.emplace_back();
      DCR_ASSIGN(engine.gate, make_peer(numbered("engine", node)));
      engine.node = numbered("node", node);
      for (std::uint64_t i = 0; i < options_.receivers_per_node; ++i) {
        DCR_ASSIGN(engine.receivers.emplace_back(),
                   make_peer(numbered("receiver", node * options_.receivers_per_node + i)));
      }
    }
    // One for this process, one for whoever wants to look at the cluster meanwhile.
    DCR_ASSIGN(config_.operators.emplace_back(), make_peer(kOperatorName));
    DCR_ASSIGN(config_.operators.emplace_back(), make_peer("observer"));
    const std::string text = format_run_config(config_);
    DCR_ASSIGN(const std::unique_ptr<File> file, posix_file_system().create(config_path(), 0600));
    return file->write(0, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  }

  std::string config_path() const { return join_path(options_.directory, "run.toml"); }

  void add_process(const char* command, const std::string& name, const char* role,
                   std::uint64_t first, std::uint64_t last) {
    Process& process = processes_.emplace_back();
    process.command = command;
    process.name = name;
    process.role = role;
    process.first = first;
    process.last = last;
    for (const OperationPoint& point : options_.points) {
      if (point.role == role && point.index >= first && point.index <= last) {
        process.points.push_back(point);
      }
    }
  }

  Status start_all() {
    for (std::uint64_t i = 0; i < config_.coordinators.size(); ++i) {
      add_process("coordinator", config_.coordinators[i].name, "coordinator", i, i);
    }
    for (std::uint64_t i = 0; i < options_.owners; ++i) {
      add_process("owner", config_.owner_peers[i].name, "owner", i, i);
    }
    for (std::uint64_t i = 0; i < options_.nodes; ++i) {
      add_process("node", config_.nodes[i].name, "node", i, i);
      const std::uint64_t first = i * options_.receivers_per_node;
      add_process("receiver", config_.engines[i].gate.name, "receiver", first,
                  first + options_.receivers_per_node - 1);
    }
    for (Process& process : processes_) {
      DCR_TRY(start(process));
      // The first coordinator leads, so that it comes to the points that it is given.
      if (&process == &processes_.front()) wait_for_leader();
    }
    return {};
  }

  void wait_for_leader() {
    const std::uint64_t begin = now_ms();
    EventQueue<bool> nothing;
    while (now_ms() - begin < kLeadsMs) {
      const Result<ControlRecords> records = context_->control().read();
      if (records.ok() && records->leader.token != 0) return;
      nothing.pop(10);
    }
  }

  // Points that a process died of are not given to its next life.
  Status start(Process& process) {
    std::vector<std::string> arguments = {options_.program, process.command, "--config",
                                          config_path(),    "--name",        process.name};
    for (const OperationPoint& point : process.points) {
      arguments.emplace_back(point.pause ? "--pause-at" : "--kill-at");
      arguments.push_back(format_operation_point(point));
    }
    const std::string life = process.name + "." + std::to_string(process.lives++);
    arguments.insert(arguments.end(), {"--spans", join_path(options_.directory, life + ".spans")});
    DCR_ASSIGN(process.child,
               ChildProcess::start(arguments, join_path(options_.directory, life + ".log")));
    return {};
  }

  // Looks after every process: goes on with those that stopped, starts again those that died.
  void look() {
    for (Process& process : processes_) {
      using State = ChildProcess::State;
      const State state = process.child->poll();
      if (state == State::kStopped) {
        go_on(process);
      } else if (state == State::kExited || state == State::kKilled) {
        start_again(process, state == State::kKilled);
      }
    }
  }

  void start_again(Process& process, bool killed) {
    std::string what = process.name + (killed ? " was killed" : " ended") + ", code " +
                       std::to_string(process.child->code());
    reads_lost_ += lines_of_log(process, kReadDiffers).size();
    const bool at_point = killed && take_point(process, false);
    if (at_point) ++result_.kills;
    // Whoever else kills it does so from outside.
    if (!at_point && !(killed && process.child->code() == kKillSignal)) {
      const std::vector<std::string> log = lines_of_log(process, "");
      if (!log.empty()) what += ": " + log.back();
      if (++process.ends >= kEndsMax) {
        failure_ = Status(Code::kUnavailable, what + ", for the third time since the last commit");
        return;
      }
    }
    options_.note(what + "; it is started again");
    const Status started = start(process);
    if (!started.ok()) failure_ = started;
  }

  void go_on(Process& process) {
    if (!process.stopped_at_ms) {
      process.stopped_at_ms = now_ms();
      const auto point = reached_point(process, true);
      process.stopped_for_ms = point == process.points.end() ? 0 : point->seconds * 1000;
      ++result_.pauses;
      options_.note(process.name + " was stopped");
    }
    if (now_ms() - *process.stopped_at_ms < process.stopped_for_ms) return;
    process.stopped_at_ms.reset();
    take_point(process, true);
    process.child->resume();
    options_.note(process.name + " goes on");
  }

  // What its present life, or its last one, has said: under this endpoint, or under any.
  std::vector<std::string> lines_of_log(const Process& process, const std::string& endpoint) const {
    const std::string head = endpoint.empty() ? "" : endpoint + ": ";
    constexpr std::uint64_t kLogBytesMax = kGiB;
    const std::string life = process.name + "." + std::to_string(process.lives - 1);
    const Result<Bytes> log =
        read_file(posix_file_system(), join_path(options_.directory, life + ".log"), kLogBytesMax);
    std::vector<std::string> lines;
    if (!log.ok()) return lines;
    std::istringstream in(std::string(log->begin(), log->end()));
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with(head)) lines.push_back(line.substr(head.size()));
    }
    return lines;
  }

  // Where the process is stopped, or where it died, by its own last word; end(): not at a point.
  std::vector<OperationPoint>::iterator reached_point(Process& process, bool pause) {
    const std::vector<std::string> reached = lines_of_log(process, kReachedPoint);
    const std::string last = reached.empty() ? "" : reached.back();
    return std::find_if(process.points.begin(), process.points.end(),
                        [&](const OperationPoint& point) {
                          return point.pause == pause && format_operation_point(point) == last;
                        });
  }

  // Forgets the point that was reached. False: there was none.
  bool take_point(Process& process, bool pause) {
    const auto point = reached_point(process, pause);
    if (point == process.points.end()) return false;
    process.points.erase(point);
    return true;
  }

  void idle() {
    look();
    if (!options_.progress) return;
    const Result<RunStatus> status = operator_->status(kStatusMs);
    if (status.ok()) options_.progress(*status);
  }

  // An owner that was killed has no baseline until the next commit, and engines that were have
  // nowhere to restore from until then: those that stay closed for that reason are left out.
  Result<std::vector<std::string>> engines_to_verify() {
    DCR_ASSIGN(const RunStatus status, operator_->status(kStatusMs));
    const VersionId committed = status.membership.records.commit.id;
    const bool baselines = std::all_of(
        config_.owner_peers.begin(), config_.owner_peers.end(), [&](const PeerConfig& owner) {
          const auto found = status.endpoints.find(owner.name);
          return found != status.endpoints.end() && found->second.held == committed;
        });
    std::vector<std::string> engines;
    for (const EngineConfig& engine : config_.engines) {
      const auto found = status.endpoints.find(engine.gate.name);
      const bool open = found != status.endpoints.end() && found->second.gate_open;
      if (open || baselines) engines.push_back(engine.gate.name);
    }
    return engines;
  }

  // Every engine serves the last version. Those that had nowhere to restore from need one more
  // commit for it, of the same weights.
  Status open_all() {
    for (unsigned tries = 0; tries < kRefitsToOpenMax; ++tries) {
      DCR_ASSIGN(const std::vector<std::string> engines, engines_to_verify());
      if (engines.size() == config_.engines.size()) return {};
      options_.note("an engine waits for a baseline: the same weights are refitted again");
      DCR_TRY(refit(options_.versions.back()));
    }
    return {Code::kUnavailable, "after " + std::to_string(kRefitsToOpenMax) +
                                    " more refits an engine still waits for a baseline"};
  }

  std::vector<std::string> all_engines() const {
    std::vector<std::string> engines;
    for (const EngineConfig& engine : config_.engines) engines.push_back(engine.gate.name);
    return engines;
  }

  // Whose gates are to open changes when somebody dies meanwhile.
  Result<EnginesReport> verify_once(const std::string& path) {
    const std::uint64_t begin = now_ms();
    while (true) {
      std::vector<std::string> engines = all_engines();
      // Before the first refit all are waited for: whoever is killed in it then takes part.
      if (!refits_.empty()) {
        DCR_ASSIGN(engines, engines_to_verify());
      }
      Result<EnginesReport> report =
          operator_->verify(path, engines, kLookAgainMs, [this] { look(); });
      const bool again = report.status().code() == Code::kUnavailable;
      if (!again || !failure_.ok() || now_ms() - begin >= kGatesOpenMs) return report;
    }
  }

  Status verify(const std::string& path) {
    const Result<EnginesReport> verified = verify_once(path);
    DCR_TRY(failure_);
    DCR_TRY(verified.status());
    const EnginesReport& report = *verified;
    result_.bytes_compared += report.bytes_compared;
    result_.bytes_differing += report.bytes_differing;
    result_.reads = report.reads;
    result_.reads_different = reads_lost_ + report.reads_different;
    result_.gate_seconds = report.gate_seconds;
    if (differs()) {
      options_.note(std::to_string(report.bytes_differing) + " bytes of receivers and " +
                    std::to_string(result_.reads_different) +
                    " reads differ from a dense load of " + path + ": nothing more is refitted");
    }
    return {};
  }

  bool differs() const { return result_.bytes_differing != 0 || result_.reads_different != 0; }

  std::int64_t processor_nanoseconds() const {
    std::uint64_t all = 0;
    for (const Process& process : processes_) all += process.child->processor_nanoseconds();
    return static_cast<std::int64_t>(all);
  }

  Result<RefitReport> call_refit(const std::string& path) {
    return operator_->refit(path, path, options_.asynchronous, [this] { idle(); });
  }

  Status refit(const std::string& path) {
    const std::uint64_t begin = options_.clock->nanoseconds();
    const std::int64_t processor = processor_nanoseconds();
    Result<RefitReport> report = call_refit(path);
    // This process is the operator, and knows why: points are not reached for ever.
    for (std::size_t tries = 0; tries < options_.points.size(); ++tries) {
      if (report.status().code() != Code::kConflict) break;
      options_.note(report.status().message());
      report = call_refit(path);
    }
    DCR_TRY(failure_);
    DCR_TRY(report.status());
    const std::uint64_t end = options_.clock->nanoseconds();
    refits_.push_back(
        {report->committed.id.version, begin, end, processor_nanoseconds() - processor});
    result_.seconds += 1e-9 * static_cast<double>(end - begin);
    ++result_.refits;
    if (const std::optional<EarlyClose>& early = report->gate_closed_early) {
      result_.gates_closed_early.push_back({report->committed.id.version, early->reason,
                                            1e-3 * static_cast<double>(early->after_ms)});
    }
    result_.attempts += report->attempts;
    result_.payload_bytes += report->payload_bytes;
    result_.committed = report->committed;
    for (Process& process : processes_) process.ends = 0;
    options_.note("version " + std::to_string(report->committed.id.version) + " is committed");
    return verify(path);
  }

  void end_all() {
    for (Process& process : processes_) process.child->terminate();
    const std::uint64_t begin = now_ms();
    const auto ended = [](const Process& process) {
      const ChildProcess::State state = process.child->poll();
      return state == ChildProcess::State::kExited || state == ChildProcess::State::kKilled;
    };
    EventQueue<bool> nothing;
    while (now_ms() - begin < kEndMs && !std::all_of(processes_.begin(), processes_.end(), ended)) {
      nothing.pop(10);
    }
  }

  void report_points() {
    for (const Process& process : processes_) {
      for (const OperationPoint& point : process.points) {
        result_.not_reached.push_back(format_operation_point(point));
      }
    }
  }

  // In nanoseconds of the clock, which all processes of the machine share.
  struct RawSpan {
    std::string stage, endpoint;
    std::uint64_t begin = 0, end = 0, busy = 0;
  };
  struct CalledRefit {
    std::uint64_t version = 0, begin = 0, end = 0;
    std::int64_t processor = 0;  // of all processes meanwhile
  };
  Status read_spans();
  Status read_span_file(const Process& process, std::uint64_t life, std::vector<RawSpan>* spans);
  void report_windows(const std::vector<RawSpan>& spans);
  double seconds_since_origin(std::uint64_t time) const {
    return 1e-9 * static_cast<double>(static_cast<std::int64_t>(time - origin_.value_or(0)));
  }

  const LocalOptions& options_;
  RunConfig config_;
  std::vector<std::uint16_t> ports_;  // that no endpoint has yet
  std::unique_ptr<ProcessContext> context_;
  std::unique_ptr<Operator> operator_;
  std::vector<Process> processes_;
  std::vector<CalledRefit> refits_;
  std::uint64_t reads_lost_ = 0;         // that differed in engines that died: one a label, or more
  std::optional<std::uint64_t> origin_;  // of the axis: t0 of the first refit
  LocalResult result_;
  Status failure_;
};

// Files are "NAME.LIFE.spans".
Status LocalCluster::read_span_file(const Process& process, std::uint64_t life,
                                    std::vector<RawSpan>* spans) {
  constexpr std::uint64_t kSpanFileBytesMax = 64 * kMiB;
  const std::string path =
      join_path(options_.directory, process.name + "." + std::to_string(life) + ".spans");
  const Result<Bytes> bytes = read_file(posix_file_system(), path, kSpanFileBytesMax);
  if (bytes.status().code() == Code::kNotFound) return {};  // nothing happened in that life
  DCR_TRY(bytes.status());
  std::istringstream in(std::string(bytes->begin(), bytes->end()));
  RawSpan span;
  std::uint64_t number = 0;
  while (in >> span.stage >> number >> span.begin >> span.end >> span.busy) {
    // The update of an owner's baseline is one span already; a scan is seen in its parts.
    const bool within = span.stage == kStageScan || span.stage == kStageCommit;
    if (within && process.role == "owner") continue;
    span.endpoint = process.name;
    if (process.role == "receiver" && span.stage != "gate") {
      span.endpoint = numbered("receiver", process.first + number);
    } else if (span.stage == "acknowledge") {
      span.endpoint = numbered("receiver", number);
    }
    spans->push_back(span);
  }
  return {};
}

// t0 and t1 of each refit: while it was called only its own spans begin.
void LocalCluster::report_windows(const std::vector<RawSpan>& spans) {
  for (const CalledRefit& refit : refits_) {
    std::optional<std::uint64_t> first, last;
    double processor = 1e-9 * static_cast<double>(refit.processor);
    for (const RawSpan& span : spans) {
      if (span.begin < refit.begin || span.begin > refit.end) continue;
      if (span.stage == kLoadSpan) processor -= 1e-9 * static_cast<double>(span.busy);
      if (span.stage == "project") first = std::min(first.value_or(span.begin), span.begin);
      if (span.stage == "baseline") last = std::max(last.value_or(span.end), span.end);
    }
    // An owner that was killed took its spans along.
    const std::uint64_t begin = first.value_or(refit.begin);
    if (!origin_) origin_ = begin;
    result_.windows.push_back({refit.version, seconds_since_origin(begin),
                               seconds_since_origin(last.value_or(refit.end)), processor});
  }
}

Status LocalCluster::read_spans() {
  std::vector<RawSpan> spans;
  for (const Process& process : processes_) {
    for (std::uint64_t life = 0; life < process.lives; ++life) {
      DCR_TRY(read_span_file(process, life, &spans));
    }
  }
  report_windows(spans);
  for (const RawSpan& span : spans) {
    result_.spans.push_back({span.stage, span.endpoint, seconds_since_origin(span.begin),
                             seconds_since_origin(span.end),
                             1e-9 * static_cast<double>(span.busy)});
  }
  return {};
}

}  // namespace

Result<LocalResult> run_local(const LocalOptions& options) { return LocalCluster(options).run(); }

}  // namespace dcr
