// Applies decoded payloads: traced tensors straight through their places, on all threads; others
// through the native loader.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "dcr/ports.h"
#include "dcr/receiver.h"
#include "dcr/status.h"
#include "receiver/decoded.h"
#include "receiver/ownership.h"
#include "receiver/plan.h"
#include "receiver/prewarm.h"
#include "receiver/scratch.h"
#include "runtime/threads.h"
#include "tensor/catalogue.h"

namespace dcr {

class Applier {
 public:
  Applier(const Catalogue& catalogue, const Ownership& ownership, Loader& loader,
          TargetMemory& memory, Executor& executor)
      : catalogue_(catalogue),
        ownership_(ownership),
        memory_(memory),
        executor_(executor),
        plans_(kPlanBytesMax),
        scratch_(catalogue, loader, memory) {}
  ~Applier();
  Applier(const Applier&) = delete;
  Applier& operator=(const Applier&) = delete;

  // Takes what a prewarm found, which must outlive its use, and forgets what was made of another.
  // `checks`: paper A.12.
  void prepare(const PrewarmResult* prewarm, bool checks);

  // Begins an attempt: makes sure of scratch for the largest tensor that needs it. Error:
  // kTooLarge.
  Status begin();

  Status apply(const DecodedPayload& payload, ApplyMode mode, ReceiverCounts* counts);

  // Compares what a payload overwrites in traced tensors with what lies there, and passes the
  // others over. Keeps nothing of it.
  Status compare(const DecodedPayload& payload, ReceiverCounts* counts);

  // Error kMismatch, naming the tensor, if a tensor that is needed whole came in part.
  Status finish() const;

  // Compares resident bits with what the loader makes of a tensor whose words `read(first, out)`
  // gives. kMismatch if they differ.
  Status audit(std::uint32_t tensor,
               const std::function<Status(std::uint64_t first, MutableByteSpan out)>& read);

  std::uint64_t memory_bytes() const { return plans_.bytes(); }

 private:
  static constexpr std::uint64_t kPlanBytesMax = std::uint64_t{256} << 20;

  // Some changes of one item for one target.
  struct Task {
    TargetChanges target;
    const DecodedItem* item;
    std::size_t from, to;
  };
  // A tensor that is gathered until every word has come.
  struct Whole {
    std::uint64_t storage = 0;
    std::uint64_t words = 0;
    std::vector<bool> came;  // by word, where owners share the tensor
  };

  Status add_tasks(const DecodedItem& item, std::vector<Task>* tasks);
  void add_tasks(const DecodedItem& item, std::span<const TargetChanges> plan,
                 std::vector<Task>* tasks) const;
  Status run(std::span<const Task> tasks, ApplyMode mode, ReceiverCounts* counts);
  Status run_tasks(std::span<const Task> tasks, ApplyMode mode, ReceiverCounts* counts);
  Status apply_scratch(std::span<const DecodedItem* const> items, ApplyMode mode,
                       ReceiverCounts* counts);
  Status apply_whole(const DecodedItem& item, ApplyMode mode, ReceiverCounts* counts);
  Status audit_traced(std::uint32_t tensor,
                      const std::function<Status(std::uint64_t first, MutableByteSpan out)>& read,
                      ApplyCounts* counts);
  Status audit_whole(std::uint32_t tensor,
                     const std::function<Status(std::uint64_t first, MutableByteSpan out)>& read,
                     ApplyCounts* counts);
  void release_wholes();

  const Catalogue& catalogue_;
  const Ownership& ownership_;
  TargetMemory& memory_;
  Executor& executor_;
  const PrewarmResult* prewarm_ = nullptr;
  bool checks_ = false;
  PlanCache plans_;
  ScratchPath scratch_;
  std::map<std::uint32_t, Whole> wholes_;
  std::set<std::uint32_t> loaded_;  // of the tensors that owners share: what else comes is the same
};

}  // namespace dcr
