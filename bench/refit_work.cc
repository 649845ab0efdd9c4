#include "bench/refit_work.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "bench/checkpoint_owners.h"
#include "bench/measure.h"
#include "bench/model.h"
#include "channel/descriptors.h"
#include "dcr/refit.h"
#include "receiver/decoded_memory.h"
#include "runtime/clock.h"
#include "runtime/file.h"
#include "transport/directory_store.h"

namespace dcr {
namespace {

constexpr PayloadLimits kPayloadLimits = {kPayloadStoredBytesMax, kPayloadRawBytesMax};

double processor_ms() {
  return 1e-6 * static_cast<double>(monotonic_clock().process_nanoseconds());
}

// A payload's way from its owner to the receivers of a node, every step by itself.
class DataPath {
 public:
  DataPath(const OpenPair& pair, const std::string& directory)
      : pair_(pair), store_(posix_file_system(), directory) {
    for (const CanonicalTensor& tensor : pair.catalogue.tensors()) {
      specs_.push_back({tensor.words, static_cast<std::uint8_t>(word_bytes(tensor.dtype)), false});
    }
  }

  Status construct(std::uint64_t owners) {
    RefitOptions options;
    options.owners.generate = "fsdp:" + std::to_string(owners);
    DCR_ASSIGN(const std::unique_ptr<CheckpointOwners> made,
               CheckpointOwners::make(pair_, options));
    sinks_.resize(made->ranks());
    std::vector<PayloadSink*> sinks;
    sinks.reserve(sinks_.size());
    for (KeepingSink& sink : sinks_) sinks.push_back(&sink);
    return made->prepare(sinks).status();
  }

  Status put(std::uint64_t attempt) {
    return for_each(
        [&](const ObjectKey& key, ByteSpan stored) -> Status {
          DCR_TRY(store_.begin(key));
          return store_.put(key, stored);
        },
        attempt);
  }

  Status to_receivers(std::uint64_t attempt, std::uint64_t receivers) {
    return for_each(
        [&](const ObjectKey& key, ByteSpan) -> Status {
          DCR_ASSIGN(const std::optional<Bytes> stored, store_.get(key, kPayloadStoredBytesMax));
          if (!stored) return {Code::kNotFound, "an object that was put is gone"};
          DCR_ASSIGN(const OwnedDescriptor memory, decode(*stored));
          for (std::uint64_t i = 0; i < receivers; ++i) DCR_TRY(validate(memory));
          return {};
        },
        attempt);
  }

 private:
  template <typename Work>
  Status for_each(const Work& work, std::uint64_t attempt) const {
    for (std::uint32_t owner = 0; owner < sinks_.size(); ++owner) {
      std::uint64_t number = 0;
      for (const Bytes& stored : sinks_[owner].payloads()) {
        DCR_TRY(work(ObjectKey{Digest{}, attempt, owner, number++}, ByteSpan(stored)));
      }
    }
    return {};
  }

  Result<OwnedDescriptor> decode(ByteSpan stored) const {
    DCR_ASSIGN(const Payload payload,
               Payload::read(stored, pair_.catalogue.schema(), specs_, kPayloadLimits));
    DCR_ASSIGN(WritableMemory memory, WritableMemory::make(decoded_memory_bytes(payload)));
    DCR_TRY(write_decoded(payload, stored_digest(stored),
                          [&](std::uint64_t at, ByteSpan part) { return memory.write(at, part); }));
    return std::move(memory).seal();
  }

  static Status validate(const OwnedDescriptor& descriptor) {
    DCR_ASSIGN(SealedMemory mapped, SealedMemory::map(descriptor, kPayloadRawBytesMax));
    const auto memory = std::make_shared<const SealedMemory>(std::move(mapped));
    return parse_decoded(memory->bytes(), memory, kPayloadRawBytesMax).status();
  }

  const OpenPair& pair_;
  DirectoryObjectStore store_;
  std::vector<TensorSpec> specs_;
  std::vector<KeepingSink> sinks_;
};

// What one process takes for owners and the receivers of one node.
Status measure_alone(const CheckpointPair& pair, const RefitShape& shape, unsigned rounds,
                     RefitWork* work) {
  RefitOptions options;
  options.owners.generate = "fsdp:" + std::to_string(shape.owners);
  options.receivers.generate = "fused-tp:" + std::to_string(shape.receivers_per_node);
  options.clock = &monotonic_clock();
  std::vector<double> construct, apply, baseline, send;
  for (unsigned round = 0; round < rounds; ++round) {
    DCR_ASSIGN(const RefitResult alone, refit(pair.before, pair.after, options));
    if (alone.differing_bytes != 0) {
      return {Code::kMismatch, "refit: a receiver differs from a dense load"};
    }
    const auto busy = [&](std::string_view name) {
      const auto found = std::find_if(alone.stages.begin(), alone.stages.end(),
                                      [&](const RefitStage& stage) { return stage.name == name; });
      return found == alone.stages.end() ? 0 : 1e3 * found->busy;
    };
    apply.push_back(busy("apply"));
    baseline.push_back(busy("commit"));
    send.push_back(std::max(busy("send"), busy("flags")));
    construct.push_back(1e3 * alone.refit_busy_seconds - busy("decode") - apply.back() -
                        baseline.back());
  }
  work->construct = median(std::move(construct));
  work->apply = median(std::move(apply));
  work->baseline = median(std::move(baseline));
  work->slowest_send = median(std::move(send));
  return {};
}

}  // namespace

RefitWork RefitWork::mean(const RefitWork& before, const RefitWork& after) {
  RefitWork work;
  for (double RefitWork::*field :
       {&RefitWork::construct, &RefitWork::put, &RefitWork::node, &RefitWork::apply,
        &RefitWork::baseline, &RefitWork::slowest_send}) {
    work.*field = (before.*field + after.*field) / 2;
  }
  return work;
}

double RefitWork::until_gates_open(double nodes, double cores) const {
  return std::max(slowest_send, (construct + put + nodes * (node + apply)) / cores);
}

double RefitWork::until_end(double nodes, double cores) const {
  return std::max(slowest_send, processor(nodes) / cores);
}

Result<RefitWork> measure_refit_work(const CheckpointPair& pair, const RefitShape& shape,
                                     unsigned rounds, const std::string& directory) {
  RefitWork work;
  DCR_TRY(measure_alone(pair, shape, rounds, &work));
  DCR_ASSIGN(const std::unique_ptr<OpenPair> open, OpenPair::open(pair));
  DataPath path(*open, directory);
  DCR_TRY(path.construct(shape.owners));
  std::vector<double> put, node;
  for (unsigned round = 0; round < rounds; ++round) {
    const std::uint64_t attempt = round + 1;
    const double begin = processor_ms();
    DCR_TRY(path.put(attempt));
    const double stored = processor_ms();
    DCR_TRY(path.to_receivers(attempt, shape.receivers_per_node));
    put.push_back(stored - begin);
    node.push_back(processor_ms() - stored);
  }
  work.put = median(std::move(put));
  work.node = median(std::move(node));
  return work;
}

}  // namespace dcr
