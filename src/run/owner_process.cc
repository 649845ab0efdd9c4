#include "run/owner_process.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "protocol/owner.h"
#include "run/mailbox.h"
#include "run/operator.h"
#include "run/owner_work.h"
#include "run/run_model.h"

namespace dcr {
namespace {

// An owner's process but for its start: joins the machine, its work and the operator's commands.
class OwnerProcess {
 public:
  OwnerProcess(ProcessContext& context, const RunModel& model, std::string name, std::uint32_t rank,
               OwnerWork& work, Mailbox& mailbox)
      : context_(context),
        model_(model),
        name_(std::move(name)),
        rank_(rank),
        work_(work),
        mailbox_(mailbox),
        loop_(name_, context.parts(), mailbox),
        loader_(make_executor(2)) {}

  Status run() {
    const auto make = [this] {
      OwnerEndpointOptions options;
      options.name = name_;
      options.details = {rank_, model_.owners(), model_.digest};
      options.waits = context_.config().waits;
      return OwnerEndpoint(std::move(options), baseline());
    };
    const auto work = [this](const OwnerEffect& effect, const Loop::Post& post) {
      if (const auto* const finished = std::get_if<RefitFinished>(&effect)) {
        finish(*finished);
      } else {
        work_.begin(effect, post);
      }
    };
    loop_.set_intercept([this](const Endpoint& from, const Message& message) {
      const auto* const command = std::get_if<OperatorCommand>(&message);
      if (command != nullptr) take(from, *command);
      return command != nullptr;
    });
    return loop_.run(make, work);
  }

 private:
  using Loop = EndpointLoop<OwnerEndpoint, OwnerEvent, OwnerEffect>;

  // The committed version that the baseline is of, if it is.
  std::optional<VersionId> baseline() {
    const std::optional<std::uint64_t> version = work_.baseline();
    const Result<ControlRecords> records = context_.control().read();
    if (!version || !records.ok() || records->commit.id.version != *version) return std::nullopt;
    return records->commit.id;
  }

  // An operator's command: comes again until it is answered for good.
  void take(const Endpoint& from, const OperatorCommand& command) {
    if (!is_operator(*context_.peers(), from.name)) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (answer_ && answer_->id == command.id) {
      mailbox_.send(from.name, from.incarnation, *answer_);
      return;
    }
    if (command.kind == OperatorCommand::Kind::kCount) {
      OperatorReply counts;
      counts.id = command.id;
      counts.payload_bytes = payload_bytes_;
      counts.refit_ms = refits_ns_ / 1'000'000;
      mailbox_.send(from.name, from.incarnation, counts);
      return;
    }
    if (command.kind != OperatorCommand::Kind::kRefit || open_) return;
    open_ = command.id;
    called_at_ = context_.options().clock->nanoseconds();
    operator_ = from;
    loader_->submit([this, command] { refit(command); });
  }

  void refit(const OperatorCommand& command) {
    // An earlier life of this process may have been killed when its refit was committed already.
    const Result<ControlRecords> records = context_.control().read();
    if (records.ok() && records->commit.id != command.base) {
      finish({{}, false, records->commit, 0, {name_}, {}});
      return;
    }
    const auto load = [&] {
      const SpanTimer timer(&context_.spans(), kLoadSpan, rank_);
      return work_.load(command.path);
    };
    const Status loaded = load();
    if (!loaded.ok()) {
      finish({loaded, false, {}, 0, {}, {}});
      return;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      called_at_ = context_.options().clock->nanoseconds();
      called_ = RefitCalled{command.label, command.asynchronous, false};
    }
    context_.points().before("refit");
    loop_.post(RefitCalled{command.label, command.asynchronous, false});
  }

  void finish(const RefitFinished& finished) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!open_) return;
    if (finished.barred) {
      // The endpoint was barred, by a coordinator that took it for dead; its next life asks again.
      loop_.post(called_);
      return;
    }
    const std::uint64_t now = context_.options().clock->nanoseconds();
    context_.spans().add({"refit", rank_, called_at_, now, 0});
    refits_ns_ += now - called_at_;
    if (finished.status.ok()) payload_bytes_ += work_.payload_bytes();
    OperatorReply reply;
    reply.id = *open_;
    if (!finished.status.ok()) reply.failure = failure_of(finished.status);
    reply.committed = finished.committed;
    reply.attempts = finished.attempts;
    reply.payload_bytes = work_.payload_bytes();
    reply.without_baseline = finished.without_baseline;
    reply.gate_closed_early = finished.gate_closed_early;
    mailbox_.send(operator_.name, operator_.incarnation, reply);
    answer_ = std::move(reply);
    open_.reset();
    context_.points().after("refit");
  }

  ProcessContext& context_;
  const RunModel& model_;
  const std::string name_;
  const std::uint32_t rank_;
  OwnerWork& work_;
  Mailbox& mailbox_;
  Loop loop_;
  std::mutex mutex_;
  // Guarded by mutex_: the command that is carried out, who gave it, and the last answer.
  std::optional<std::uint64_t> open_;
  Endpoint operator_;
  std::optional<OperatorReply> answer_;
  RefitCalled called_;
  std::uint64_t called_at_ = 0;
  std::uint64_t refits_ns_ = 0, payload_bytes_ = 0;  // of all refits
  const std::unique_ptr<Executor> loader_;           // one thread, for reading checkpoints
};

}  // namespace

Status run_owner(ProcessContext& context, const std::string& name) {
  const std::vector<PeerConfig>& peers = context.config().owner_peers;
  const auto found = std::find_if(peers.begin(), peers.end(),
                                  [&](const PeerConfig& peer) { return peer.name == name; });
  if (found == peers.end()) {
    return {Code::kInvalidArgument, name + " is no owner of this run's configuration"};
  }
  const auto rank = static_cast<std::uint32_t>(found - peers.begin());
  DCR_ASSIGN(const std::unique_ptr<const RunModel> model, make_run_model(context.config()));
  DCR_ASSIGN(const std::unique_ptr<OwnerWork> work, OwnerWork::create(context, *model, rank));
  DCR_ASSIGN(const std::unique_ptr<Mailbox> mailbox, Mailbox::open(context, name));
  OwnerProcess process(context, *model, name, rank, *work, *mailbox);
  return process.run();
}

}  // namespace dcr
