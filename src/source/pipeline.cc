#include "source/pipeline.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "source/attempt.h"

namespace dcr {
namespace {

// What one thread does in turns, summed up to one span. Without a clock nothing is measured.
struct PartOfScan {
  const char* stage = "";
  Clock* clock = nullptr;
  std::uint64_t begin_ns = 0, end_ns = 0, busy_ns = 0;
};

class PartTimer {
 public:
  explicit PartTimer(PartOfScan* part) : part_(part->clock == nullptr ? nullptr : part) {
    if (part_ == nullptr) return;
    if (part_->begin_ns == 0) part_->begin_ns = part_->clock->nanoseconds();
    busy_since_ns_ = part_->clock->thread_nanoseconds();
  }
  ~PartTimer() {
    if (part_ == nullptr) return;
    part_->busy_ns += part_->clock->thread_nanoseconds() - busy_since_ns_;
    part_->end_ns = part_->clock->nanoseconds();
  }
  PartTimer(const PartTimer&) = delete;
  PartTimer& operator=(const PartTimer&) = delete;

 private:
  PartOfScan* const part_;
  std::uint64_t busy_since_ns_ = 0;
};

// What one task needs for its pieces; kept from piece to piece.
struct Worker {
  ItemEncoder encoder;
  PieceBuffers buffers;
  std::vector<ScanBox> parts;
  PartOfScan project, compare, encode;
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

// Consecutive pieces of one lane.
struct Chunk {
  std::uint32_t lane = 0;
  std::size_t begin = 0, end = 0;
};

struct ScannedPiece {
  bool changed = false;
  EncodedItem item;
};
using ScannedChunk = std::vector<ScannedPiece>;

std::uint64_t piece_bytes(const Piece& piece) { return piece.box.words() * piece.width; }

std::vector<Chunk> cut_chunks(std::span<const Piece> pieces, std::uint32_t lane,
                              std::uint64_t chunk_bytes) {
  std::vector<Chunk> chunks;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::uint64_t more = piece_bytes(pieces[i]);
    const bool full =
        chunks.empty() || bytes + more > chunk_bytes || i - chunks.back().begin == kChunkPiecesMax;
    if (full) {
      chunks.push_back({lane, i, i});
      bytes = 0;
    }
    chunks.back().end = i + 1;
    bytes += more;
  }
  return chunks;
}

// The first chunks of all lanes, the second ones, …
std::vector<Chunk> order_chunks(std::span<const Lane> lanes, std::uint64_t chunk_bytes) {
  std::vector<std::vector<Chunk>> of_lanes;
  std::size_t most = 0;
  for (const Lane& lane : lanes) {
    of_lanes.push_back(
        cut_chunks(lane.pieces, static_cast<std::uint32_t>(of_lanes.size()), chunk_bytes));
    most = std::max(most, of_lanes.back().size());
  }
  std::vector<Chunk> ordered;
  for (std::size_t i = 0; i < most; ++i) {
    for (const std::vector<Chunk>& chunks : of_lanes) {
      if (i < chunks.size()) ordered.push_back(chunks[i]);
    }
  }
  return ordered;
}

// Comparison runs in between, and is none of the projection.
Status load(const Piece& piece, std::uint64_t index, PieceSource& source, Worker* worker,
            const std::function<void(const ScanBox&)>& scan) {
  const std::uint64_t compared_ns = worker->compare.busy_ns;
  Status loaded;
  {
    const PartTimer timer(&worker->project);
    loaded = source.load(index, piece, &worker->buffers, scan);
  }
  worker->project.busy_ns -= worker->compare.busy_ns - compared_ns;
  return loaded;
}

Status scan_as(EncodingChoice choice, const Piece& piece, std::uint64_t index, PieceSource& source,
               Worker* worker) {
  worker->parts.clear();
  const bool keep = source.keeps_parts();
  worker->encoder.begin(piece.tensor, piece.width, piece.box, choice);
  return load(piece, index, source, worker, [worker, keep](const ScanBox& part) {
    const PartTimer timer(&worker->compare);
    if (keep) worker->parts.push_back(part);
    worker->encoder.scan(part);
  });
}

// Scans and finds the smaller encoding, as ItemEncoder::finish does with parts at hand.
Status scan_changes(const Piece& piece, std::uint64_t index, PieceSource& source, Worker* worker) {
  DCR_TRY(scan_as(piece.choice, piece, index, source, worker));
  const bool again = piece.choice == EncodingChoice::kSmallest && !source.keeps_parts() &&
                     worker->encoder.add_is_poor();
  if (!again) return {};
  const std::uint64_t add_bits = worker->encoder.value_bits();
  DCR_TRY(scan_as(EncodingChoice::kOverwrite, piece, index, source, worker));
  if (worker->encoder.value_bits() < add_bits) return {};
  return scan_as(EncodingChoice::kAdd, piece, index, source, worker);
}

Result<ScannedPiece> scan_piece(const Piece& piece, std::uint64_t index, PieceSource& source,
                                Worker* worker) {
  ScannedPiece scanned;
  if (piece.send && !piece.whole) {
    DCR_TRY(scan_changes(piece, index, source, worker));
    const PartTimer timer(&worker->encode);
    scanned.changed = worker->encoder.finish(worker->parts, &scanned.item);
    source.scanned(index, scanned.changed ? scanned.item.header.changes : 0);
    return scanned;
  }
  worker->parts.clear();
  DCR_TRY(load(piece, index, source, worker,
               [worker](const ScanBox& part) { worker->parts.push_back(part); }));
  if (piece.send) {
    const PartTimer timer(&worker->encode);
    worker->encoder.encode_whole(piece.tensor, piece.width, piece.box, worker->parts,
                                 &scanned.item);
    scanned.changed = true;
  }
  return scanned;
}

Result<ScannedChunk> scan_chunk(const Lane& lane, const Chunk& chunk, const ScanOptions& options,
                                Worker* worker) {
  const SpanTimer timer(options.spans, options.stage, lane.owner);
  Clock* const clock = options.spans != nullptr && std::string_view(options.stage) == kStageScan
                           ? options.spans->parts_clock()
                           : nullptr;
  worker->project = {"project", clock};
  worker->compare = {"compare", clock};
  worker->encode = {"encode", clock};
  ScannedChunk scanned;
  scanned.reserve(chunk.end - chunk.begin);
  for (std::size_t i = chunk.begin; i < chunk.end; ++i) {
    DCR_ASSIGN(ScannedPiece piece, scan_piece(lane.pieces[i], i, *lane.source, worker));
    scanned.push_back(std::move(piece));
  }
  for (const PartOfScan* part : {&worker->project, &worker->compare, &worker->encode}) {
    if (part->begin_ns == 0) continue;  // no clock, or nothing of the kind
    options.spans->add({part->stage, lane.owner, part->begin_ns, part->end_ns, part->busy_ns});
  }
  return scanned;
}

}  // namespace

Status scan_lanes(Executor& executor, std::span<const Lane> lanes, const ScanOptions& options) {
  const std::vector<Chunk> chunks = order_chunks(lanes, options.chunk_bytes);
  WorkerPool workers;
  const auto produce = [&](std::uint64_t index) -> Result<ScannedChunk> {
    const Chunk& chunk = chunks[static_cast<std::size_t>(index)];
    std::unique_ptr<Worker> worker = workers.take();
    Result<ScannedChunk> scanned = scan_chunk(lanes[chunk.lane], chunk, options, worker.get());
    workers.give_back(std::move(worker));
    return scanned;
  };
  const auto consume = [&](std::uint64_t index, ScannedChunk&& scanned) -> Status {
    const Chunk& chunk = chunks[static_cast<std::size_t>(index)];
    const Lane& lane = lanes[chunk.lane];
    for (std::size_t i = 0; i < scanned.size(); ++i) {
      const Piece& piece = lane.pieces[chunk.begin + i];
      if (scanned[i].changed) {
        if (!piece.whole) lane.buckets->result().changed += scanned[i].item.header.changes;
        DCR_TRY(lane.buckets->add(scanned[i].item, piece_bytes(piece)));
        scanned[i].item = EncodedItem();
      }
      if (options.progress) options.progress(piece_bytes(piece));
    }
    return {};
  };
  return ordered_map<ScannedChunk>(executor, chunks.size(), options.window, options.cancel, produce,
                                   consume);
}

Result<PipelineResult> build_payloads(Executor& executor, std::span<const Piece> pieces,
                                      PieceSource& source, const PipelineOptions& options,
                                      PayloadSink& sink) {
  BucketOptions bucket_options;
  bucket_options.bytes = options.bucket_bytes;
  bucket_options.sealing = options.sealing;
  bucket_options.key = options.key;
  PayloadHeader header = options.header;
  header.number = 0;
  Buckets buckets(executor, bucket_options, header, sink);
  const Lane lane = {pieces, &source, &buckets, header.owner};
  ScanOptions scan;
  scan.window = options.window;
  scan.cancel = options.cancel;
  scan.progress = options.progress;
  DCR_TRY(scan_lanes(executor, {&lane, 1}, scan));
  DCR_TRY(buckets.finish());
  return buckets.result();
}

}  // namespace dcr
