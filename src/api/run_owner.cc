#include <atomic>
#include <mutex>
#include <utility>

#include "api/embedded_receiver.h"
#include "api/run_state.h"
#include "protocol/owner.h"
#include "run/mailbox.h"
#include "run/payload_sink.h"
#include "run/published_source.h"
#include "runtime/event_queue.h"
#include "runtime/long_turns.h"

namespace dcr {
namespace {

using OwnerLoop = EndpointLoop<OwnerEndpoint, OwnerEvent, OwnerEffect>;

OwnerWorkDone answer_of(OwnerWorkDone::Kind kind, std::uint64_t number, Status status) {
  OwnerWorkDone done;
  done.kind = kind;
  done.number = number;
  done.status = std::move(status);
  return done;
}

constexpr std::uint64_t kLookAgainMs = 100;
constexpr std::size_t kStatusesMax = 16;
constexpr std::size_t kUnloadedNamesMax = 5;

}  // namespace

struct RunOwner::State {
  State(std::unique_ptr<RunMember> of, EmbeddedOwner& embedded, Digest published)
      : member(std::move(of)),
        owner(embedded),
        source(published),
        payloads(context().objects(), {context().run(), embedded.ranks(), {}}, embedded.rank()),
        restores(context().objects(), {restore_run(context().run()), embedded.ranks(), {}},
                 embedded.rank()) {}
  ~State() { stop(); }

  ProcessContext& context() { return member->context(); }

  Status start();
  void stop();
  OwnerEndpoint make_endpoint();
  void begin(const OwnerEffect& effect, const OwnerLoop::Post& post);
  void construct(const ConstructAndSend& work, const OwnerLoop::Post& post);
  void report_unloaded(const std::vector<Need>& needs);
  void send_baseline(const SendBaseline& work, const OwnerLoop::Post& post);
  OwnerWorkDone carry_out(const OwnerEffect& effect);
  void finish(const RefitFinished& finished);
  void ended(const Status& status);
  // Bars this incarnation, on the worker's thread.
  void withdraw();
  // When all work before it is done: nothing reads the weights any more.
  void conclude(Result<RefitOutcome> found) {
    worker->submit([this, found = std::move(found)] { outcomes.push(found); });
  }
  std::shared_ptr<CancelToken> current_cancel() {
    const std::lock_guard<std::mutex> lock(mutex);
    return cancel;
  }

