#include <map>
#include <utility>

#include "api/run_state.h"
#include "protocol/gate.h"
#include "run/mailbox.h"
#include "runtime/event_queue.h"

namespace dcr {

struct RunGate::State {
  using Loop = EndpointLoop<Gate, GateEvent, GateEffect>;

  State(std::unique_ptr<RunMember> of, RunGateOptions chosen)
      : member(std::move(of)), options(std::move(chosen)) {}
  ~State() {
    member->stop();
    thread.reset();
  }

  Status start();
  void begin(const GateEffect& effect, const Loop::Post& post);

  struct Asked {
    GateWork work;
    Loop::Post post;
  };

  const std::unique_ptr<RunMember> member;
  const RunGateOptions options;
  std::unique_ptr<Mailbox> mailbox;
  std::unique_ptr<Loop> loop;
  EventQueue<Asked> asked;
  std::mutex mutex;
  std::uint64_t works = 0;  // so far; of the loop's thread
  // Guarded by mutex.
  std::map<std::uint64_t, Asked> taken;  // by next(), and not done
  Status failure;                        // that the loop has ended with
  std::unique_ptr<Executor> thread;      // the loop's
};

Status RunGate::State::start() {
  DCR_ASSIGN(mailbox, Mailbox::open(member->context(), member->name()));
  loop = std::make_unique<Loop>(member->name(),
                                member->parts([this] { return member->stopping(); }), *mailbox);
  thread = make_executor(2);
  thread->submit([this] {
    const Status status = loop->run(
        [this] {
          GateOptions machine;
          machine.engine = member->name();
          machine.receivers = options.receivers;
          machine.engine_instance = options.engine_instance;
          if (options.fail_overdue) machine.drain_overdue = GateOptions::DrainOverdue::kAbort;
          machine.waits = member->context().config().waits;
          return Gate(std::move(machine));
        },
        [this](const GateEffect& effect, const Loop::Post& post) { begin(effect, post); });
    if (status.code() == Code::kCancelled) return;
    member->report("decides no more: " + status.message());
    const std::lock_guard<std::mutex> lock(mutex);
    failure = status;
  });
  return {};
}

void RunGate::State::begin(const GateEffect& effect, const Loop::Post& post) {
  GateWork work;
  work.number = ++works;
  if (const auto* const opening = std::get_if<OpenFor>(&effect)) {
    work.open = true;
    work.label = opening->committed.label;
  } else if (const auto* const closing = std::get_if<CloseAndDrain>(&effect)) {
    work.fail_requests = closing->fail_requests;
  } else {
    return;
  }
  asked.push({std::move(work), post});
}

RunGate::RunGate(std::unique_ptr<State> state) : state_(std::move(state)) {}
RunGate::~RunGate() = default;

Result<std::unique_ptr<RunGate>> RunGate::join(RunSession& run, const std::string& engine,
                                               RunGateOptions options, const CancelToken* cancel) {
  if (options.receivers.empty()) return Status(Code::kInvalidArgument, engine + " has no receiver");
  DCR_ASSIGN(options.engine_instance, run.state()->engine_instance(options.engine_instance));
  DCR_ASSIGN(std::unique_ptr<RunMember> member,
             RunMember::enter(run.state(), engine, Role::kGate, "", cancel));
  auto state = std::make_unique<State>(std::move(member), std::move(options));
  DCR_TRY(state->start());
  return std::make_unique<RunGate>(std::move(state));
}

std::optional<GateWork> RunGate::next(std::uint64_t wait_ms) {
  std::optional<State::Asked> asked = state_->asked.pop(wait_ms);
  if (!asked) return std::nullopt;
  GateWork work = asked->work;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->taken.emplace(work.number, std::move(*asked));
  return work;
}

void RunGate::done(const GateWork& work, const Status& status) {
  State::Asked taken;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    const auto found = state_->taken.find(work.number);
    if (found == state_->taken.end()) return;
    taken = std::move(found->second);
    state_->taken.erase(found);
  }
  GateWorkDone done;
  done.opened = taken.work.open;
  done.status = status;
  taken.post(done);
}

std::optional<std::string> RunGate::refusal() {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (!state_->failure.ok()) return std::nullopt;
  }
  const auto answers = std::make_shared<EventQueue<std::string>>();
  state_->loop->ask([answers](const Gate& gate) { answers->push(gate.refusal()); });
  return wait_for_answer(*answers, nullptr);
}

std::string RunGate::closed_because(const CancelToken* cancel) {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (!state_->failure.ok()) return state_->failure.message();
  }
  const auto answers = std::make_shared<EventQueue<StatusReply>>();
  state_->loop->ask([answers](const Gate& gate) { answers->push(gate.status()); });
  const std::optional<StatusReply> reply = wait_for_answer(*answers, cancel);
  if (!reply) return "the gate does not answer";
  if (reply->gate_open) return {};
  return reply->gate_reason.empty() ? "it has not begun" : reply->gate_reason;
}

}  // namespace dcr
