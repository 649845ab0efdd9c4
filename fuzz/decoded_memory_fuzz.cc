// Memory that a node hands over, into a receiver. Its size and schema are mended, so that what
// lies behind them is reached. What is refused has changed no parameter; what is taken is applied.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/assert.h"
#include "fuzz/serving_rank.h"
#include "receiver/decoded_memory.h"
#include "receiver/receiver.h"

namespace dcr {
namespace {

constexpr std::uint64_t kDecodedBytesMax = 1u << 20;
constexpr std::size_t kSizeOffset = 16;  // of the head (receiver/decoded_memory.h)

ReceiverOptions options() {
  ReceiverOptions options;
  options.decoded_bytes_max = kDecodedBytesMax;
  return options;
}

class Fuzz : FuzzReceiver {
 public:
  Fuzz() : FuzzReceiver(options()) {}

  void run(ByteSpan input) {
    // New memory of just this size: sanitizers see what lies outside.
    std::vector<std::uint64_t> memory((input.size() + 7) / 8);
    const MutableByteSpan bytes(reinterpret_cast<std::uint8_t*>(memory.data()), 8 * memory.size());
    std::copy(input.begin(), input.end(), bytes.begin());
    if (bytes.size() >= kSizeOffset + 8) {
      store_little<std::uint64_t>(bytes.data() + kSizeOffset, bytes.size());
    }
    const auto parsed = parse_decoded(bytes, nullptr, kDecodedBytesMax);
    if (!parsed.ok()) return;
    const auto payload = std::make_shared<DecodedPayload>(**parsed);
    payload->header.schema = catalogue.schema();
    DCR_ASSERT(receiver->begin_attempt({}).ok());
    const Result<Ingested> ingested = receiver->ingest(payload);
    DCR_ASSERT(rank.loader.parameters() == base);
    if (!ingested.ok() || *ingested != Ingested::kQueued) return;
    DCR_ASSERT(receiver->apply().ok());
    restore_base();
  }
};

}  // namespace
}  // namespace dcr

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static dcr::Fuzz fuzz;
  fuzz.run({data, size});
  return 0;
}
