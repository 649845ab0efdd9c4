// Owners and receivers of one model, joined as a protocol joins them, with a dense load beside them
// to compare with: every byte of every storage, and guard bytes around each.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "layout/converters.h"
#include "layout/owner_plan.h"
#include "layout/receiver_plan.h"
#include "layout/reference_loader.h"
#include "layout/shard.h"
#include "receiver/host_memory.h"
#include "receiver/needs.h"
#include "receiver/receiver.h"
#include "source/host_source_memory.h"
#include "source/local_collective.h"
#include "source/owner_group.h"
#include "tests/support/test_memory.h"

namespace dcr {

// How a world is built, beside its layouts.
struct WorldOptions {
  bool full_conversion = false;  // whole tensors through converters instead of projections
  unsigned threads = 1;
  OwnerOptions owners;
  ReceiverOptions receivers;
};

// A loader that is another one from some moment on, as runtimes change under a receiver.
class ForwardingLoader final : public Loader {
 public:
  std::vector<LoaderTarget> targets() override { return to->targets(); }
  Result<LoadReport> load(std::string_view name, const TensorView& value,
                          LoaderHook& hook) override {
    return to->load(name, value, hook);
  }
  Loader* to = nullptr;
};

// One serving rank's storages, each between guard bytes.
struct WorldModel {
  static constexpr std::size_t kGuard = 16;
  static constexpr std::uint8_t kGuardByte = 0xa5;

  ReceiverRank plan;
  std::deque<Bytes> storages;  // with their guards
  HostMemory memory{std::uint64_t{1} << 26};
  std::unique_ptr<ReferenceLoader> loader;
  ForwardingLoader front;  // the receiver's

  WorldModel(const Catalogue& catalogue, ReceiverRank of, std::uint32_t rank)
      : plan(std::move(of)) {
    for (const std::uint64_t bytes : plan.storage_bytes) {
      const auto size = static_cast<std::size_t>(bytes);
      Bytes& storage = storages.emplace_back(size + 2 * kGuard, kGuardByte);
      memory.add(MutableByteSpan(storage).subspan(kGuard, size));
    }
    loader = std::make_unique<ReferenceLoader>(catalogue, plan, memory, rank);
    front.to = loader.get();
  }

  Status load(const Catalogue& catalogue, CanonicalReader& reader) {
    DCR_TRY(load_dense(catalogue, reader, memory, *loader));
    return loader->process_after_loading();
  }
};

class RefitWorld {
 public:
  using Payloads = std::vector<std::vector<Bytes>>;  // by owner

  // Errors: those of layouts and of all that is made from them. `catalogue` must outlive it.
  static Result<std::unique_ptr<RefitWorld>> make(const Catalogue& catalogue,
                                                  const std::string& owners,
                                                  const std::string& receivers,
                                                  WorldOptions options) {
    auto world = std::make_unique<RefitWorld>(catalogue, std::move(options));
    DCR_ASSIGN(Layout owner_layout, parse_owner_layout(owners));
    DCR_ASSIGN(Layout receiver_layout, parse_receiver_layout(receivers));
    DCR_TRY(world->make_owners(std::move(owner_layout)));
    DCR_TRY(world->make_receivers(std::move(receiver_layout)));
    return world;
  }

  RefitWorld(const Catalogue& catalogue, WorldOptions options)
      : truth(catalogue),
        catalogue_(catalogue),
        options_(std::move(options)),
        executor_(make_executor(options_.threads)) {}

  // Everything from `truth`: version `version` on owners and receivers, and prewarm. Prewarm may
  // change nothing, and no tensor may be refused.
  Status start(std::uint64_t version) {
    DCR_TRY(load_owners());
    DCR_TRY(group_->initialize(version));
    for (auto& rank : receivers_) {
      DCR_TRY(rank->model.load(catalogue_, truth));
      DCR_TRY(rank->receiver->prewarm());
    }
    std::vector<Receiver*> receivers;
    for (const auto& rank : receivers_) receivers.push_back(rank->receiver.get());
    DCR_TRY(share_collectives(receivers));
    for (auto& rank : receivers_) {
      for (std::uint32_t t = 0; t < catalogue_.size(); ++t) {
        const TensorClass& found = rank->receiver->classes()[t];
        if (found.path != TensorPath::kRefused) continue;
        return Status(Code::kUnsupported, "refused " + catalogue_[t].name + " on receiver " +
                                              std::to_string(rank->number) + ": " + found.reason);
      }
      DCR_TRY(rank->receiver->audit(
          [this](std::uint32_t tensor, std::uint64_t first, MutableByteSpan out) {
            return truth.read(tensor, first, out);
          }));
    }
    return compare();
  }

