#include "source/pipeline.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

namespace dcr {
namespace {

// What one task needs for one piece; kept from piece to piece.
struct Worker {
  ItemEncoder encoder;
  PieceBuffers buffers;
  std::vector<ScanBox> parts;
};

// Workers that no task uses at the moment.
class WorkerPool {
 public:
  std::unique_ptr<Worker> take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.empty()) return std::make_unique<Worker>();
    std::unique_ptr<Worker> worker = std::move(idle_.back());
    idle_.pop_back();
    return worker;
  }
  void give_back(std::unique_ptr<Worker> worker) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(worker));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>> idle_;
};

struct ScannedPiece {
  bool changed = false;
  EncodedItem item;
};

Result<ScannedPiece> scan_piece(const Piece& piece, std::uint64_t index, PieceSource& source,
                                Worker* worker) {
  ScannedPiece scanned;
  worker->parts.clear();
  if (!piece.whole) worker->encoder.begin(piece.tensor, piece.width, piece.box, piece.choice);
  DCR_TRY(source.load(index, piece, &worker->buffers, [&](const ScanBox& part) {
    worker->parts.push_back(part);
    if (!piece.whole) worker->encoder.scan(part);
  }));
  if (piece.whole) {
    worker->encoder.encode_whole(piece.tensor, piece.width, piece.box, worker->parts,
                                 &scanned.item);
    scanned.changed = true;
  } else {
    scanned.changed = worker->encoder.finish(worker->parts, &scanned.item);
  }
  return scanned;
}

// The stages after the scan: gathers items into buckets, seals full buckets on the executor, sends
// payloads in their order. Used on the calling thread only.
class BucketStage {
 public:
  BucketStage(Executor& executor, const PipelineOptions& options, PayloadSink& sink,
              PipelineResult* result)
      : executor_(executor), options_(options), sink_(sink), result_(result) {}

  // Tasks refer to this object.
  ~BucketStage() {
    for (const auto& payload : sealing_) wait_for(*payload);
  }
  BucketStage(const BucketStage&) = delete;
  BucketStage& operator=(const BucketStage&) = delete;

  Status add(const Piece& piece, const EncodedItem& item) {
    const std::uint64_t bytes = piece.box.words() * piece.width;
    const bool full = bucket_bytes_ + bytes > options_.bucket_bytes ||
                      bucket_.items() == kItemsPerPayloadMax;  // what readers take
    if (bucket_bytes_ > 0 && full) DCR_TRY(close_bucket());
    bucket_.append(item);
    bucket_bytes_ += bytes;
    ++result_->items;
    ++result_->items_by_encoding[static_cast<unsigned>(item.header.encoding)];
    if (!piece.whole) result_->changed += item.header.changes;
    return {};
  }

  Status finish() {
    if (bucket_bytes_ > 0) DCR_TRY(close_bucket());
    while (!sealing_.empty()) DCR_TRY(send_first());
    return {};
  }

 private:
  struct Sealing {
    PayloadWriter writer;
    PayloadHeader header;
    Bytes bytes;
    std::atomic<bool> done{false};
  };

  Status close_bucket() {
    if (sealing_.size() == options_.sealing) DCR_TRY(send_first());
    auto payload = std::make_unique<Sealing>();
    payload->writer = std::exchange(bucket_, PayloadWriter());
    payload->header = options_.header;
    payload->header.number = next_number_++;
    bucket_bytes_ = 0;
    result_->payload_raw_bytes_max =
        std::max(result_->payload_raw_bytes_max, payload->writer.raw_bytes());
    Sealing* sealing = payload.get();
    sealing_.push_back(std::move(payload));
    executor_.submit([this, sealing] {
      sealing->bytes = sealing->writer.seal(sealing->header, options_.key);
      sealing->done.store(true, std::memory_order_release);
    });
    return {};
  }

  void wait_for(const Sealing& payload) {
    executor_.wait([&payload] { return payload.done.load(std::memory_order_acquire); });
  }

  Status send_first() {
    wait_for(*sealing_.front());
    const std::unique_ptr<Sealing> payload = std::move(sealing_.front());
    sealing_.pop_front();
    result_->payload_bytes += payload->bytes.size();
    result_->payload_stored_bytes_max =
        std::max<std::uint64_t>(result_->payload_stored_bytes_max, payload->bytes.size());
    ++result_->payloads;
    return sink_.send(payload->header.number, payload->bytes);
  }

  Executor& executor_;
  const PipelineOptions& options_;
  PayloadSink& sink_;
  PipelineResult* result_;
  PayloadWriter bucket_;
  std::uint64_t bucket_bytes_ = 0;
  std::uint64_t next_number_ = 0;
  std::deque<std::unique_ptr<Sealing>> sealing_;
};

}  // namespace

Result<PipelineResult> build_payloads(Executor& executor, std::span<const Piece> pieces,
                                      PieceSource& source, const PipelineOptions& options,
                                      PayloadSink& sink) {
  PipelineResult result;
  WorkerPool workers;
  BucketStage buckets(executor, options, sink, &result);
  const auto produce = [&](std::uint64_t index) -> Result<ScannedPiece> {
    std::unique_ptr<Worker> worker = workers.take();
    Result<ScannedPiece> scanned =
        scan_piece(pieces[static_cast<std::size_t>(index)], index, source, worker.get());
    workers.give_back(std::move(worker));
    return scanned;
  };
  const auto consume = [&](std::uint64_t index, ScannedPiece&& scanned) -> Status {
    const Piece& piece = pieces[static_cast<std::size_t>(index)];
    if (scanned.changed) DCR_TRY(buckets.add(piece, scanned.item));
    if (options.progress) options.progress(piece.box.words() * piece.width);
    return {};
  };
  DCR_TRY(ordered_map<ScannedPiece>(executor, pieces.size(), options.window, options.cancel,
                                    produce, consume));
  DCR_TRY(buckets.finish());
  return result;
}

}  // namespace dcr
