#include "bench/model.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/limits.h"
#include "bench/changes.h"
#include "codec/item_reader.h"

namespace dcr {
namespace {

ByteSpan bytes_of(const std::vector<std::uint16_t>& words) {
  return {reinterpret_cast<const std::uint8_t*>(words.data()), words.size() * kBf16Bytes};
}

}  // namespace

Model::Model(const WeightPair& pair) : pair_(pair) {
  const std::uint64_t words = pair.before.size();
  const std::uint64_t tensors = divide_up(words, kTensorWords);
  for (std::uint32_t tensor = 0; tensor < tensors; ++tensor) {
    const std::uint64_t tensor_words = std::min(kTensorWords, words - tensor * kTensorWords);
    specs_.push_back({tensor_words, kBf16Bytes, false});
    for (std::uint64_t first = 0; first < tensor_words; first += piece_words(kBf16Bytes)) {
      Piece piece;
      piece.tensor = tensor;
      piece.width = kBf16Bytes;
      piece.box = ItemBox::range(first, std::min(piece_words(kBf16Bytes), tensor_words - first));
      pieces_.push_back(std::move(piece));
    }
  }
}

ByteSpan Model::before() const { return bytes_of(pair_.before); }
ByteSpan Model::after() const { return bytes_of(pair_.after); }

Status Model::load(std::uint64_t /*index*/, const Piece& piece, PieceBuffers* /*buffers*/,
                   const std::function<void(const ScanBox&)>& scan) {
  const std::uint64_t first = (piece.tensor * kTensorWords + piece.box.offset) * kBf16Bytes;
  ScanBox box;
  box.old_words = before().data() + first;
  box.new_words = after().data() + first;
  box.row_words = piece.box.words();
  box.old_row_stride_bytes = box.new_row_stride_bytes = box.row_words * kBf16Bytes;
  scan(box);
  return {};
}

Result<PipelineResult> Model::build(Executor& executor, PayloadSink& sink,
                                    const PipelineOptions& options) {
  return build_payloads(executor, pieces_, *this, options, sink);
}

Result<Payload> Model::read(ByteSpan stored) const {
  return Payload::read(stored, Digest{}, specs_, {kPayloadStoredBytesMax, kPayloadRawBytesMax});
}

Status Model::check(std::span<const Payload> payloads) const {
  std::vector<std::uint16_t> words = pair_.before;
  auto* bytes = reinterpret_cast<std::uint8_t*>(words.data());
  for (const Payload& payload : payloads) {
    for (const ItemView& item : payload.items()) {
      const ItemBox& box = item.header.box;
      const std::uint64_t first = (item.header.tensor * kTensorWords + box.offset) * kBf16Bytes;
      apply_item(item, MutableByteSpan(bytes + first, box.words() * kBf16Bytes));
    }
  }
  if (words != pair_.after) {
    return Status(Code::kMismatch, "payloads applied to the old weights do not give the new ones");
  }
  return {};
}

Status KeepingSink::send(std::uint64_t /*number*/, std::span<const std::uint8_t> bytes) {
  payloads_.emplace_back(bytes.begin(), bytes.end());
  return {};
}

Status CountingSink::send(std::uint64_t /*number*/, std::span<const std::uint8_t> bytes) {
  bytes_ += bytes.size();
  return {};
}

Result<BuiltPayloads> build_and_check(Model& model) {
  const std::unique_ptr<Executor> executor = make_executor(1);
  KeepingSink sink;
  DCR_TRY(model.build(*executor, sink).status());
  BuiltPayloads built;
  for (const Bytes& stored : sink.payloads()) {
    DCR_ASSIGN(Payload payload, model.read(stored));
    built.payloads.push_back(std::move(payload));
    built.stored_bytes += stored.size();
  }
  built.stored = sink.payloads();
  DCR_TRY(model.check(built.payloads));
  return built;
}

}  // namespace dcr