  // Gives the owners' weights the values of `truth`.
  Status load_owners() {
    for (auto& rank : owners_) {
      for (std::size_t i = 0; i < rank->plan.tasks.size(); ++i) {
        DCR_TRY(fill_shard(catalogue_, rank->plan.tasks[i], truth, rank->storages[i]));
      }
    }
    return {};
  }

  // What receivers need of owners, all together.
  std::vector<Need> needs() const {
    std::vector<Need> needs(catalogue_.size(), Need::kSkip);
    for (const auto& rank : receivers_) add_needs(needs_of(rank->receiver->classes()), &needs);
    return needs;
  }

  Result<Payloads> prepare(Attempt attempt) {
    attempt.needs = needs();
    return collect([&](std::span<PayloadSink* const> sinks) -> Status {
      DCR_ASSIGN(prepared, group_->prepare(attempt, sinks));
      return {};
    });
  }

  // What owners' baselines are, whole.
  Result<Payloads> restore(const RestoreHeader& header) {
    return collect([&](std::span<PayloadSink* const> sinks) {
      return group_->restore(header, sinks).status();
    });
  }

  const std::vector<std::vector<OwnerBox>>& owner_boxes() const {
    return options_.receivers.owners;
  }

  OwnerGroup& group() { return *group_; }
  std::size_t receivers() const { return receivers_.size(); }
  Receiver& receiver(std::size_t rank) { return *receivers_[rank]->receiver; }
  WorldModel& model(std::size_t rank) { return receivers_[rank]->model; }

  // The bytes of all storages of all receivers.
  std::vector<Bytes> resident() const {
    std::vector<Bytes> all;
    for (const auto& rank : receivers_) {
      all.insert(all.end(), rank->model.storages.begin(), rank->model.storages.end());
    }
    return all;
  }

  // What a dense load of `truth` makes of fresh receivers.
  Result<std::vector<Bytes>> dense() const {
    TestCanonical reader = truth;
    std::vector<Bytes> all;
    for (std::uint32_t number = 0; number < receivers_.size(); ++number) {
      DCR_ASSIGN(ReceiverRank plan, receiver_plan_->rank(catalogue_, number));
      WorldModel model(catalogue_, std::move(plan), number);
      DCR_TRY(model.load(catalogue_, reader));
      all.insert(all.end(), model.storages.begin(), model.storages.end());
    }
    return all;
  }

  // Error kMismatch: some byte is another than after a dense load of `truth`.
  Status compare() const {
    DCR_ASSIGN(const std::vector<Bytes> expected, dense());
    const std::vector<Bytes> found = resident();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto at = std::mismatch(found[i].begin(), found[i].end(), expected[i].begin());
      if (at.first == found[i].end()) continue;
      return Status(Code::kMismatch,
                    "byte " +
                        std::to_string(at.first - found[i].begin() -
                                       static_cast<std::ptrdiff_t>(WorldModel::kGuard)) +
                        " of storage " + std::to_string(i) + " differs from a dense load");
    }
    return {};
  }

  TestCanonical truth;  // the canonical words as owners export them
  std::vector<PrepareResult> prepared;

 private:
  struct Sink final : PayloadSink {
    Status send(std::uint64_t number, std::span<const std::uint8_t> bytes) override {
      if (number != payloads.size()) return Status(Code::kInternal, "payloads out of order");
      payloads.emplace_back(bytes.begin(), bytes.end());
      return {};
    }
    std::vector<Bytes> payloads;
  };
  struct OwnerRankState {
    OwnerRank plan;
    std::deque<Bytes> storages;
    HostSourceMemory memory;
    std::unique_ptr<LocalCollective> collective;
    std::vector<std::unique_ptr<Converter>> converters;
    std::unique_ptr<Owner> owner;
  };
  struct ReceiverRankState {
    ReceiverRankState(const Catalogue& catalogue, ReceiverRank plan, std::uint32_t rank)
        : number(rank), model(catalogue, std::move(plan), rank) {}
    std::uint32_t number = 0;
    WorldModel model;
    std::unique_ptr<Receiver> receiver;
  };

