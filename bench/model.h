// A pair of weights as the construction pipeline sees an owner's shards: tensors in memory, cut
// into pieces; and the check that payloads turn one version into the other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "bench/workloads.h"
#include "codec/payload.h"
#include "dcr/ports.h"
#include "runtime/threads.h"
#include "source/pipeline.h"

namespace dcr {

// Refers to the pair, which must outlive it. Thread-safe.
class Model final : public PieceSource {
 public:
  explicit Model(const WeightPair& pair);

  Status load(std::uint64_t index, const Piece& piece, PieceBuffers* buffers,
              const std::function<void(const ScanBox&)>& scan) override;

  // Builds all payloads as a refit would, handing them to `sink`.
  Result<PipelineResult> build(Executor& executor, PayloadSink& sink,
                               const PipelineOptions& options = {});

  // Reads one payload with all checks.
  Result<Payload> read(ByteSpan stored) const;

  // Applies the payloads to a copy of the old version and compares it with the new one, bit for
  // bit. Error kMismatch.
  Status check(std::span<const Payload> payloads) const;

  std::uint64_t bytes() const { return pair_.after.size() * sizeof(std::uint16_t); }
  ByteSpan before() const;
  ByteSpan after() const;
  std::span<const Piece> pieces() const { return pieces_; }

 private:
  const WeightPair& pair_;
  std::vector<Piece> pieces_;
  std::vector<TensorSpec> specs_;
};

// Keeps what it is sent.
class KeepingSink final : public PayloadSink {
 public:
  Status send(std::uint64_t number, std::span<const std::uint8_t> bytes) override;
  const std::vector<Bytes>& payloads() const { return payloads_; }

 private:
  std::vector<Bytes> payloads_;
};

// Counts what it is sent and drops it: a transport that costs nothing.
class CountingSink final : public PayloadSink {
 public:
  Status send(std::uint64_t number, std::span<const std::uint8_t> bytes) override;
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t bytes_ = 0;
};

// The payloads of `model`, read back, checked and measured.
struct BuiltPayloads {
  std::vector<Bytes> stored;
  std::vector<Payload> payloads;
  std::uint64_t stored_bytes = 0;
};
Result<BuiltPayloads> build_and_check(Model& model);

}  // namespace dcr
