#include "dcr/run.h"

#include <utility>

#include "api/run_state.h"
#include "runtime/clock.h"

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

}  // namespace

RunSession::RunSession(std::shared_ptr<State> state) : state_(std::move(state)) {}
RunSession::~RunSession() { state_->cancel.cancel(); }

Result<std::unique_ptr<RunSession>> RunSession::open(const std::string& directory,
                                                     RunOptions options) {
  auto state = std::make_shared<State>();
  DCR_ASSIGN(state->directory, RunDirectory::open(directory));
  ProcessOptions process;
  process.cancel = &state->cancel;
  process.clock = &monotonic_clock();
  for (const std::string& text : options.kill_points) {
    DCR_ASSIGN(process.points.emplace_back(), parse_operation_point(text));
  }
  const auto nobody = [](const std::string& /*endpoint*/, const std::string& /*text*/) {};
  process.log = options.log ? std::move(options.log) : nobody;
  state->problem = options.problem ? std::move(options.problem) : process.log;
  if (!options.program.empty()) {
    const auto starter =
        std::make_shared<ProcessStarter>(*state->directory, options.program, state->problem);
    process.idle = [starter] { starter->look(); };
  }
  DCR_ASSIGN(state->context, ProcessContext::open(state->directory->config(), std::move(process),
                                                  state->directory->peers()));
  return std::make_unique<RunSession>(std::move(state));
}

const std::string& RunSession::directory() const { return state_->directory->config().directory; }

Result<CommitRecord> RunSession::committed() {
  DCR_ASSIGN(const ControlRecords records, state_->context->control().read());
  return records.commit;
}

Result<std::unique_ptr<RunMember>> RunMember::enter(std::shared_ptr<RunSession::State> run,
                                                    const std::string& name, Role role,
                                                    const std::string& engine) {
  if (run->cancel.cancelled()) return Status(Code::kInvalidArgument, "the run is closed");
  DCR_ASSIGN(std::unique_ptr<RunDirectory::Presence> presence,
             run->directory->enter(name, {role, false}));
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
