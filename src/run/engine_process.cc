#include "run/engine_process.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/secure_random.h"
#include "protocol/gate.h"
#include "receiver/base_check.h"
#include "receiver/needs.h"
#include "receiver/rank_coverage.h"
#include "run/engine_reader.h"
#include "run/mailbox.h"
#include "run/operator.h"
#include "run/receiver_host.h"
#include "run/serving_model.h"
#include "tensor/text.h"

namespace dcr {
namespace {

using GateLoop = EndpointLoop<Gate, GateEvent, GateEffect>;

// One serving rank of the engine.
struct Rank {
  std::string name;
  std::unique_ptr<ServingModel> serving;
  std::unique_ptr<Executor> executor;  // the receiver's
  std::unique_ptr<Receiver> receiver;
  std::unique_ptr<ReceiverWork> work;
  std::unique_ptr<ReceiverHost> host;
};

class EngineProcess {
 public:
  EngineProcess(ProcessContext& context, const RunModel& model, const EngineConfig& engine)
      : context_(context), model_(model), engine_(engine) {}

  Status run() {
    DCR_TRY(make_ranks());
    DCR_TRY(prewarm());
    DCR_TRY(open_hosts());
    std::vector<ServingModel*> serving;
    for (const auto& rank : ranks_) serving.push_back(rank->serving.get());
    reader_ = std::make_unique<EngineReader>(
        model_, std::move(serving), context_.config().requests,
        [this](const std::string& label) { context_.options().log(kReadDiffers, label); });
    DCR_ASSIGN(gate_mailbox_, Mailbox::open(context_, engine_.gate.name));
    gate_worker_ = make_executor(2);
    verifier_ = make_executor(2);
    // A loop and a socket for each rank, beside this thread, which has the gate's loop.
    const auto threads = static_cast<unsigned>(2 * ranks_.size() + 1);
    threads_ = make_executor(threads);
    for (const auto& rank : ranks_) {
      threads_->submit([this, &rank = *rank] { run_receiver(rank); });
      threads_->submit([&rank = *rank] { rank.host->take_payloads(); });
    }
    const Status status = run_gate();
    stopping_ = true;
    threads_.reset();
    verifier_.reset();
    gate_worker_.reset();
    return failure_.ok() ? status : failure_;
  }

 private:
  Status make_ranks() {
    const Result<Checkpoint> base = open_candidate(model_, context_.config().base);
    DCR_TRY(base.status());
    for (std::uint32_t number = 0; number < engine_.receivers.size(); ++number) {
      auto rank = std::make_unique<Rank>();
      rank->name = engine_.receivers[number].name;
      DCR_ASSIGN(rank->serving, ServingModel::make(model_, number));
      DCR_TRY(rank->serving->load(model_, *base));
      DCR_TRY(make_receiver(*rank, number));
      ranks_.push_back(std::move(rank));
    }
    return {};
  }

  Status make_receiver(Rank& rank, std::uint32_t number) {
    ReceiverOptions options;
    options.owners = model_.boxes;
    options.never_loaded = model_.never_loaded;
    options.decoded_bytes_max = context_.config().memory_bytes_max;
    rank.executor = make_executor(context_.config().threads);
    DCR_ASSIGN(rank.receiver,
               Receiver::create(model_.catalogue, *rank.serving->loader, *rank.serving->memory,
                                *rank.executor, std::move(options)));
    const auto check = [this](const CheckBase& work) {
      CheckpointReader base(model_.base);
      return check_base(model_.catalogue, model_.boxes, work.digests,
                        [&](std::uint32_t tensor, std::uint64_t first, MutableByteSpan out) {
                          return base.read(tensor, first, out);
                        });
    };
    rank.work = std::make_unique<ReceiverWork>(
        context_, ReceiverWorkParts{*rank.receiver, *rank.serving->memory, check, number});
    return {};
  }

  // The loops end with the process, and when one of them does.
  bool cancelled() const { return stopping_ || context_.options().cancel->cancelled(); }

  Status open_hosts() {
    for (const auto& rank : ranks_) {
      ReceiverHostOptions options;
      options.name = rank->name;
      options.engine = engine_.gate.name;
      options.engine_instance = instance_;
      options.details.node = engine_.node;
      options.details.catalogue = model_.digest;
      options.details.fingerprint = rank->receiver->fingerprint();
      options.details.needs = needs_of(rank->receiver->classes());
      for (const PeerConfig& owner : context_.config().owner_peers) {
        options.owners.push_back(owner.name);
      }
      options.base_loaded = true;
      options.cancelled = [this] { return cancelled(); };
      DCR_ASSIGN(rank->host, ReceiverHost::open(context_, std::move(options), *rank->work));
    }
    return {};
  }

  Status prewarm() {
    context_.points().before("prewarm");
    std::vector<Receiver*> receivers;
    for (const auto& rank : ranks_) {
      DCR_TRY(rank->receiver->prewarm().with_context(rank->name));
      receivers.push_back(rank->receiver.get());
    }
    DCR_TRY(share_collectives(receivers));
    for (const auto& rank : ranks_) {
      DCR_TRY(check_not_refused(*rank->receiver).with_context(rank->name));
    }
    for (const UnevenTensor& found : uneven_tensors(receivers)) {
      const std::string& name = model_.catalogue[found.tensor].name;
      context_.options().log(engine_.gate.name,
                             "tensor " + quoted_name(name) + ": " + found.reason);
    }
    CheckpointReader base(model_.base);
    for (const auto& rank : ranks_) {
      DCR_TRY(rank->receiver
                  ->audit([&](std::uint32_t tensor, std::uint64_t first, MutableByteSpan out) {
                    return base.read(tensor, first, out);
                  })
                  .with_context(rank->name));
    }
    context_.points().after("prewarm");
    return {};
  }

