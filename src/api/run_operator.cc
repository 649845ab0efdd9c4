#include <mutex>
#include <utility>

#include "api/run_state.h"
#include "dcr/coordinator.h"
#include "run/coordinator_process.h"
#include "run/operator.h"
#include "run/operator_restore.h"

namespace dcr {

struct RunOperator::State {
  std::shared_ptr<RunSession::State> run;
  std::string name;
  std::unique_ptr<RunDirectory::Presence> presence;  // in a run directory
  std::mutex mutex;                                  // held by calls

  ProcessContext& context() { return *run->context; }
  std::function<bool()> cancelled(const CancelToken* cancel) {
    return [this, cancel] {
      return run->cancel.cancelled() || (cancel != nullptr && cancel->cancelled());
    };
  }
  Result<std::unique_ptr<Operator>> open(const CancelToken* cancel) {
    DCR_ASSIGN(std::unique_ptr<Operator> as, Operator::open(context(), name));
    as->set_cancelled(cancelled(cancel));
    return as;
  }
};

RunOperator::RunOperator(std::unique_ptr<State> state) : state_(std::move(state)) {}
RunOperator::~RunOperator() = default;

Result<std::unique_ptr<RunOperator>> RunOperator::join(RunSession& run) {
  auto state = std::make_unique<State>();
  state->run = run.state();
  if (state->run->cancel.cancelled()) return Status(Code::kInvalidArgument, "the run is closed");
  if (state->run->directory != nullptr) {
    state->name = "operator";
    DCR_ASSIGN(state->presence, state->run->directory->enter_operator(&state->name));
  } else {
    const std::vector<PeerConfig>& operators = state->run->listed.operators;
    if (operators.empty()) {
      return Status(Code::kInvalidArgument, state->run->path + " lists no operator");
    }
    state->name = operators.front().name;
  }
  return std::make_unique<RunOperator>(std::move(state));
}

Result<RunOverview> RunOperator::look(std::uint64_t wait_ms, const CancelToken* cancel) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  DCR_ASSIGN(const std::unique_ptr<Operator> as, state_->open(cancel));
  DCR_ASSIGN(const RunStatus status, as->status(wait_ms));
  RunOverview overview;
  overview.records = status.membership.records;
  for (EngineStatus& engine : engines_of(state_->context().config(), status)) {
    overview.engines.push_back({std::move(engine.name), engine.answered, engine.open,
                                std::move(engine.reason), engine.seconds, engine.held});
  }
  for (const Member& member : status.membership.members) {
    MemberOverview& shown = overview.members.emplace_back();
    shown.member = member;
    const auto found = status.endpoints.find(member.endpoint.name);
    if (found == status.endpoints.end()) continue;
    shown.answered = true;
    shown.state = found->second.state;
    shown.detail = found->second.detail;
    if (found->second.held) shown.held = found->second.held->version;
  }
  return overview;
}

Result<ControlRecords> RunOperator::end_transition(const CancelToken* cancel) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  DCR_TRY(run_coordinator(state_->context(), state_->name, true, {}, state_->cancelled(cancel)));
  return state_->context().control().read();
}

Result<std::vector<std::string>> RunOperator::restore(std::uint64_t wait_ms,
                                                      const CancelToken* cancel) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  DCR_ASSIGN(const std::unique_ptr<Operator> as, state_->open(cancel));
  DCR_ASSIGN(const std::vector<Member> behind, as->restore(wait_ms));
  return names_of(behind);
}

struct RunCoordinator::State {
  explicit State(std::unique_ptr<RunMember> of) : member(std::move(of)) {}
  ~State() {
    member->stop();
    thread.reset();
  }

  const std::unique_ptr<RunMember> member;
  std::mutex mutex;
  Status failure;  // guarded by mutex
  std::unique_ptr<Executor> thread;
};

RunCoordinator::RunCoordinator(std::unique_ptr<State> state) : state_(std::move(state)) {}
RunCoordinator::~RunCoordinator() = default;

Result<std::unique_ptr<RunCoordinator>> RunCoordinator::join(RunSession& run,
                                                             const std::string& name,
                                                             const CancelToken* cancel) {
  DCR_ASSIGN(std::unique_ptr<RunMember> member,
             RunMember::enter(run.state(), name, Role::kCoordinator, "", cancel));
  auto state = std::make_unique<State>(std::move(member));
  state->thread = make_executor(2);
  state->thread->submit([state = state.get()] {
    RunMember& of = *state->member;
    const Status status =
        run_coordinator(of.context(), of.name(), false, {}, [&of] { return of.stopping(); });
    if (status.code() == Code::kCancelled) return;
    of.report("coordinates no more: " + status.message());
    const std::lock_guard<std::mutex> lock(state->mutex);
    state->failure = status;
  });
  return std::make_unique<RunCoordinator>(std::move(state));
}

Status RunCoordinator::failure() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->failure;
}

}  // namespace dcr
