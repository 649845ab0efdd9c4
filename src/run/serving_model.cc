#include "run/serving_model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/digest.h"

namespace dcr {
namespace {

// Scratch that loader and receiver may take together: a few of the largest tensors, and those that
// a loader needs whole, as many as the owners' payloads bring parts of at a time.
std::uint64_t scratch_bytes_max(const Catalogue& catalogue) {
  std::uint64_t largest = 0;
  std::uint64_t all = 0;
  for (const CanonicalTensor& tensor : catalogue.tensors()) {
    const std::uint64_t bytes = tensor.words * word_bytes(tensor.dtype);
    largest = std::max(largest, bytes);
    all += bytes;
  }
  return 8 * largest + all + kMiB;
}

}  // namespace

Result<std::unique_ptr<ServingModel>> ServingModel::make(const RunModel& model,
                                                         std::uint32_t rank) {
  auto made = std::make_unique<ServingModel>();
  DCR_ASSIGN(made->plan, model.receiver_plan.rank(model.catalogue, rank));
  DCR_ASSIGN(made->weights, Arena::anonymous(storages_bytes(made->plan.storage_bytes)));
  made->memory = std::make_unique<HostMemory>(scratch_bytes_max(model.catalogue));
  for (const MutableByteSpan storage : storages_in(made->weights, made->plan.storage_bytes)) {
    made->memory->add(storage);
  }
  made->loader =
      std::make_unique<ReferenceLoader>(model.catalogue, made->plan, *made->memory, rank);
  return made;
}

Status ServingModel::load(const RunModel& model, const Checkpoint& checkpoint) {
  CheckpointReader reader(checkpoint);
  DCR_TRY(load_dense(model.catalogue, reader, *memory, *loader));
  return loader->process_after_loading();
}

StorageComparison compare_storages(const ServingModel& a, const ServingModel& b) {
  StorageComparison result;
  for (std::size_t storage = 0; storage < a.plan.storage_bytes.size(); ++storage) {
    const ByteSpan one = a.memory->bytes(storage);
    const ByteSpan other = b.memory->bytes(storage);
    result.bytes += one.size();
    if (one.empty() || std::memcmp(one.data(), other.data(), one.size()) == 0) continue;
    for (std::size_t i = 0; i < one.size(); ++i) result.differing += one[i] == other[i] ? 0U : 1U;
  }
  return result;
}

Digest storage_digest(const ServingModel& model) {
  Bytes digests;
  for (std::size_t storage = 0; storage < model.plan.storage_bytes.size(); ++storage) {
    const Digest digest = xxh3(model.memory->bytes(storage));
    digests.insert(digests.end(), digest.begin(), digest.end());
  }
  return xxh3(digests);
}

}  // namespace dcr
