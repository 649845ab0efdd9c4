#include "run/local_cluster.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <utility>

#include "channel/keys.h"
#include "runtime/file.h"
#include "runtime/free_ports.h"

namespace dcr {
namespace {

constexpr std::uint64_t kGatesOpenMs = 120'000;
constexpr std::uint64_t kStatusMs = 200;
constexpr unsigned kRefitsToOpenMax = 5;
constexpr std::uint64_t kEndMs = 5'000;
constexpr const char* kOperator = "operator";

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
  std::uint64_t lives = 0;
};

class LocalCluster {
 public:
  explicit LocalCluster(const LocalOptions& options) : options_(options) {}

  Result<LocalResult> run() {
    DCR_TRY(write_config());
    DCR_TRY(create_run(config_));
    ProcessOptions process;
    process.cancel = options_.cancel;
    process.clock = options_.clock;
    process.log = [this](const std::string&, const std::string& text) { options_.note(text); };
    DCR_ASSIGN(context_, ProcessContext::open(config_, std::move(process)));
    DCR_ASSIGN(operator_, Operator::open(*context_, kOperator));
    DCR_TRY(start_all());
    DCR_TRY(verify(options_.base));
    for (const std::string& version : options_.versions) DCR_TRY(refit(version));
    DCR_TRY(open_all());
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
    DCR_ASSIGN(config_.operators.emplace_back(), make_peer(kOperator));
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
    for (Process& process : processes_) DCR_TRY(start(process));
    return {};
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
        options_.note(process.name + (state == State::kKilled ? " was killed" : " ended") +
                      ", code " + std::to_string(process.child->code()) + ": started again");
        if (state == State::kKilled) ++result_.kills;
        take_point(process, false);
        const Status started = start(process);
        if (!started.ok()) failure_ = started;
      }
    }
  }

  void go_on(Process& process) {
    if (!process.stopped_at_ms) {
      process.stopped_at_ms = now_ms();
      ++result_.pauses;
      options_.note(process.name + " was stopped");
    }
    const auto point = std::find_if(process.points.begin(), process.points.end(),
                                    [](const OperationPoint& at) { return at.pause; });
    const std::uint64_t seconds = point == process.points.end() ? 0 : point->seconds;
    if (now_ms() - *process.stopped_at_ms < seconds * 1000) return;
    process.stopped_at_ms.reset();
    take_point(process, true);
    process.child->resume();
    options_.note(process.name + " goes on");
  }

  // Forgets the first point of the kind: it was reached.
  static void take_point(Process& process, bool pause) {
    const auto point = std::find_if(process.points.begin(), process.points.end(),
                                    [&](const OperationPoint& at) { return at.pause == pause; });
    if (point != process.points.end()) process.points.erase(point);
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
    return {Code::kUnavailable, "some engine did not open its gate"};
  }

  Status verify(const std::string& path) {
    DCR_ASSIGN(const std::vector<std::string> engines, engines_to_verify());
    DCR_ASSIGN(const VerifyReport report,
               operator_->verify(path, engines, kGatesOpenMs, [this] { look(); }));
    DCR_TRY(failure_);
    result_.bytes_compared += report.bytes_compared;
    result_.bytes_differing += report.bytes_differing;
    result_.reads = report.reads;
    result_.reads_different = report.reads_different;
    result_.gate_seconds = report.gate_seconds;
    if (report.bytes_differing == 0 && report.reads_different == 0) return {};
    return {Code::kMismatch, std::to_string(report.bytes_differing) + " bytes of receivers and " +
                                 std::to_string(report.reads_different) +
                                 " reads differ from a dense load of " + path};
  }

  Status refit(const std::string& path) {
    const std::uint64_t begin = options_.clock->nanoseconds();
    const Result<RefitReport> report =
        operator_->refit(path, path, options_.asynchronous, [this] { idle(); });
    DCR_TRY(failure_);
    DCR_TRY(report.status());
    result_.seconds += 1e-9 * static_cast<double>(options_.clock->nanoseconds() - begin);
    ++result_.refits;
    result_.attempts += report->attempts;
    result_.payload_bytes += report->payload_bytes;
    result_.committed = report->committed;
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

  Status read_spans();

  const LocalOptions& options_;
  RunConfig config_;
  std::vector<std::uint16_t> ports_;  // that no endpoint has yet
  std::unique_ptr<ProcessContext> context_;
  std::unique_ptr<Operator> operator_;
  std::vector<Process> processes_;
  LocalResult result_;
  Status failure_;
};

// Files are "NAME.LIFE.spans"; t0 is when the first owner began to compare.
Status LocalCluster::read_spans() {
  struct Raw {
    std::string stage, endpoint;
    std::uint64_t begin = 0, end = 0, busy = 0;
  };
  constexpr std::uint64_t kSpanFileBytesMax = 64 * kMiB;
  std::vector<Raw> raw;
  std::optional<std::uint64_t> origin;
  for (const Process& process : processes_) {
    for (std::uint64_t life = 0; life < process.lives; ++life) {
      const std::string path =
          join_path(options_.directory, process.name + "." + std::to_string(life) + ".spans");
      const Result<Bytes> bytes = read_file(posix_file_system(), path, kSpanFileBytesMax);
      if (bytes.status().code() == Code::kNotFound) continue;  // nothing happened in that life
      DCR_TRY(bytes.status());
      std::istringstream in(std::string(bytes->begin(), bytes->end()));
      Raw span;
      std::string number;
      while (in >> span.stage >> number >> span.begin >> span.end >> span.busy) {
        span.endpoint = process.role == "receiver" ? "receiver-" + number : process.name;
        if (span.stage == "scan") origin = std::min(origin.value_or(span.begin), span.begin);
        raw.push_back(span);
      }
    }
  }
  const auto seconds = [](std::int64_t nanoseconds) {
    return 1e-9 * static_cast<double>(nanoseconds);
  };
  const auto zero = static_cast<std::int64_t>(origin.value_or(0));
  for (const Raw& span : raw) {
    result_.spans.push_back({span.stage, span.endpoint,
                             seconds(static_cast<std::int64_t>(span.begin) - zero),
                             seconds(static_cast<std::int64_t>(span.end) - zero),
                             seconds(static_cast<std::int64_t>(span.busy))});
  }
  return {};
}

}  // namespace

Result<LocalResult> run_local(const LocalOptions& options) { return LocalCluster(options).run(); }

}  // namespace dcr
