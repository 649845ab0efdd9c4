// The payload layout of the paper (§5, Appendix D "Payload format", Figure D.3), which NeMo RL
// implements: per item either a run, of which only the start is kept, or gaps in the smallest
// integer type that holds them all (8, 16 or 32 bits; 64 are for tensors that a benchmark does not
// have); the words (XOR masks or new bits) in one buffer; both buffers
// in one zstd frame of level 1. It exists to be compared with: nothing outside bench/ knows it.
//
// The rows of item metadata are kept beside the body and never counted, to the layout's advantage.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "dcr/status.h"

namespace dcr {

enum class PaperLocation : std::uint8_t { kRun, kGaps8, kGaps16, kGaps32 };

struct PaperRow {
  std::uint64_t words = 0;  // of the tensor
  std::uint64_t count = 0;
  PaperLocation location = PaperLocation::kRun;
  std::uint64_t start = 0;            // kRun: the first position
  std::uint64_t location_offset = 0;  // bytes into the location buffer
  std::uint64_t value_offset = 0;     // words into the value buffer
};

struct PaperPayload {
  std::vector<PaperRow> rows;
  std::uint64_t location_bytes = 0, value_bytes = 0;  // of the body, before compression
  Bytes body;                                         // one zstd frame: locations, then values
};

enum class PaperEncoding : std::uint8_t { kXor, kOverwrite };

// Reuses its buffers from payload to payload. Not thread-safe.
class PaperEncoder {
 public:
  PaperEncoder();
  ~PaperEncoder();

  // Adds the changes of one tensor of `words` words. REQUIRES: positions ascend, are below `words`
  // and not empty; the three spans are equally long.
  void append(std::uint64_t words, std::span<const std::uint32_t> positions,
              std::span<const std::uint16_t> old_words, std::span<const std::uint16_t> new_words,
              PaperEncoding encoding);

  // Compresses what was appended, and starts afresh.
  PaperPayload seal();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What a payload says: all rows' positions and words, one after another.
struct PaperEntries {
  std::vector<std::uint32_t> positions;
  std::vector<std::uint16_t> words;
};

// Reuses its buffers from payload to payload. Not thread-safe.
class PaperDecoder {
 public:
  PaperDecoder();
  ~PaperDecoder();

  // Errors: kCorrupt, when the body is no frame of the announced size or a position lies outside
  // its tensor.
  Status decode(const PaperPayload& payload, PaperEntries* entries);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// zstd level 1 of `bytes`, one frame, as both layouts of the paper's Table 2 use it.
Bytes zstd_level1(ByteSpan bytes);
// The inverse for a frame of exactly `raw_bytes`. Error kCorrupt.
Result<Bytes> zstd_expand(ByteSpan frame, std::uint64_t raw_bytes);

}  // namespace dcr
