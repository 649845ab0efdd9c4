// What is refitted in a simulation: a small random model with layouts on both sides, the owners of
// its trainer and the receivers of its engines with their memories, and a few sets of weights with
// what a dense load makes of each. Planning and prewarm take a thousand times as long as a
// transition, so that a process makes each model once and runs many worlds on it, one at a time.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/prng.h"
#include "layout/owner_plan.h"
#include "layout/receiver_plan.h"
#include "layout/reference_loader.h"
#include "receiver/host_memory.h"
#include "receiver/receiver.h"
#include "runtime/threads.h"
#include "sim/collective.h"
#include "source/host_source_memory.h"
#include "source/owner_group.h"
#include "tests/random_model.h"

namespace dcr {

// Says what a write to parameters may be; sees each one before it happens.
class WriteGuard {
 public:
  virtual ~WriteGuard() = default;
  virtual void on_write() = 0;
};

// A receiver's memory; its guard, where there is one, is told of each write to a parameter.
class GuardedMemory final : public TargetMemory {
 public:
  // Storages below `parameters` are parameters, others scratch.
  GuardedMemory(HostMemory& memory, std::uint64_t parameters)
      : memory_(memory), parameters_(parameters) {}

  void set_guard(WriteGuard* guard) { guard_ = guard; }

  Result<std::uint64_t> storage_bytes(std::uint64_t storage) const override {
    return memory_.storage_bytes(storage);
  }
  Status apply(const TargetChanges& target, std::span<const std::uint32_t> positions,
               const void* values, ApplyMode mode, ApplyCounts* counts) override;
  Status read(const TensorView& view, std::span<std::uint8_t> out) override {
    return memory_.read(view, out);
  }
  Status write(const TensorView& view, std::span<const std::uint8_t> in) override;
  Result<std::uint64_t> allocate(std::uint64_t bytes) override { return memory_.allocate(bytes); }
  Status release(std::uint64_t storage) override { return memory_.release(storage); }
  Status synchronize() override { return memory_.synchronize(); }

 private:
  HostMemory& memory_;
  const std::uint64_t parameters_;
  WriteGuard* guard_ = nullptr;
};

using Image = std::vector<Bytes>;  // the storages of one receiver

// One serving rank of one engine.
class SimReceiver {
 public:
  SimReceiver(const Catalogue& catalogue, const ReceiverRank& plan, std::uint32_t rank);

  const Image& image() const { return storages_; }
  void set_image(const Image& image);
  // Whether the storages hold exactly this; else where they first differ.
  std::optional<std::string> differs(const Image& image) const;

  std::uint32_t rank() const { return rank_; }
  GuardedMemory& memory() { return guarded_; }
  Receiver& receiver() { return *receiver_; }

 private:
  friend class SimModel;

  const std::uint32_t rank_;
  std::vector<Bytes> storages_;
  HostMemory host_{std::uint64_t{1} << 20};
  GuardedMemory guarded_;
  ReferenceLoader loader_;
  std::unique_ptr<Receiver> receiver_;
};

// One trainer rank.
class SimOwner {
 public:
  // Its weights become those of the set that the shards are of.
  void load(const std::vector<Bytes>& shards);
  // Its process is a new one: the baseline is gone.
  void forget() { owner_->begin_initialize(nullptr); }

  Owner& owner() { return *owner_; }
  OwnerGroup& group() { return *group_; }

 private:
  friend class SimModel;

  std::deque<Bytes> storages_;
  HostSourceMemory memory_;
  std::vector<ConversionTask> tasks_;
  std::vector<std::unique_ptr<Converter>> converters_;
  std::unique_ptr<SimCollective> collective_;
  std::unique_ptr<Executor> executor_ = make_executor(1);
  std::unique_ptr<Owner> owner_;
  std::unique_ptr<OwnerGroup> group_;
};

class SimModel {
 public:
  // How many sets of weights there are; the first is the base checkpoint.
  static constexpr std::uint32_t kWeights = 12;
  // From here on they have nothing to do with those before.
  static constexpr std::uint32_t kUnrelated = 9;

  // The same number gives the same model. Random models that have too many tensors or a name that
  // receivers refuse are passed over.
  static std::unique_ptr<SimModel> make(std::uint64_t number);
  // Whether residual() of that model.
  static bool residual(std::uint64_t number) { return number % 8 == 3; }
  SimModel(RandomModel random, Prng prng, bool residual)  // for make
      : random_(std::move(random)), prng_(prng), residual_(residual) {}