  const std::unique_ptr<RunMember> member;
  EmbeddedOwner& owner;
  const Digest source;
  ObjectOwnerTransport payloads;
  ObjectOwnerTransport restores;
  // That the baseline is of, by a commit of this run; of the worker's thread and make_endpoint's.
  std::atomic<std::uint64_t> committed_version{0};
  std::vector<std::size_t> unloaded;  // tensors, as was reported last; of the worker's thread
  std::unique_ptr<Mailbox> mailbox;
  std::unique_ptr<OwnerLoop> loop;
  EventQueue<StatusReply> statuses;  // of whoever leads
  EventQueue<Result<RefitOutcome>> outcomes;
  std::mutex mutex;
  // Guarded by mutex.
  std::shared_ptr<CancelToken> cancel = std::make_shared<CancelToken>();  // of what is constructed
  std::optional<RefitCalled> called;                                      // the refit that is open
  bool attempted = false;                       // an attempt at it is under way here
  bool interrupted = false;                     // it is to end
  bool refusing = false;                        // and the other owners are being told
  OwnerResult sent;                             // of the last attempt that was sent whole
  std::optional<Result<RefitOutcome>> outcome;  // of the last refit, once it was waited for
  Status failure;                               // that the loop has ended with
  std::unique_ptr<Executor> worker;             // one thread for all work
  std::unique_ptr<Executor> thread;             // the loop's
};

Status RunOwner::State::start() {
  DCR_ASSIGN(mailbox, Mailbox::open(context(), member->name()));
  loop = std::make_unique<OwnerLoop>(
      member->name(), member->parts([this] { return member->stopping(); }), *mailbox);
  loop->set_intercept([this](const Endpoint& /*from*/, const Message& message) {
    const auto* const status = std::get_if<StatusReply>(&message);
    if (status != nullptr) static_cast<void>(statuses.try_push(*status, kStatusesMax));
    return status != nullptr;
  });
  worker = make_executor(2);
  worker->submit(take_long_turns);
  thread = make_executor(2);
  thread->submit([this] {
    ended(loop->run(
        [this] { return make_endpoint(); },
        [this](const OwnerEffect& effect, const OwnerLoop::Post& post) { begin(effect, post); }));
  });
  return {};
}

void RunOwner::State::ended(const Status& status) {
  if (status.code() != Code::kCancelled) member->report("takes no part: " + status.message());
  const std::lock_guard<std::mutex> lock(mutex);
  failure = status;
  if (called) conclude(status);
  called.reset();
}

void RunOwner::State::stop() {
  member->stop();
  current_cancel()->cancel();
  thread.reset();
  current_cancel()->cancel();  // of what the loop has begun meanwhile
  worker.reset();
  loop.reset();
  mailbox.reset();
}

OwnerEndpoint RunOwner::State::make_endpoint() {
  OwnerEndpointOptions options;
  options.name = member->name();
  options.details = {owner.rank(), owner.ranks(), source};
  options.elements = owner.sizes().source_elements;
  options.waits = context().config().waits;
  // A version has one set of weights in a run, and this owner was part of its commit.
  std::optional<VersionId> baseline;
  const std::uint64_t version = committed_version;
  const Result<ControlRecords> records = context().control().read();
  if (records.ok() && version != 0 && records->commit.id.version == version &&
      owner.baseline_version() == version) {
    baseline = records->commit.id;
  }
  return OwnerEndpoint(std::move(options), baseline);
}

void RunOwner::State::begin(const OwnerEffect& effect, const OwnerLoop::Post& post) {
  if (const auto* const finished = std::get_if<RefitFinished>(&effect)) return finish(*finished);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (std::holds_alternative<ConstructAndSend>(effect)) attempted = true;
    if (std::holds_alternative<StopSending>(effect)) cancel->cancel();
  }
  worker->submit([this, effect, post] {
    if (const auto* const work = std::get_if<ConstructAndSend>(&effect)) {
      construct(*work, post);
    } else if (const auto* const send = std::get_if<SendBaseline>(&effect)) {
      send_baseline(*send, post);
    } else {
      post(carry_out(effect));
    }
  });
}

void RunOwner::State::construct(const ConstructAndSend& work, const OwnerLoop::Post& post) {
  const std::uint64_t number = work.attempt.attempt;
  const std::shared_ptr<CancelToken> stop = current_cancel();
  OwnerAttempt attempt;
  attempt.run = context().run();
  attempt.attempt = number;
  attempt.candidate = work.attempt.candidate;
  attempt.base_version = work.attempt.base_version;
  attempt.target_version = work.attempt.target_version;
  attempt.mode = work.attempt.mode;
  attempt.needs = work.attempt.needs;
  const std::function<void(OwnerEvent)> progress = post;
  TransportSink sink(context(), payloads, owner.rank(), number, progress);
  OwnerWorkDone done = answer_of(OwnerWorkDone::Kind::kConstructAndSend, number, Status());
  const auto carry = [&]() -> Status {
    {
      // The weights may have changed since.
      const std::lock_guard<std::mutex> lock(mutex);
      if (interrupted) return {Code::kCancelled, member->name() + ": the refit was interrupted"};
    }
    report_unloaded(attempt.needs);
    context().points().before("prepare");
    DCR_TRY(payloads.begin(number));
    context().points().after("prepare");
    context().points().before("bitdiff");
    context().points().before("encode");
    DCR_ASSIGN(OwnerResult made, owner.prepare(attempt, sink, {stop.get(), {}}));
    done.result.mode = made.mode;
    done.result.pipeline.payloads = made.payloads;
    done.result.pipeline.payload_bytes = made.payload_bytes;
    done.result.changed_source_elements = made.changed_source_elements;
    DCR_TRY(payloads.end(number));
    const std::lock_guard<std::mutex> lock(mutex);
    sent = std::move(made);
    return {};
  };
  done.status = carry();
  post(std::move(done));
}

