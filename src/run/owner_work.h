// Carries out an owner's work (protocol/owner.h): weights in host memory, an owner group of one,
// and the transports of attempts and restores.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dcr/ports.h"
#include "layout/owner_plan.h"
#include "protocol/owner.h"
#include "run/owner_collective.h"
#include "run/process_context.h"
#include "run/run_model.h"
#include "runtime/arena.h"
#include "source/host_source_memory.h"
#include "source/owner_group.h"
#include "transport/object_transport.h"

namespace dcr {

class OwnerWork {
 public:
  using Post = std::function<void(OwnerEvent)>;

  // With the base's weights and baseline. Errors: of memory and the checkpoint.
  static Result<std::unique_ptr<OwnerWork>> create(ProcessContext& context, const RunModel& model,
                                                   std::uint32_t rank);
  OwnerWork(ProcessContext& context, const RunModel& model, std::uint32_t rank);  // for create()
  ~OwnerWork();

  // Gives the rank's weights the checkpoint's values. REQUIRES: no refit is open.
  Status load(const std::string& checkpoint);

  // Begins work; its answer goes to `post`. Thread-safe.
  void begin(const OwnerEffect& effect, const Post& post);

  // The version whose bits the baseline has.
  std::optional<std::uint64_t> baseline() const { return owner_->baseline_version(); }
  // Of the payloads of the last attempt that was sent whole.
  std::uint64_t payload_bytes() const { return payload_bytes_; }
  const OwnerSizes& sizes() const { return owner_->sizes(); }

 private:
  Status initialize();
  Status make_collective(OwnerInput* input);
  // First baselines, of all owners together. None is made where another version is committed, or
  // where the others have made theirs without this life of the owner.
  Status initialize_together();
  Status make_group();
  // Runs a phase of the group, in a meeting with the other owners if some tensors are converted.
  Status meet(const Meeting& meeting, std::uint64_t wait_ms, const std::function<Status()>& phase);
  void construct(const ConstructAndSend& work, const Post& post);
  void restore(const SendBaseline& work, const Post& post);
  OwnerWorkDone carry_out(const OwnerEffect& effect);

  ProcessContext& context_;
  const RunModel& model_;
  const std::uint32_t rank_;
  OwnerRank plan_;
  Arena weights_;
  std::vector<MutableByteSpan> storages_;  // in the arena
  HostSourceMemory memory_;
  std::vector<std::unique_ptr<Converter>> converters_;
  std::unique_ptr<ChannelCollective> collective_;  // if there are any
  std::unique_ptr<PointedCollective> pointed_;
  std::uint64_t prepared_attempt_ = 0;  // the last
  std::unique_ptr<Executor> executor_;  // the group's
  std::unique_ptr<Owner> owner_;
  std::unique_ptr<ObjectOwnerTransport> payloads_;
  std::unique_ptr<ObjectOwnerTransport> restores_;
  std::atomic<std::uint64_t> payload_bytes_{0};
  std::mutex mutex_;
  // Of the group; replaced when it was cancelled. Guarded by mutex_.
  std::shared_ptr<CancelToken> cancel_;
  std::unique_ptr<OwnerGroup> group_;
  std::unique_ptr<Executor> worker_;  // one thread for all work
};

}  // namespace dcr