  const Catalogue& catalogue() const { return random_.catalogue; }
  std::string text() const { return random_.text(); }
  std::uint32_t owners() const { return static_cast<std::uint32_t>(owners_.size()); }
  std::uint32_t engines() const { return engines_; }
  std::uint32_t ranks() const { return ranks_; }  // of one engine
  std::uint32_t receivers() const { return engines_ * ranks_; }
  std::size_t items() const;  // of a dense attempt, of all owners
  // Of all owners, of a step from the base to weights that have nothing to do with it.
  std::uint64_t payloads();
  // Of every tensor, for nodes: what a class allows, receivers look at themselves.
  std::span<const TensorSpec> specs() const { return specs_; }
  const Digest& fingerprint(std::uint32_t rank) { return fingerprints_[rank]; }
  const std::vector<Need>& needs(std::uint32_t rank) const { return needs_[rank]; }

  // The process of a rank; `spare`: another one of the same rank, made when it is first asked for.
  SimOwner& owner(std::uint32_t rank, bool spare = false);
  // `index`: engine × ranks + rank.
  SimReceiver& receiver(std::uint32_t index, bool spare = false);

  // Some tensors are converted, not projected, so that owners construct together and update their
  // baselines together (paper §4.3).
  bool residual() const { return residual_; }
  // Every owner's phase, where one waits for the others: phases[i] is that of owners[i], by rank.
  // What it is to each. `fault`: of what they say to each other.
  std::vector<Status> together(std::span<SimOwner* const> owners,
                               std::span<const std::function<Status()>> phases,
                               const CollectiveFault& fault = {});
  // All owners have the base, as their weights and their baselines.
  void initialize_owners();
  // No receiver's writes are seen any more.
  void unguard();

  const std::vector<Bytes>& shards(std::uint32_t weights, std::uint32_t owner);
  const Image& dense(std::uint32_t weights, std::uint32_t rank);
  // By owner, of every box that it owns.
  const std::vector<std::vector<Digest>>& digests(std::uint32_t weights);
  // Image `image` of a rank with other bits wherever an element of a tensor reaches.
  void scramble(Prng& prng, std::uint32_t rank, Image* image);

 private:
  Status build();
  Result<OwnerPlan> owner_plan();
  Status make_owners(std::vector<std::unique_ptr<SimOwner>>* made);
  void for_all_owners(std::uint32_t weights, const std::function<Status(std::uint32_t)>& phase);
  Status make_receivers();
  Result<std::unique_ptr<SimReceiver>> make_receiver(std::uint32_t rank);
  Status require_scratch(SimReceiver& receiver) const;
  void make_weights();
  std::uint64_t remembered_bytes_max(const std::vector<std::vector<OwnerBox>>& owners) const;

  const RandomModel random_;
  Prng prng_;
  const bool residual_;
  std::vector<bool> converted_;  // by rule of the owners' layout
  std::unique_ptr<SimRanks> sim_ranks_;
  std::unique_ptr<Executor> meeting_;  // a thread for each owner; null where they never meet
  std::unique_ptr<Executor> executor_ = make_executor(1);
  std::uint32_t engines_ = 1;
  std::uint32_t ranks_ = 1;
  std::uint64_t bucket_bytes_ = 1;  // of owners
  ReceiverOptions receiver_options_;
  std::vector<bool> collective_;  // by tensor, which receivers load as one
  std::vector<std::unique_ptr<SimOwner>> owners_, spare_owners_;
  std::vector<std::unique_ptr<SimReceiver>> receivers_, spare_receivers_;
  std::vector<ReceiverRank> plans_;       // by rank
  std::vector<std::vector<Need>> needs_;  // by rank
  std::vector<TensorSpec> specs_;
  std::vector<Digest> fingerprints_;                                   // by rank
  std::vector<std::vector<Bytes>> weights_;                            // canonical tensors
  std::map<std::uint64_t, std::vector<Bytes>> shards_;                 // by weights and owner
  std::map<std::uint64_t, Image> dense_;                               // by weights and rank
  std::map<std::uint32_t, std::vector<std::vector<Digest>>> digests_;  // by weights
  std::vector<Image> varying_;  // by rank: bytes that elements reach
};

}  // namespace dcr