  void run_receiver(Rank& rank) {
    const Status status = rank.host->run();
    if (status.code() != Code::kCancelled) fail(status);
  }

  Status run_gate() {
    LoopParts parts = context_.parts();
    parts.cancelled = [this] { return cancelled(); };
    GateLoop loop(engine_.gate.name, std::move(parts), *gate_mailbox_);
    loop.set_intercept([this](const Endpoint& from, const Message& message) {
      const auto* const command = std::get_if<OperatorCommand>(&message);
      if (command != nullptr) take(from, *command);
      return command != nullptr;
    });
    return loop.run(
        [&] {
          GateOptions options;
          options.engine = engine_.gate.name;
          options.engine_instance = instance_;
          for (const PeerConfig& receiver : engine_.receivers) {
            options.receivers.push_back(receiver.name);
          }
          options.waits = context_.config().waits;
          return Gate(std::move(options));
        },
        [&](const GateEffect& effect, const auto& post) {
          gate_worker_->submit([this, effect, post] { post(work_gate(effect)); });
        });
  }

  GateWorkDone work_gate(const GateEffect& effect) {
    GateWorkDone done;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto* const opening = std::get_if<OpenFor>(&effect)) {
      reader_->open(opening->committed.label);
      done.opened = true;
      if (closed_at_) {
        closed_ns_ += now() - *closed_at_;
        context_.spans().add({"gate", 0, *closed_at_, now(), 0});
      }
      closed_at_.reset();
      opened_ = true;
    } else {
      if (opened_ && !closed_at_) closed_at_ = now();
      reader_->close();
    }
    return done;
  }

  // An operator's command; answered on another thread, for it takes a while.
  void take(const Endpoint& from, const OperatorCommand& command) {
    if (!is_operator(*context_.peers(), from.name)) return;
    if (command.kind == OperatorCommand::Kind::kCount) {
      OperatorReply counts;
      counts.id = command.id;
      add_counts(&counts);
      const std::lock_guard<std::mutex> lock(mutex_);
      counts.bytes_compared = bytes_compared_;
      counts.bytes_differing = bytes_differing_;
      gate_mailbox_->send(from.name, from.incarnation, counts);
      return;
    }
    if (command.kind != OperatorCommand::Kind::kVerify || verifying_.exchange(true)) return;
    verifier_->submit([this, from, command] {
      OperatorReply reply;
      reply.id = command.id;
      const Result<StorageComparison> compared = reader_->compare(command.path);
      if (compared.ok()) {
        reply.bytes_compared = compared->bytes;
        reply.bytes_differing = compared->differing;
        const std::lock_guard<std::mutex> lock(mutex_);
        bytes_compared_ += compared->bytes;
        bytes_differing_ += compared->differing;
      } else {
        reply.failure = failure_of(compared.status());
      }
      add_counts(&reply);
      gate_mailbox_->send(from.name, from.incarnation, reply);
      verifying_ = false;
    });
  }

  void add_counts(OperatorReply* reply) {
    const ReaderCounts counts = reader_->counts();
    reply->reads = counts.reads;
    reply->reads_different = counts.different;
    const std::lock_guard<std::mutex> lock(mutex_);
    reply->gate_closed_ms = closed_ns_ / 1'000'000;
  }

  std::uint64_t now() const { return context_.options().clock->nanoseconds(); }

  void fail(const Status& status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.ok()) failure_ = status;
    stopping_ = true;
    context_.options().log(engine_.gate.name, status.message());
  }

  ProcessContext& context_;
  const RunModel& model_;
  const EngineConfig& engine_;
  const std::uint64_t instance_ = random_number(kCounterMax);
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<EngineReader> reader_;
  std::unique_ptr<Mailbox> gate_mailbox_;
  std::unique_ptr<Executor> gate_worker_;  // one thread: closes and opens in their order
  std::unique_ptr<Executor> verifier_;
  std::unique_ptr<Executor> threads_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> verifying_{false};
  std::mutex mutex_;
  // Guarded by mutex_.
  bool opened_ = false;  // once
  std::optional<std::uint64_t> closed_at_;
  std::uint64_t closed_ns_ = 0;  // since it first opened, but for the time since closed_at_
  std::uint64_t bytes_compared_ = 0, bytes_differing_ = 0;  // by all comparisons
  Status failure_;
};

}  // namespace

Status run_engine(ProcessContext& context, const std::string& name) {
  const std::vector<EngineConfig>& engines = context.config().engines;
  const auto found = std::find_if(engines.begin(), engines.end(), [&](const EngineConfig& engine) {
    return engine.gate.name == name ||
           std::any_of(engine.receivers.begin(), engine.receivers.end(),
                       [&](const PeerConfig& receiver) { return receiver.name == name; });
  });
  if (found == engines.end()) {
    return {Code::kInvalidArgument, name + " is no engine or receiver of this configuration"};
  }
  DCR_ASSIGN(const std::unique_ptr<const RunModel> model, make_run_model(context.config()));
  EngineProcess process(context, *model, *found);
  return process.run();
}

}  // namespace dcr
