#include "dcr/receiver.h"

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "api/embedded_receiver.h"
#include "receiver/host_memory.h"
#include "receiver/prewarm.h"
#include "receiver/rank_coverage.h"
#include "tensor/box.h"
#include "tensor/catalogue.h"

namespace dcr {
namespace {

class SizedMemory final : public SizedTargets {
 public:
  std::uint64_t add(std::uint64_t bytes) override {
    const std::lock_guard lock(mutex_);
    storages_[next_] = bytes;
    return next_++;
  }

  Result<std::uint64_t> storage_bytes(std::uint64_t storage) const override {
    const std::lock_guard lock(mutex_);
    const auto found = storages_.find(storage);
    if (found != storages_.end()) return found->second;
    return Status(Code::kNotFound, "there is no storage " + std::to_string(storage));
  }

  Status apply(const TargetChanges& /*target*/, std::span<const std::uint32_t> /*positions*/,
               const void* /*values*/, ApplyMode /*mode*/, ApplyCounts* /*counts*/) override {
    return absent();
  }
  Status read(const TensorView& /*view*/, std::span<std::uint8_t> /*out*/) override {
    return absent();
  }
  Status write(const TensorView& /*view*/, std::span<const std::uint8_t> /*in*/) override {
    return absent();
  }

  Result<std::uint64_t> allocate(std::uint64_t bytes) override { return add(bytes); }
  Status release(std::uint64_t storage) override {
    const std::lock_guard lock(mutex_);
    if (storages_.erase(storage) > 0) return {};
    return Status(Code::kNotFound, "there is no storage " + std::to_string(storage));
  }
  Status synchronize() override { return {}; }

