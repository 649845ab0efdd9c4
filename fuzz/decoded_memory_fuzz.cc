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

class Fuzz {
 public:
  Fuzz() {
    ReceiverOptions options;
    options.decoded_bytes_max = kDecodedBytesMax;
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
  }

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
    payload->header.schema = catalogue_.schema();
    DCR_ASSERT(receiver_->begin_attempt({}).ok());
    const Result<Ingested> ingested = receiver_->ingest(payload);
    DCR_ASSERT(rank_.parameters() == base_);
    if (!ingested.ok() || *ingested != Ingested::kQueued) return;
    DCR_ASSERT(receiver_->apply().ok());
    for (std::size_t i = 0; i < base_.size(); ++i) {
      const MutableByteSpan target = rank_.memory.bytes(rank_.loader.all_targets[i].view.storage);
      std::copy(base_[i].begin(), base_[i].end(), target.begin());
    }
  }

 private:
  Catalogue catalogue_ = fuzz_catalogue();
  FuzzRank rank_;
  std::vector<Bytes> words_, base_;
  std::unique_ptr<Executor> executor_ = make_executor(1);
  std::unique_ptr<Receiver> receiver_;
};

}  // namespace
}  // namespace dcr

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static dcr::Fuzz fuzz;
  fuzz.run({data, size});
  return 0;
}
