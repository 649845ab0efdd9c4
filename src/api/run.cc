#include "dcr/run.h"

#include <utility>

#include "api/run_state.h"
#include "run/run_identity.h"
#include "runtime/clock.h"
#include "runtime/file.h"

namespace dcr {
namespace {

constexpr std::uint64_t kStartProcessesNs = 500'000'000;

// Looks now and then for processes of the run that are missing. Thread-safe.
class ProcessStarter {
 public:
  ProcessStarter(RunDirectory& directory, std::string program,
                 std::function<void(const std::string&, const std::string&)> problem)
      : directory_(directory), program_(std::move(program)), problem_(std::move(problem)) {}

  void look() {
    const std::uint64_t now = monotonic_clock().nanoseconds();
    std::uint64_t last = looked_ns_;
    if (now < last + kStartProcessesNs || !looked_ns_.compare_exchange_strong(last, now)) return;
    const Status started = directory_.start_processes(program_, monotonic_clock());
    if (!started.ok() && !failed_.exchange(true)) problem_("run", started.message());
    if (started.ok()) failed_ = false;
  }

 private:
  RunDirectory& directory_;
  const std::string program_;
  const std::function<void(const std::string&, const std::string&)> problem_;
  std::atomic<std::uint64_t> looked_ns_{0};
  std::atomic<bool> failed_{false};
};

// A file that lists the endpoints of a run of trainers and engines.
Result<RunConfig> read_listed(const std::string& path) {
  DCR_ASSIGN(RunConfig config, read_run_config(path));
  if (config.base.empty()) return config;
  return Status(Code::kInvalidArgument,
                path +
                    ": trainers and engines bring the weights of a run: the keys base, owners and "
                    "receivers are for one of checkpoints (dcr owner, dcr receiver); leave them "
                    "out");
}

// Whether the file has this endpoint, in this role.
Status check_listed(const RunSession::State& run, const std::string& name, Role role,
                    const std::string& engine) {
  const std::optional<RunPeer> peer = run.context->peers()->find(name);
  if (!peer) return find_peer(run.listed, name).status().with_context(run.path);
  if (peer->role.role != role || peer->role.is_operator) {
    return {Code::kInvalidArgument,
            run.path + ": " + name + " is no " + std::string(role_name(role)) + " there"};
  }
  if (role != Role::kReceiver) return {};
  for (const EngineConfig& one : run.listed.engines) {
    if (one.gate.name != engine) continue;
    for (const PeerConfig& receiver : one.receivers) {
      if (receiver.name == name) return {};
    }
  }
  return {Code::kInvalidArgument, run.path + ": " + name + " is no receiver of " + engine};
}

}  // namespace

RunSession::RunSession(std::shared_ptr<State> state) : state_(std::move(state)) {}
RunSession::~RunSession() { state_->cancel.cancel(); }

Result<std::unique_ptr<RunSession>> RunSession::open(const std::string& path, RunOptions options,
                                                     const CancelToken* cancel) {
  auto state = std::make_shared<State>();
  state->path = path;
  const Result<FileInfo> info = posix_file_system().info(path, true);
  if (info.ok() && info->kind == FileKind::kRegular) {
    DCR_ASSIGN(state->listed, read_listed(path));
  } else {
    DCR_ASSIGN(state->directory, RunDirectory::open(path, cancel));
  }
  ProcessOptions process;
  process.cancel = &state->cancel;
  process.clock = &monotonic_clock();
  for (const std::string& text : options.kill_points) {
    DCR_ASSIGN(process.points.emplace_back(), parse_operation_point(text));
  }
  const auto nobody = [](const std::string& /*endpoint*/, const std::string& /*text*/) {};
  process.log = options.log ? std::move(options.log) : nobody;
  state->problem = options.problem ? std::move(options.problem) : process.log;
  if (!options.program.empty() && state->directory != nullptr) {
    const auto starter =
        std::make_shared<ProcessStarter>(*state->directory, options.program, state->problem);
    process.idle = [starter] { starter->look(); };
  }
  if (state->directory != nullptr) {
    DCR_ASSIGN(state->context, ProcessContext::open(state->directory->config(), std::move(process),
                                                    state->directory->peers()));
  } else {
    if (options.create) DCR_TRY(create_run(state->listed, cancel));
    DCR_ASSIGN(state->context, open_shared_run(state->listed, std::move(process)));
  }
  return std::make_unique<RunSession>(std::move(state));
}

const std::string& RunSession::path() const { return state_->path; }

Result<std::string> RunSession::State::owner_name(std::uint32_t rank, std::uint32_t ranks) const {
  if (directory != nullptr) return "owner-" + std::to_string(rank);
  if (ranks == listed.owner_peers.size()) return listed.owner_peers[rank].name;
  return Status(Code::kInvalidArgument,
                path + " lists " + std::to_string(listed.owner_peers.size()) +
                    " owners, and the trainer has " + std::to_string(ranks) + " ranks");
}

Result<std::uint64_t> RunSession::State::engine_instance(std::uint64_t chosen) const {
  if (chosen == 0) return own_engine_instance;
  if (chosen <= kCounterMax) return chosen;
  return Status(Code::kInvalidArgument,
                "the engine's instance " + std::to_string(chosen) + " is more than 2^62");
}

Result<std::string> RunSession::State::node_of(const std::string& engine) const {
  if (directory != nullptr) return std::string(kDirectoryNode);
  for (const EngineConfig& one : listed.engines) {
    if (one.gate.name == engine) return one.node;
  }
  return Status(Code::kInvalidArgument, path + " has no engine " + engine);
}

Result<CommitRecord> RunSession::committed() {
  DCR_ASSIGN(const ControlRecords records, state_->context->control().read());
  return records.commit;
}

Result<std::unique_ptr<RunMember>> RunMember::enter(std::shared_ptr<RunSession::State> run,
                                                    const std::string& name, Role role,
                                                    const std::string& engine,
                                                    const CancelToken* cancel) {
  if (run->cancel.cancelled()) return Status(Code::kInvalidArgument, "the run is closed");
  std::unique_ptr<RunDirectory::Presence> presence;
  if (run->directory != nullptr) {
    DCR_ASSIGN(presence, run->directory->enter(name, {role, false}));
  } else {
    DCR_TRY(check_listed(*run, name, role, engine));
    DCR_TRY(check_store(*run->context, name, role == Role::kCoordinator, cancel));
  }
  if (run->context->options().idle) run->context->options().idle();
  return std::make_unique<RunMember>(std::move(run), name, role, engine, std::move(presence));
}

RunMember::RunMember(std::shared_ptr<RunSession::State> run, std::string name, Role role,
                     std::string engine, std::unique_ptr<RunDirectory::Presence> presence)
    : run_(std::move(run)),
      name_(std::move(name)),
      role_(role),
      engine_(std::move(engine)),
      presence_(std::move(presence)) {}

RunMember::~RunMember() {
  const Status left = bar();
  if (!left.ok()) report("cannot leave the run: " + left.message());
}

Status RunMember::bar() { return context().control().enrol({name_, role_, engine_}).status(); }

LoopParts RunMember::parts(std::function<bool()> cancelled) {
  LoopParts parts = context().parts();
  parts.cancelled = std::move(cancelled);
  return parts;
}

}  // namespace dcr
