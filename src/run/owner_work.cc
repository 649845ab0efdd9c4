#include "run/owner_work.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/digest.h"
#include "base/secure_random.h"
#include "layout/checkpoint_reader.h"
#include "layout/converters.h"
#include "layout/shard.h"
#include "run/payload_sink.h"
#include "runtime/long_turns.h"

namespace dcr {
namespace {

constexpr std::uint64_t kBaseVersion = 0;

OwnerWorkDone done_of(OwnerWorkDone::Kind kind, std::uint64_t number, Status status) {
  OwnerWorkDone done;
  done.kind = kind;
  done.number = number;
  done.status = std::move(status);
  return done;
}

// The operation of the paper's Table B.1 that a stage of the construction belongs to.
const char* operation_of_stage(std::string_view stage) {
  if (stage == kStageScan) return "bitdiff";
  return "";
}

}  // namespace

OwnerWork::OwnerWork(ProcessContext& context, const RunModel& model, std::uint32_t rank)
    : context_(context),
      model_(model),
      rank_(rank),
      executor_(make_executor(context.config().threads)) {}

// The thread ends before what it works on.
OwnerWork::~OwnerWork() { worker_.reset(); }

Result<std::unique_ptr<OwnerWork>> OwnerWork::create(ProcessContext& context, const RunModel& model,
                                                     std::uint32_t rank) {
  auto work = std::make_unique<OwnerWork>(context, model, rank);
  DCR_TRY(work->initialize());
  return work;
}

Status OwnerWork::initialize() {
  plan_ = model_.owner_plan.rank(model_.catalogue, rank_);
  DCR_ASSIGN(weights_, Arena::anonymous(storages_bytes(plan_.storage_bytes)));
  storages_ = storages_in(weights_, plan_.storage_bytes);
  for (const MutableByteSpan storage : storages_) memory_.add(storage);
  OwnerInput input;
  input.rank = rank_;
  input.tasks = plan_.tasks;
  input.memory = &memory_;
  DCR_TRY(make_collective(&input));
  DCR_ASSIGN(owner_, Owner::create(model_.geometry, std::move(input), ""));
  payloads_ = std::make_unique<ObjectOwnerTransport>(
      context_.objects(), ObjectTransportOptions{context_.run(), model_.owners(), {}}, rank_);
  restores_ = std::make_unique<ObjectOwnerTransport>(
      context_.objects(), ObjectTransportOptions{restore_run(context_.run()), model_.owners(), {}},
      rank_);
  DCR_TRY(make_group());
  DCR_TRY(load(context_.config().base));
  if (collective_ != nullptr) collective_->connect(owner_->residual());
  DCR_TRY(collective_ == nullptr ? group_->initialize(kBaseVersion) : initialize_together());
  worker_ = make_executor(2);
  worker_->submit(take_long_turns);
  return {};
}

Status OwnerWork::make_collective(OwnerInput* input) {
  converters_ = make_rule_converters(model_.catalogue, model_.owner_plan, rank_, memory_);
  if (converters_.empty()) return {};
  for (const auto& converter : converters_) input->converters.push_back(converter.get());
  DCR_ASSIGN(collective_, open_owner_collective(context_, rank_));
  pointed_ = std::make_unique<PointedCollective>(*collective_, context_.points());
  input->collective = pointed_.get();
  return {};
}

Status OwnerWork::initialize_together() {
  const std::string& name = context_.config().owner_peers[rank_].name;
  const CancelToken& cancel = *context_.options().cancel;
  while (true) {
    DCR_ASSIGN(const ControlRecords records, context_.control().read());
    if (records.commit.id != VersionId{}) return {};
    DCR_TRY(collective_->begin({}, context_.config().waits.prepare_ms, cancel));
    Status status = group_->initialize(kBaseVersion);
    collective_->end(status);
    if (status.ok() || cancel.cancelled()) return status;
    if (status.code() == Code::kConflict) {
      context_.options().log(name, "has no baseline until the next commit: " + status.message());
      return {};
    }
    // Another owner is not there yet, or failed, and comes again.
    if (status.code() != Code::kUnavailable && status.code() != Code::kCancelled) return status;
    context_.options().log(name, "begins first baselines again: " + status.message());
    collective_->restart(random_number(kCounterMax));
  }
}

Status OwnerWork::meet(const Meeting& meeting, std::uint64_t wait_ms,
                       const std::function<Status()>& phase) {
  if (collective_ == nullptr) return phase();
  std::shared_ptr<CancelToken> cancel;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    cancel = cancel_;
  }
  DCR_TRY(collective_->begin(meeting, wait_ms, *cancel));
  Status status = phase();
  collective_->end(status);
  return status;
}

// What a cancelled group leaves behind goes with it; owners keep their baselines.
Status OwnerWork::make_group() {
  auto cancel = std::make_shared<CancelToken>();
  OwnerOptions options;
  options.bucket_bytes = context_.config().bucket_bytes;
  options.memory_bytes_max = context_.config().memory_bytes_max;
  options.cancel = cancel.get();
  options.spans = &context_.spans();
  options.progress = [this](const char* stage, std::uint64_t) {
    context_.points().after(operation_of_stage(stage));
  };
  DCR_ASSIGN(std::unique_ptr<OwnerGroup> group,
             OwnerGroup::create({owner_.get()}, *executor_, std::move(options)));
  const std::lock_guard<std::mutex> lock(mutex_);
  group_ = std::move(group);
  cancel_ = std::move(cancel);
  return {};
}