// A tensor that every receiver's loader passes over would be missed by nobody: each of them covers
// all that it has.
void RunOwner::State::report_unloaded(const std::vector<Need>& needs) {
  const std::vector<CanonicalTensor>& tensors = owner.tensors();
  if (owner.rank() != 0) return;
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < needs.size() && i < tensors.size(); ++i) {
    if (needs[i] == Need::kSkip) found.push_back(i);
  }
  if (found == unloaded) return;
  unloaded = std::move(found);
  if (unloaded.empty()) return;
  std::string text = "no receiver's loader takes ";
  for (std::size_t i = 0; i < unloaded.size() && i < kUnloadedNamesMax; ++i) {
    text += (i == 0 ? "\"" : ", \"") + tensors[unloaded[i]].name + "\"";
  }
  if (unloaded.size() > kUnloadedNamesMax) {
    text += " and " + std::to_string(unloaded.size() - kUnloadedNamesMax) + " more";
  }
  member->report(text + ": is that meant?");
}

void RunOwner::State::send_baseline(const SendBaseline& work, const OwnerLoop::Post& post) {
  const std::uint64_t stream = work.version.version + 1;
  const std::shared_ptr<CancelToken> stop = current_cancel();
  const std::function<void(OwnerEvent)> progress = post;
  TransportSink sink(context(), restores, owner.rank(), stream, progress);
  OwnerWorkDone done =
      answer_of(OwnerWorkDone::Kind::kSendBaseline, work.version.version, Status());
  const auto carry = [&]() -> Status {
    DCR_TRY(restores.begin(stream));
    DCR_TRY(owner
                .restore(restore_run(context().run()), stream, work.version.version, sink,
                         {stop.get(), {}})
                .status());
    return restores.end(stream);
  };
  done.status = carry();
  done.payloads = sink.payloads();
  post(std::move(done));
}

OwnerWorkDone RunOwner::State::carry_out(const OwnerEffect& effect) {
  using Kind = OwnerWorkDone::Kind;
  if (const auto* const remove = std::get_if<RemovePayloads>(&effect)) {
    return answer_of(Kind::kRemovePayloads, remove->attempt, payloads.cleanup(remove->attempt));
  }
  if (const auto* const update = std::get_if<UpdateBaseline>(&effect)) {
    committed_version = 0;
    const std::shared_ptr<CancelToken> stop = current_cancel();
    Status status = owner.commit(update->version, {stop.get(), {}});
    if (status.ok()) committed_version = update->version;
    return answer_of(Kind::kUpdateBaseline, update->version, std::move(status));
  }
  if (const auto* const remove = std::get_if<RemoveRestores>(&effect)) {
    // Streams are numbered one above their versions.
    return answer_of(Kind::kRemoveRestores, remove->version, restores.cleanup(remove->version));
  }
  if (const auto* const sample = std::get_if<SampleBaseline>(&effect)) {
    const std::uint64_t version = sample->version.version;
    OwnerWorkDone done = answer_of(Kind::kSampleBaseline, version, Status());
    Result<std::vector<std::uint8_t>> drawn =
        owner.sample(sample_run(context().run()), version + 1, version, sample->seed);
    done.status = drawn.status();
    if (drawn.ok()) done.sample = std::move(*drawn);
    return done;
  }
  if (const auto* const stop = std::get_if<StopSending>(&effect)) {
    // Construction gave up before, for this is its thread.
    owner.drop_attempt();
    {
      const std::lock_guard<std::mutex> lock(mutex);
      cancel = std::make_shared<CancelToken>();
      attempted = false;
    }
    return answer_of(Kind::kStopSending, stop->attempt, payloads.stop_and_wait(stop->attempt));
  }
  return answer_of(Kind::kDigestBase, 0,
                   {Code::kUnsupported,
                    "a run directory begins without weights: receivers get "
                    "the first from the first refit"});
}

void RunOwner::State::finish(const RefitFinished& finished) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!called) return;
  if (finished.barred && !interrupted) {
    // By a coordinator that took the endpoint for dead; its next life asks again.
    loop->post(*called);
    return;
  }
  if (finished.barred && owner.ranks() > 1 && !std::exchange(refusing, true)) {
    // Other owners wait for this one. They are told by asking for what they do not ask for.
    loop->post(RefitCalled{"interrupted by " + member->name(), called->asynchronous, false});
    return;
  }
  called.reset();
  attempted = false;
  if (!finished.status.ok()) {
    conclude(interrupted ? Status(Code::kCancelled,
                                  "the refit was interrupted: " + finished.status.message())
                         : finished.status);
    return;
  }
  RefitOutcome found;
  found.committed = finished.committed;
  found.attempts = finished.attempts;
  found.without_baseline = finished.without_baseline;
  if (finished.gate_closed_early) found.gate_closed_early = finished.gate_closed_early->reason;
  found.sent = sent;
  conclude(std::move(found));
  context().points().after("refit");
}

