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

ReceiverOptions options() {
  ReceiverOptions options;
  options.payload_limits = kLimits;
  options.decoded_bytes_max = 1u << 20;
  return options;
}

class Fuzz : FuzzReceiver {
 public:
  Fuzz() : FuzzReceiver(options()) {
    DCR_ASSERT(receiver->classes()[0].path == TensorPath::kScratch);
    DCR_ASSERT(receiver->classes()[4].path == TensorPath::kTraced);
  }

  const Digest& schema() const { return catalogue.schema(); }

  void run(ByteSpan stored) {
    DCR_ASSERT(receiver->begin_attempt({}).ok());
    const Result<Ingested> ingested = receiver->ingest(stored);
    DCR_ASSERT(rank.loader.parameters() == base);
    if (!ingested.ok() || *ingested != Ingested::kQueued) return;
    const Result<std::uint64_t> applied = receiver->apply();
    DCR_ASSERT(applied.ok());
    check_applied(stored, *applied);
    restore_base();
  }

 private:
  void check_applied(ByteSpan stored, std::uint64_t applied) {
    std::vector<Bytes> changed = words;
    const auto payload = Payload::read(stored, schema(), receiver->specs(), kLimits);
    DCR_ASSERT(payload.ok());
    DCR_ASSERT((payload->header().order() == 0) == (applied == 1));
    std::vector<std::uint64_t> came(changed.size());
    for (const ItemView& item : payload->items()) came[item.header.tensor] += item.header.changes;
    for (const ItemView& item : payload->items()) {
      const ItemHeader& header = item.header;
      Bytes& tensor = changed[header.tensor];
      const bool whole = receiver->classes()[header.tensor].need == Need::kDense;
      // What is needed whole and came in part waits for the rest.
      if (applied == 0 || (whole && came[header.tensor] < tensor.size())) continue;
      apply_item(item, MutableByteSpan(tensor).subspan(header.box.offset * header.width));
    }
    FuzzRank dense;
    DCR_ASSERT(load_dense(dense.loader, catalogue, changed).ok());
    DCR_ASSERT(rank.loader.parameters() == dense.loader.parameters());
  }
};

}  // namespace
}  // namespace dcr

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static dcr::Fuzz fuzz;
  fuzz.run(dcr::payload_input(fuzz.schema(), data, size));
  return 0;
}
