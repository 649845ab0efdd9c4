#include <atomic>
#include <mutex>
#include <utility>

#include "api/embedded_receiver.h"
#include "api/run_state.h"
#include "protocol/refused_receiver.h"
#include "receiver/needs.h"
#include "run/mailbox.h"
#include "run/receiver_host.h"
#include "run/source_watch.h"
#include "runtime/event_queue.h"
#include "tensor/text.h"

namespace dcr {
namespace {

std::vector<std::vector<CanonicalBox>> canonical_boxes(
    const std::vector<std::vector<OwnerBox>>& owners) {
  std::vector<std::vector<CanonicalBox>> all;
  for (const std::vector<OwnerBox>& boxes : owners) {
    std::vector<CanonicalBox>& of = all.emplace_back();
    for (const OwnerBox& box : boxes) {
      CanonicalBox& made = of.emplace_back();
      made.tensor = box.tensor;
      made.offset = box.box.offset;
      for (const ItemDimension& dim : box.box.dims) {
        made.sizes.push_back(dim.size);
        made.strides.push_back(dim.stride);
      }
    }
  }
  return all;
}

}  // namespace

struct RunReceiver::State {
  State(std::unique_ptr<RunMember> of, RunReceiverOptions chosen, std::string node_name)
      : member(std::move(of)),
        options(std::move(chosen)),
        node(std::move(node_name)),
        watch(member->context(), sources_path(member->context().config())) {}

  Status serve(EmbeddedReceiver& receiver, const ServeOptions& chosen);

  // Another life begins with the next serve().
  void leave() {
    const Status left = member->bar();
    if (!left.ok()) member->report("cannot leave the run: " + left.message());
  }

  const std::unique_ptr<RunMember> member;
  const RunReceiverOptions options;
  const std::string node;
  SourceWatch watch;
  std::optional<JoinedSource> joined;
  std::vector<std::vector<CanonicalBox>> boxes;
  std::atomic<bool> has_applied{false};
  std::mutex mutex;
  ReceiverHost* host = nullptr;  // while it serves; guarded by mutex
};

Status RunReceiver::State::serve(EmbeddedReceiver& receiver, const ServeOptions& chosen) {
  ProcessContext& context = member->context();
  EmbeddedReceiver::State& inner = receiver.state();
  const auto hook = [this, &chosen]() -> Status {
    if (member->stopping()) return {Code::kCancelled, "the receiver was stopped"};
    has_applied = true;
    return chosen.applied ? chosen.applied() : Status();
  };
  ReceiverWork work(context, {*inner.receiver, *inner.memory, {}, 0, hook});
  ReceiverHostOptions machine;
  machine.name = member->name();
  machine.engine = options.engine;
  machine.engine_instance = options.engine_instance;
  machine.details.node = node;
  machine.details.catalogue = joined->source.digest;
  machine.details.fingerprint = inner.receiver->fingerprint();
  machine.details.needs = needs_of(inner.receiver->classes());
  machine.owners = joined->owners.names;
  machine.base_exists = false;
  machine.audit = chosen.audit;
  std::atomic<bool> ended{false};
  machine.cancelled = [&] { return ended || member->stopping(); };
  machine.ended = [&] { return watch.changed(joined->owners); };
  DCR_ASSIGN(const std::unique_ptr<ReceiverHost> opened,
             ReceiverHost::open(context, std::move(machine), work));
  const auto show = [this](ReceiverHost* now) {
    const std::lock_guard<std::mutex> lock(mutex);
    host = now;
  };
  show(opened.get());
  std::unique_ptr<Executor> taker = make_executor(2);
  taker->submit([&] { opened->take_payloads(); });
  Status status = opened->run();
  ended = true;
  taker.reset();
  show(nullptr);
  leave();
  if (status.code() == Code::kCancelled && !member->stopping()) return {};
  return status;
}

RunReceiver::RunReceiver(std::unique_ptr<State> state) : state_(std::move(state)) {}
RunReceiver::~RunReceiver() = default;

Result<std::unique_ptr<RunReceiver>> RunReceiver::join(RunSession& run, const std::string& name,
                                                       RunReceiverOptions options,
                                                       const CancelToken* cancel) {
  DCR_ASSIGN(options.engine_instance, run.state()->engine_instance(options.engine_instance));
  DCR_ASSIGN(std::unique_ptr<RunMember> member,
             RunMember::enter(run.state(), name, Role::kReceiver, options.engine, cancel));
  DCR_ASSIGN(std::string node, run.state()->node_of(options.engine));
  return std::make_unique<RunReceiver>(
      std::make_unique<State>(std::move(member), std::move(options), std::move(node)));
}

Result<bool> RunReceiver::find_owners(std::uint64_t wait_ms) {
  if (state_->member->context().options().idle) state_->member->context().options().idle();
  DCR_ASSIGN(std::optional<JoinedSource> found, state_->watch.wait(wait_ms));
  if (!found) return false;
  state_->joined = std::move(found);
  state_->boxes = canonical_boxes(state_->joined->source.boxes);
  return true;
}

const std::vector<CanonicalTensor>& RunReceiver::tensors() const {
  static const std::vector<CanonicalTensor> kNone;
  return state_->joined ? state_->joined->source.catalogue.tensors() : kNone;
}
const std::vector<std::vector<CanonicalBox>>& RunReceiver::boxes() const { return state_->boxes; }

Status RunReceiver::serve(EmbeddedReceiver& receiver, const ServeOptions& options) {
  if (!state_->joined) return {Code::kInvalidArgument, "no owners were found yet"};
  const Receiver& inner = *receiver.state().receiver;
  if (inner.classes().empty() && !receiver.tensors().empty()) {
    return {Code::kInvalidArgument, "the receiver was not prewarmed"};
  }
  DCR_TRY(check_not_refused(inner));
  DCR_TRY(check_not_collective(inner));
  return state_->serve(receiver, options);
}

Status RunReceiver::refuse(const Status& why) {
  if (why.ok()) return {Code::kInvalidArgument, "a receiver that is refused has a reason"};
  ProcessContext& context = state_->member->context();
  DCR_ASSIGN(const std::unique_ptr<Mailbox> mailbox,
             Mailbox::open(context, state_->member->name()));
  EndpointLoop<RefusedReceiver, ReceiverEvent, ReceiverEffect> loop(
      state_->member->name(), state_->member->parts([this] { return state_->member->stopping(); }),
      *mailbox);
  return loop.run(
      [&] {
        RefusedReceiverOptions options;
        options.name = state_->member->name();
        options.engine = state_->options.engine;
        options.engine_instance = state_->options.engine_instance;
        options.failure = failure_of(why);
        options.waits = context.config().waits;
        return RefusedReceiver(std::move(options));
      },
      [](const ReceiverEffect& /*effect*/, const auto& /*post*/) {});
}

void RunReceiver::stop() { state_->member->stop(); }

bool RunReceiver::has_applied() const { return state_->has_applied; }

std::string RunReceiver::status(const CancelToken* cancel) {
  const auto answers = std::make_shared<EventQueue<std::string>>();
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->host == nullptr) return "serves nothing";
    state_->host->ask([answers](const StatusReply& reply) {
      answers->push(reply.detail.empty() ? reply.state : reply.state + ": " + reply.detail);
    });
  }
  return wait_for_answer(*answers, cancel).value_or("is busy");
}

}  // namespace dcr
