// The stages after the scan, for one owner: items gather in a bucket, a full bucket is sealed into
// a payload on the executor while the next one fills, payloads are sent in their order.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

#include "base/bytes.h"
#include "base/limits.h"
#include "codec/payload.h"
#include "dcr/ports.h"
#include "dcr/status.h"
#include "runtime/clock.h"
#include "runtime/threads.h"

namespace dcr {

struct BucketOptions {
  std::uint64_t bytes = 512 * kMiB;  // input bytes of a bucket's items
  // Of its items' streams: what a bucket takes of memory. It closes early rather than exceed it.
  std::uint64_t raw_bytes_max = kPayloadRawBytesMax;
  std::uint64_t sealing = 2;  // buckets that are compressed or wait to be sent; two keep every
                              // thread busy while the next one fills
  ByteSpan key;
  SpanRecorder* spans = nullptr;
};

struct PipelineResult {
  std::uint64_t payloads = 0, items = 0;
  std::uint64_t changed = 0;  // words with an entry, whole pieces not counted
  std::uint64_t payload_bytes = 0;
  std::uint64_t items_by_encoding[3] = {0, 0, 0};
  std::uint64_t payload_raw_bytes_max = 0, payload_stored_bytes_max = 0;
};

// Used on one thread, of which the executor's tasks are none.
class Buckets {
 public:
  // Payloads are numbered from header.number on. REQUIRES: options.sealing >= 1.
  Buckets(Executor& executor, const BucketOptions& options, const PayloadHeader& header,
          PayloadSink& sink)
      : executor_(executor), options_(options), header_(header), sink_(sink) {}
  ~Buckets();  // tasks refer to this object: they end first
  Buckets(const Buckets&) = delete;
  Buckets& operator=(const Buckets&) = delete;

  // Adds an item that stands for `input_bytes`. A bucket closes before the item that would take it
  // above its limits, or above kItemsPerPayloadMax items; an item that alone is above them has a
  // bucket of its own. Items of one bucket must come in ascending (tensor, box.offset) order.
  Status add(const EncodedItem& item, std::uint64_t input_bytes);

  // Closes the bucket, so that the next item may be any.
  Status close();

  // Closes the bucket and sends everything.
  Status finish();

  PipelineResult& result() { return result_; }

 private:
  struct Sealing {
    PayloadWriter writer;
    PayloadHeader header;
    Bytes bytes;
    std::atomic<bool> done{false};
  };

  void wait_for(const Sealing& payload);
  Status send_first();

  Executor& executor_;
  const BucketOptions options_;
  PayloadHeader header_;  // of the next payload
  PayloadSink& sink_;
  PipelineResult result_;
  PayloadWriter bucket_;
  std::uint64_t bucket_bytes_ = 0;
  std::deque<std::unique_ptr<Sealing>> sealing_;
};

}  // namespace dcr
