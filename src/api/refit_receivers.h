// The receivers of a refit in one process, with the parameters and native loaders that they serve.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/refit_context.h"
#include "codec/payload.h"
#include "dcr/options.h"
#include "dcr/status.h"
#include "layout/receiver_plan.h"
#include "layout/reference_loader.h"
#include "receiver/host_memory.h"
#include "receiver/receiver.h"
#include "tensor/checkpoint.h"

namespace dcr {

class RefitReceivers {
 public:
  // Of create().
  explicit RefitReceivers(const RefitContext& context) : context_(context) {}

  // `context` must outlive it. `owner_boxes`: what each owner may send. Errors: of the layout, the
  // arenas and Receiver::create.
  static Result<std::unique_ptr<RefitReceivers>> create(
      const RefitContext& context, const Layout& layout,
      const std::vector<std::vector<OwnerBox>>& owner_boxes);

  std::uint32_t ranks() const { return static_cast<std::uint32_t>(ranks_.size()); }

  // Loads the checkpoint densely through every rank's native loader.
  Status load(const Checkpoint& checkpoint);

  // Traces every rank's loader, and checks that parameters are what the loader makes of the
  // checkpoint (P = L(W)). Error kUnsupported naming a refused tensor.
  Status prewarm(const Checkpoint& checkpoint);

  // What owners send of each canonical tensor, all ranks together.
  std::vector<Need> needs() const;

  // Starts an attempt on every rank.
  Status begin(const AttemptHeader& header, std::uint32_t owners);

  // Takes payload `number` of an owner and applies whatever has its turn: all that comes before it
  // in the declared order is there. The others wait.
  Status take(std::uint32_t owner, std::uint64_t number, ByteSpan payload);

  // Applies the rest: owner i sent owner_payloads[i] in all.
  Status end(const std::vector<std::uint64_t>& owner_payloads);

  // Bytes of payloads that wait, and of what receivers hold beside parameters and scratch.
  std::uint64_t held_bytes() const;

  // Compares every byte of every storage with a dense load of the checkpoint.
  Status compare(const Checkpoint& checkpoint, RefitResult* result);

  // Fills in what concerns receivers.
  void report(RefitResult* result) const;

 private:
  // One rank's parameters and loader.
  struct Model {
    ReceiverRank plan;
    Arena weights;
    std::unique_ptr<HostMemory> memory;
    std::unique_ptr<ReferenceLoader> loader;
  };
  struct Rank {
    Model model;
    std::unique_ptr<Executor> executor;  // the receiver's own; ranks run side by side
    std::unique_ptr<Receiver> receiver;
    ReceiverCounts counts;
    std::uint64_t memory_peak = 0;
  };

  Result<Model> make_model(std::uint32_t rank, const std::string& name) const;
  Status load_model(const Checkpoint& checkpoint, Model& model) const;
  Status refuse() const;
  std::vector<Receiver*> receivers() const;
  Status apply_one(Rank& rank, const std::shared_ptr<const DecodedPayload>& payload) const;
  Status apply_everywhere(const std::shared_ptr<const DecodedPayload>& payload);
  // Applies waiting payloads that have their turn one after another, if there are `least` of them.
  Status apply_in_turn(std::size_t least);
  std::vector<TensorSpec> specs() const;

  const RefitContext& context_;
  std::unique_ptr<ReceiverPlan> plan_;
  std::vector<Rank> ranks_;

  // Of the attempt.
  std::vector<TensorSpec> specs_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, Bytes> waiting_;  // by number and owner
  std::vector<std::optional<std::uint64_t>> payloads_;  // of each owner in all, where known
  std::uint64_t next_number_ = 0;
  std::uint32_t next_owner_ = 0;
};

}  // namespace dcr