 private:
  static Status absent() {
    return Status(Code::kUnsupported, "only the sizes of these storages are known");
  }

  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> storages_;
  std::uint64_t next_ = 0;
};

// That the tensor's side of a box is within the tensor.
Status check_placed(const CanonicalTensor& tensor, const PlacedBox& placed) {
  Box box;
  box.src_offset = placed.tensor_offset;
  for (const PlacedBox::Dimension& dim : placed.dimensions) {
    box.dims.push_back({dim.size, dim.tensor_stride, 0});
  }
  return validate_box(box, tensor.words, 1);
}

Status check_boxes(const std::vector<std::vector<CanonicalBox>>& owners) {
  for (std::size_t owner = 0; owner < owners.size(); ++owner) {
    for (const CanonicalBox& box : owners[owner]) {
      if (box.sizes.size() == box.strides.size()) continue;
      return Status(Code::kInvalidArgument,
                    "owner " + std::to_string(owner) + " has a box of tensor " +
                        std::to_string(box.tensor) + " with another number of strides than sizes");
    }
  }
  return {};
}

}  // namespace

std::vector<std::vector<OwnerBox>> owner_boxes(
    const std::vector<std::vector<CanonicalBox>>& owners) {
  std::vector<std::vector<OwnerBox>> all;
  for (const std::vector<CanonicalBox>& boxes : owners) {
    std::vector<OwnerBox>& of = all.emplace_back();
    for (const CanonicalBox& box : boxes) {
      OwnerBox made{box.tensor, {box.offset, {}}};
      for (std::size_t i = 0; i < box.sizes.size(); ++i) {
        made.box.dims.push_back({box.sizes[i], box.strides[i]});
      }
      of.push_back(std::move(made));
    }
  }
  return all;
}

std::unique_ptr<HostTargets> HostTargets::create(std::uint64_t scratch_bytes_max) {
  return std::make_unique<HostMemory>(scratch_bytes_max);
}

std::unique_ptr<SizedTargets> SizedTargets::create() { return std::make_unique<SizedMemory>(); }

EmbeddedReceiver::EmbeddedReceiver(std::unique_ptr<State> state) : state_(std::move(state)) {}
EmbeddedReceiver::~EmbeddedReceiver() = default;

Result<std::unique_ptr<EmbeddedReceiver>> EmbeddedReceiver::create(
    std::vector<CanonicalTensor> tensors, Loader& loader, TargetMemory& memory,
    EmbeddedReceiverOptions options) {
  DCR_TRY(check_boxes(options.owners));
  auto state = std::make_unique<State>();
  DCR_ASSIGN(state->catalogue, Catalogue::make(std::move(tensors)));
  state->memory = &memory;
  state->executor = make_executor(options.threads == 0 ? processor_count() : options.threads);
  ReceiverOptions inner;
  inner.owners = owner_boxes(options.owners);
  inner.never_loaded = std::move(options.never_loaded);
  inner.decoded_bytes_max = options.decoded_bytes_max;
  inner.key = std::move(options.key);
  inner.post_apply_checks = options.post_apply_checks;
  inner.prefer_scratch = options.prefer_scratch;
  inner.prewarm_stage = std::move(options.prewarm_stage);
  inner.interruption = std::move(options.interruption);
  DCR_ASSIGN(state->receiver, Receiver::create(state->catalogue, loader, memory, *state->executor,
                                               std::move(inner)));
  return std::make_unique<EmbeddedReceiver>(std::move(state));
}

const std::vector<CanonicalTensor>& EmbeddedReceiver::tensors() const {
  return state_->catalogue.tensors();
}

Status EmbeddedReceiver::prewarm() { return state_->receiver->prewarm(); }

std::span<const TensorClass> EmbeddedReceiver::classes() const {
  return state_->receiver->classes();
}

std::vector<PlacedBox> EmbeddedReceiver::placement(std::uint32_t tensor) const {
  return placed_boxes(state_->receiver->places(tensor));
}

Status EmbeddedReceiver::require_scratch(std::uint32_t tensor) {
  return state_->receiver->require_scratch(tensor);
}

std::array<std::uint8_t, 16> EmbeddedReceiver::fingerprint() const {
  return state_->receiver->fingerprint();
}

Status EmbeddedReceiver::audit(const ReadCanonical& base) { return state_->receiver->audit(base); }

Status EmbeddedReceiver::audit(std::span<const std::uint32_t> tensors, const ReadCanonical& base) {
  return state_->receiver->audit(tensors, base);
}

Status EmbeddedReceiver::begin_attempt(const ReceiverAttempt& attempt) {
  return state_->receiver->begin_attempt({attempt.run, attempt.attempt, attempt.base_version,
                                          attempt.target_version, attempt.mode,
                                          attempt.overwrite_only});
}

Result<Ingested> EmbeddedReceiver::ingest(std::span<const std::uint8_t> payload) {
  return state_->receiver->ingest(payload);
}

Status EmbeddedReceiver::end_of_owner(std::uint32_t owner, std::uint64_t payloads) {
  return state_->receiver->end_of_owner(owner, payloads);
}

Result<std::uint64_t> EmbeddedReceiver::apply() { return state_->receiver->apply(); }

Result<ReceiverCounts> EmbeddedReceiver::finish() { return state_->receiver->finish(); }

std::uint64_t EmbeddedReceiver::memory_bytes() const { return state_->receiver->memory_bytes(); }

Result<std::vector<UnevenTensor>> uneven_tensors(std::vector<CanonicalTensor> tensors,
                                                 std::span<const std::vector<RankShare>> ranks) {
  DCR_ASSIGN(const Catalogue catalogue, Catalogue::make(std::move(tensors)));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].size() != catalogue.size()) {
      return Status(Code::kInvalidArgument, "rank " + std::to_string(rank) + " has shares of " +
                                                std::to_string(ranks[rank].size()) + " of " +
                                                std::to_string(catalogue.size()) + " tensors");
    }
    for (std::uint32_t tensor = 0; tensor < catalogue.size(); ++tensor) {
      for (const PlacedBox& placed : ranks[rank][tensor].boxes) {
        const Status checked = check_placed(catalogue[tensor], placed);
        if (checked.ok()) continue;
        return about_tensor(catalogue[tensor], checked)
            .with_context("rank " + std::to_string(rank));
      }
    }
  }
  return uneven_tensors(catalogue, ranks);
}

Result<std::vector<TensorClass>> trace_geometry(std::vector<CanonicalTensor> tensors,
                                                Loader& loader, TargetMemory& memory,
                                                const EmbeddedReceiverOptions& options) {
  DCR_ASSIGN(const Catalogue catalogue, Catalogue::make(std::move(tensors)));
  DCR_ASSIGN(PrewarmResult result, prewarm_geometry(catalogue, loader, memory,
                                                    {options.never_loaded, false,
                                                     options.prewarm_stage, options.interruption}));
  return std::move(result.classes);
}

}  // namespace dcr
