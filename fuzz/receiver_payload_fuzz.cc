// Payloads (fuzz/payload_input.h) into a receiver. Unless the whole payload is valid, no parameter
// changes; if it is, parameters become what a dense load of the changed tensors makes of them.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/assert.h"
#include "codec/item_reader.h"
#include "fuzz/payload_input.h"
#include "fuzz/serving_rank.h"
#include "receiver/receiver.h"

namespace dcr {
namespace {

constexpr PayloadLimits kLimits = {1u << 20, 1u << 20};

class Fuzz {
 public:
  Fuzz() {
    ReceiverOptions options;
    options.payload_limits = kLimits;
    options.decoded_bytes_max = 1u << 20;
    options.owners.resize(1);
    for (std::uint32_t i = 0; i < catalogue_.size(); ++i) {
      words_.emplace_back(catalogue_[i].words * word_bytes(catalogue_[i].dtype), 0x3c);
      options.owners[0].push_back({i, ItemBox::range(0, catalogue_[i].words)});
    }
    DCR_ASSERT(load_dense(rank_.loader, catalogue_, words_).ok());
    base_ = rank_.parameters();
    receiver_ =
        Receiver::create(catalogue_, rank_.loader, rank_.memory, *executor_, options).value();
    DCR_ASSERT(receiver_->prewarm().ok());
    DCR_ASSERT(receiver_->classes()[0].path == TensorPath::kScratch);
    DCR_ASSERT(receiver_->classes()[4].path == TensorPath::kTraced);
  }

  const Digest& schema() const { return catalogue_.schema(); }

  void run(ByteSpan stored) {
    DCR_ASSERT(receiver_->begin_attempt({}).ok());
    const Result<Ingested> ingested = receiver_->ingest(stored);
    DCR_ASSERT(rank_.parameters() == base_);
    if (!ingested.ok() || *ingested != Ingested::kQueued) return;
    const Result<std::uint64_t> applied = receiver_->apply();
    DCR_ASSERT(applied.ok());
    check_applied(stored, *applied);
    for (std::size_t i = 0; i < base_.size(); ++i) {
      const MutableByteSpan bytes = rank_.memory.bytes(rank_.loader.all_targets[i].view.storage);
      std::copy(base_[i].begin(), base_[i].end(), bytes.begin());
    }
  }

 private:
  void check_applied(ByteSpan stored, std::uint64_t applied) {
    std::vector<Bytes> words = words_;
    const auto payload = Payload::read(stored, schema(), receiver_->specs(), kLimits);
    DCR_ASSERT(payload.ok());
    DCR_ASSERT((payload->header().order() == 0) == (applied == 1));
    std::vector<std::uint64_t> came(words.size());
    for (const ItemView& item : payload->items()) came[item.header.tensor] += item.header.changes;
    for (const ItemView& item : payload->items()) {
      const ItemHeader& header = item.header;
      Bytes& tensor = words[header.tensor];
      const bool whole = receiver_->classes()[header.tensor].need == Need::kDense;
      // What is needed whole and came in part waits for the rest.
      if (applied == 0 || (whole && came[header.tensor] < tensor.size())) continue;
      apply_item(item, MutableByteSpan(tensor).subspan(header.box.offset * header.width));
    }
    FuzzRank dense;
    DCR_ASSERT(load_dense(dense.loader, catalogue_, words).ok());
    DCR_ASSERT(rank_.parameters() == dense.parameters());
  }

  Catalogue catalogue_ = fuzz_catalogue();
  FuzzRank rank_;
  std::vector<Bytes> words_, base_;
  std::unique_ptr<Executor> executor_ = make_executor(1);
  std::unique_ptr<Receiver> receiver_;
};

}  // namespace
}  // namespace dcr

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static dcr::Fuzz fuzz;
  fuzz.run(dcr::payload_input(fuzz.schema(), data, size));
  return 0;
}
