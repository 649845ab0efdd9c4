#include "source/pipeline.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

namespace dcr {
namespace {

// What one task needs for its pieces; kept from piece to piece.
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

Status scan_as(EncodingChoice choice, const Piece& piece, std::uint64_t index, PieceSource& source,
               Worker* worker) {
  worker->parts.clear();
  const bool keep = source.keeps_parts();
  worker->encoder.begin(piece.tensor, piece.width, piece.box, choice);
  return source.load(index, piece, &worker->buffers, [worker, keep](const ScanBox& part) {
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
    scanned.changed = worker->encoder.finish(worker->parts, &scanned.item);
    source.scanned(index, scanned.changed ? scanned.item.header.changes : 0);
    return scanned;
  }
  worker->parts.clear();
  DCR_TRY(source.load(index, piece, &worker->buffers,
                      [worker](const ScanBox& part) { worker->parts.push_back(part); }));
  if (piece.send) {
    worker->encoder.encode_whole(piece.tensor, piece.width, piece.box, worker->parts,
                                 &scanned.item);
    scanned.changed = true;
  }
  return scanned;
}

Result<ScannedChunk> scan_chunk(const Lane& lane, const Chunk& chunk, const ScanOptions& options,
                                Worker* worker) {
  const SpanTimer timer(options.spans, options.stage, lane.owner);
  ScannedChunk scanned;
  scanned.reserve(chunk.end - chunk.begin);
  for (std::size_t i = chunk.begin; i < chunk.end; ++i) {
    DCR_ASSIGN(ScannedPiece piece, scan_piece(lane.pieces[i], i, *lane.source, worker));
    scanned.push_back(std::move(piece));
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