  template <typename Send>
  Result<Payloads> collect(Send send) {
    std::vector<Sink> sinks(owners_.size());
    std::vector<PayloadSink*> pointers;
    for (Sink& sink : sinks) pointers.push_back(&sink);
    DCR_TRY(send(std::span<PayloadSink* const>(pointers)));
    Payloads payloads;
    for (Sink& sink : sinks) payloads.push_back(std::move(sink.payloads));
    return payloads;
  }

  Status make_owners(Layout layout) {
    DCR_ASSIGN(const OwnerPlan plan, OwnerPlan::make(catalogue_, std::move(layout)));
    local_ = std::make_unique<LocalRanks>(plan.ranks());
    std::vector<OwnerInput> inputs;
    std::vector<OwnerDeclaration> declarations;
    std::vector<std::vector<ConversionTask>> tasks;
    for (std::uint32_t number = 0; number < plan.ranks(); ++number) {
      auto rank = std::make_unique<OwnerRankState>();
      rank->plan = plan.rank(catalogue_, number);
      for (const std::uint64_t bytes : rank->plan.storage_bytes) {
        rank->memory.add(rank->storages.emplace_back(static_cast<std::size_t>(bytes)));
      }
      rank->collective = std::make_unique<LocalCollective>(*local_, number);
      if (options_.full_conversion) {
        rank->converters = make_identity_converters(catalogue_, plan, number, rank->memory);
      } else {
        rank->converters = make_rule_converters(catalogue_, plan, number, rank->memory);
      }
      OwnerInput input{number, rank->plan.tasks, {}, {}, &rank->memory, rank->collective.get()};
      for (const auto& converter : rank->converters) input.converters.push_back(converter.get());
      DCR_ASSIGN(OwnerDeclaration declaration, declare_owner(input));
      declarations.push_back(std::move(declaration));
      tasks.push_back(rank->plan.tasks);
      inputs.push_back(std::move(input));
      owners_.push_back(std::move(rank));
    }
    DCR_TRY(check_tasks(catalogue_, tasks));
    DCR_ASSIGN(const std::shared_ptr<const Geometry> geometry,
               Geometry::make(catalogue_, declarations));
    std::vector<Owner*> pointers;
    for (std::uint32_t number = 0; number < plan.ranks(); ++number) {
      DCR_ASSIGN(owners_[number]->owner, Owner::create(geometry, std::move(inputs[number]), ""));
      local_->connect(number, owners_[number]->owner->residual());
      pointers.push_back(owners_[number]->owner.get());
    }
    DCR_ASSIGN(group_, OwnerGroup::create(std::move(pointers), *executor_, options_.owners));
    return {};
  }

  Status make_receivers(Layout layout) {
    for (const auto& rank : owners_) {
      std::vector<OwnerBox>& boxes = options_.receivers.owners.emplace_back();
      for (auto& [tensor, box] : rank->owner->item_boxes()) boxes.push_back({tensor, box});
    }
    for (const TargetBuffer& buffer : layout.buffers) {
      options_.receivers.never_loaded.push_back(buffer.name);
    }
    DCR_ASSIGN(ReceiverPlan plan, ReceiverPlan::make(catalogue_, std::move(layout)));
    receiver_plan_ = std::make_unique<ReceiverPlan>(std::move(plan));
    for (std::uint32_t number = 0; number < receiver_plan_->ranks(); ++number) {
      DCR_ASSIGN(ReceiverRank rank_plan, receiver_plan_->rank(catalogue_, number));
      auto rank = std::make_unique<ReceiverRankState>(catalogue_, std::move(rank_plan), number);
      DCR_ASSIGN(rank->receiver, Receiver::create(catalogue_, rank->model.front, rank->model.memory,
                                                  *executor_, options_.receivers));
      receivers_.push_back(std::move(rank));
    }
    return {};
  }

  const Catalogue& catalogue_;
  WorldOptions options_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<LocalRanks> local_;
  std::vector<std::unique_ptr<OwnerRankState>> owners_;
  std::unique_ptr<OwnerGroup> group_;
  std::unique_ptr<ReceiverPlan> receiver_plan_;
  std::vector<std::unique_ptr<ReceiverRankState>> receivers_;
};

}  // namespace dcr