Status OwnerWork::load(const std::string& path) {
  DCR_ASSIGN(const Checkpoint checkpoint, open_candidate(model_, path));
  CheckpointReader reader(checkpoint);
  for (std::size_t i = 0; i < plan_.tasks.size(); ++i) {
    DCR_TRY(fill_shard(model_.catalogue, plan_.tasks[i], reader, storages_[i]));
  }
  return {};
}

void OwnerWork::construct(const ConstructAndSend& work, const Post& post) {
  OwnerWorkDone done =
      done_of(OwnerWorkDone::Kind::kConstructAndSend, work.attempt.attempt, Status());
  TransportSink sink(context_, *payloads_, rank_, work.attempt.attempt, post);
  const auto carry_out = [&]() -> Status {
    context_.points().before("prepare");
    DCR_TRY(payloads_->begin(work.attempt.attempt));
    context_.points().after("prepare");
    context_.points().before("bitdiff");
    context_.points().before("encode");
    std::array<PayloadSink*, 1> sinks = {&sink};
    Attempt attempt = work.attempt;
    attempt.run = context_.run();
    DCR_TRY(meet({attempt.attempt, false}, context_.config().waits.send_ms, [&]() -> Status {
      DCR_ASSIGN(const std::vector<PrepareResult> results, group_->prepare(attempt, sinks));
      done.result = results.front();
      return {};
    }));
    prepared_attempt_ = attempt.attempt;
    return payloads_->end(work.attempt.attempt);
  };
  done.status = carry_out();
  if (done.status.ok()) payload_bytes_ = sink.bytes_sent();
  post(std::move(done));
}

void OwnerWork::restore(const SendBaseline& work, const Post& post) {
  const std::uint64_t stream = work.version.version + 1;
  TransportSink sink(context_, *restores_, rank_, stream, post);
  OwnerWorkDone done = done_of(OwnerWorkDone::Kind::kSendBaseline, work.version.version, Status());
  const auto carry_out = [&]() -> Status {
    DCR_TRY(restores_->begin(stream));
    std::array<PayloadSink*, 1> sinks = {&sink};
    DCR_TRY(group_->restore({restore_run(context_.run()), stream, work.version.version}, sinks)
                .status());
    return restores_->end(stream);
  };
  done.status = carry_out();
  done.payloads = sink.payloads();
  post(std::move(done));
}

OwnerWorkDone OwnerWork::carry_out(const OwnerEffect& effect) {
  using Kind = OwnerWorkDone::Kind;
  if (const auto* const remove = std::get_if<RemovePayloads>(&effect)) {
    return done_of(Kind::kRemovePayloads, remove->attempt, payloads_->cleanup(remove->attempt));
  }
  if (const auto* const update = std::get_if<UpdateBaseline>(&effect)) {
    const SpanTimer timer(&context_.spans(), "baseline", rank_);
    const Status status = meet({prepared_attempt_, true}, context_.config().waits.baseline_ms,
                               [&] { return group_->commit(update->version); });
    return done_of(Kind::kUpdateBaseline, update->version, status);
  }
  if (const auto* const remove = std::get_if<RemoveRestores>(&effect)) {
    // Streams are numbered one above their versions.
    return done_of(Kind::kRemoveRestores, remove->version, restores_->cleanup(remove->version));
  }
  if (const auto* const stop = std::get_if<StopSending>(&effect)) {
    // Construction gave up before, for this is its thread.
    group_->drop_attempt();
    const Status made = make_group();
    const Status stopped = payloads_->stop_and_wait(stop->attempt);
    return done_of(Kind::kStopSending, stop->attempt, stopped.ok() ? made : stopped);
  }
  if (const auto* const sample = std::get_if<SampleBaseline>(&effect)) {
    const std::uint64_t version = sample->version.version;
    OwnerWorkDone done = done_of(Kind::kSampleBaseline, version, Status());
    auto samples = group_->sample({sample_run(context_.run()), version + 1, version}, sample->seed);
    done.status = samples.status();
    if (samples.ok()) done.sample = std::move(samples->front());
    return done;
  }
  OwnerWorkDone done = done_of(Kind::kDigestBase, 0, Status());
  auto digests = group_->baseline_digests(kBaseVersion);
  if (digests.ok()) {
    done.digests = std::move(digests->front());
  } else {
    done.status = digests.status();
  }
  return done;
}

void OwnerWork::begin(const OwnerEffect& effect, const Post& post) {
  if (std::holds_alternative<StopSending>(effect)) {
    const std::lock_guard<std::mutex> lock(mutex_);
    cancel_->cancel();
  }
  worker_->submit([this, effect, post] {
    if (const auto* const work = std::get_if<ConstructAndSend>(&effect)) {
      construct(*work, post);
    } else if (const auto* const send = std::get_if<SendBaseline>(&effect)) {
      restore(*send, post);
    } else {
      post(carry_out(effect));
    }
  });
}

}  // namespace dcr
