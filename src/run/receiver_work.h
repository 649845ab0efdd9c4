// Carries out a receiver's work (protocol/receiver.h) on a serving rank.
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

namespace dcr {

// What the work is done on. Nothing is owned.
struct ReceiverWorkParts {
  Receiver& receiver;
  TargetMemory& memory;  // the receiver's
  // Compares the base that was loaded with what owners say of theirs. Empty where none was.
  std::function<Status(const CheckBase& check)> check_base;
  std::uint32_t number = 0;  // of the rank, in spans
  // Called when all of a stream is applied, before that is said and before it is audited. May be
  // empty.
  std::function<Status()> applied = {};
};

class ReceiverWork {
 public:
  using Post = std::function<void(ReceiverEvent)>;

  ReceiverWork(ProcessContext& context, ReceiverWorkParts parts);
  ~ReceiverWork();
  ReceiverWork(const ReceiverWork&) = delete;
  ReceiverWork& operator=(const ReceiverWork&) = delete;

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

  ReceiverWorkDone carry_out(const ReceiverEffect& effect);
  Status ingest(const IngestPayload& work, ReceiverWorkDone* done);
  Status compare(const CompareSample& work, ReceiverCounts* counts);
  Status finish_stream(ReceiverWorkDone* done);
  std::shared_ptr<const DecodedPayload> find(const Key& key);
  void forget_taken(const Key& key);
  void forget_streams_but(const StreamId& stream);

  ProcessContext& context_;
  const ReceiverWorkParts parts_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<const DecodedPayload>> payloads_;  // guarded by mutex_
  std::uint64_t payload_bytes_ = 0;                                // guarded by mutex_
  std::set<Key> taken_;               // payloads of the stream under way; guarded by mutex_
  bool audits_ = false;               // the stream under way; of the worker's thread
  std::unique_ptr<Executor> worker_;  // one thread for all work
};

}  // namespace dcr