void RunOwner::State::withdraw() {
  constexpr unsigned kTries = 3;
  Status barred;
  for (unsigned i = 0; i < kTries; ++i) {
    barred = member->bar();
    if (barred.ok()) return;
  }
  member->report("cannot withdraw its refit: " + barred.message());
}

RunOwner::RunOwner(std::unique_ptr<State> state) : state_(std::move(state)) {}
RunOwner::~RunOwner() = default;

Result<std::unique_ptr<RunOwner>> RunOwner::join(RunSession& run, EmbeddedOwner& owner,
                                                 const CancelToken* cancel) {
  PublishedSource source;
  DCR_ASSIGN(source.catalogue, Catalogue::make(owner.tensors()));
  source.boxes = owner_boxes(owner.boxes());
  source.digest = source_digest(source);
  DCR_ASSIGN(const std::string name, run.state()->owner_name(owner.rank(), owner.ranks()));
  DCR_ASSIGN(std::unique_ptr<RunMember> member,
             RunMember::enter(run.state(), name, Role::kOwner, "", cancel));
  // All ranks have the same; one has to say it.
  if (owner.rank() == 0) {
    DCR_TRY(publish_source(sources_path(member->context().config()), source));
  }
  auto state = std::make_unique<State>(std::move(member), owner, source.digest);
  DCR_TRY(state->start());
  return std::make_unique<RunOwner>(std::move(state));
}

const std::string& RunOwner::name() const { return state_->member->name(); }

Status RunOwner::begin_refit(const std::string& label, bool asynchronous) {
  DCR_TRY(check_label(label));
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (!state_->failure.ok()) return state_->failure.with_context("this owner takes no part");
  if (state_->called) return {Code::kInvalidArgument, "a refit of this owner is open already"};
  while (state_->outcomes.pop(0)) {
  }
  state_->outcome.reset();
  // No work of the last one is left.
  state_->cancel = std::make_shared<CancelToken>();
  state_->interrupted = state_->refusing = false;
  state_->attempted = false;
  state_->sent = {};
  state_->called = RefitCalled{label, asynchronous, false};
  state_->context().points().before("refit");
  state_->loop->post(*state_->called);
  return {};
}

std::optional<Result<RefitOutcome>> RunOwner::wait(std::uint64_t wait_ms) {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->outcome) return state_->outcome;
  }
  std::optional<Result<RefitOutcome>> outcome = state_->outcomes.pop(wait_ms);
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (outcome) state_->outcome = std::move(outcome);
  return state_->outcome;
}

std::string RunOwner::waits_for(const CancelToken* cancel) {
  const Result<ControlRecords> records = state_->context().control().read();
  if (!records.ok()) return records.status().message();
  const std::string& leader = records->leader.holder.name;
  if (leader.empty()) return "a coordinator to lead";
  while (state_->statuses.pop(0)) {
  }
  state_->mailbox->send(leader, 0, StatusRequest{});
  const std::optional<StatusReply> status = wait_for_answer(state_->statuses, cancel);
  if (!status) return leader + " to answer, which leads";
  return status->state + (status->detail.empty() ? "" : ": " + status->detail);
}

bool RunOwner::interrupt() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (!state_->called) return false;
  const bool again = std::exchange(state_->interrupted, true);
  state_->cancel->cancel();
  // An attempt fails by itself; what none has begun for is taken back.
  if (again || !state_->attempted) {
    state_->worker->submit([state = state_.get()] { state->withdraw(); });
  }
  return true;
}

Result<std::vector<std::uint8_t>> RunOwner::replica_digests(const OwnerCall& call) {
  EventQueue<Result<std::vector<std::uint8_t>>> found;
  state_->worker->submit([&] { found.push(state_->owner.replica_digests(call)); });
  while (true) {
    auto digests = found.pop(kLookAgainMs);
    if (digests) return std::move(*digests);
  }
}

}  // namespace dcr
