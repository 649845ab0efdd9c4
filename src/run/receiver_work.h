// Carries out a receiver's work (protocol/receiver.h) on a serving rank in host memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "protocol/receiver.h"
#include "receiver/receiver.h"
#include "run/process_context.h"
#include "run/run_model.h"
#include "run/serving_model.h"

namespace dcr {

class ReceiverWork {
 public:
  using Post = std::function<void(ReceiverEvent)>;

  // `serving` holds the base's weights if `loaded`. Errors: Receiver::create's.
  static Result<std::unique_ptr<ReceiverWork>> create(ProcessContext& context,
                                                      const RunModel& model, ServingModel& serving,
                                                      std::uint32_t number);
  ReceiverWork(ProcessContext& context, const RunModel& model, ServingModel& serving,
               std::uint32_t number);  // for create()
  ~ReceiverWork();

  Receiver& receiver() { return *receiver_; }

  // Begins work; its answer goes to `post`. Thread-safe.
  void begin(const ReceiverEffect& effect, const Post& post);

  // What became of a payload that the node hands over, which it does again whenever it has not
  // heard of it. Thread-safe.
  struct Known {
    bool taken = false;                 // it was ingested
    std::optional<std::uint64_t> kept;  // it waits for its IngestPayload; bytes
  };
  Known known(const PayloadReady& payload);
  // Keeps a payload until its IngestPayload. Beyond the limit of bytes it is dropped and the result
  // false: credit is asked for again. Thread-safe.
  bool keep(const StreamId& stream, std::shared_ptr<const DecodedPayload> payload);

 private:
  using Key = std::tuple<StreamId, std::uint32_t, std::uint64_t>;  // owner, number

  Status initialize();
  ReceiverWorkDone carry_out(const ReceiverEffect& effect);
  Status check_base(const CheckBase& work);
  Status ingest(const IngestPayload& work, ReceiverWorkDone* done);
  std::shared_ptr<const DecodedPayload> find(const Key& key);
  void forget_taken(const Key& key);
  void forget_streams_but(const StreamId& stream);

  ProcessContext& context_;
  const RunModel& model_;
  ServingModel& serving_;
  const std::uint32_t number_;
  std::unique_ptr<Executor> executor_;  // the receiver's
  std::unique_ptr<Receiver> receiver_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<const DecodedPayload>> payloads_;  // guarded by mutex_
  std::uint64_t payload_bytes_ = 0;                                // guarded by mutex_
  std::set<Key> taken_;               // payloads of the stream under way; guarded by mutex_
  std::unique_ptr<Executor> worker_;  // one thread for all work
};

}  // namespace dcr
