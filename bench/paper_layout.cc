#include "bench/paper_layout.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>

#include "base/assert.h"

namespace dcr {
namespace {

struct FreeCompressor {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
};
struct FreeDecompressor {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};
using Compressor = std::unique_ptr<ZSTD_CCtx, FreeCompressor>;
using Decompressor = std::unique_ptr<ZSTD_DCtx, FreeDecompressor>;

// `room` only grows, so that a repeated compression does not pay for fresh memory.
Bytes compress(ZSTD_CCtx* context, ByteSpan bytes, Bytes* room) {
  room->resize(std::max(room->size(), ZSTD_compressBound(bytes.size())));
  const std::size_t size =
      ZSTD_compressCCtx(context, room->data(), room->size(), bytes.data(), bytes.size(), 1);
  DCR_ASSERT(ZSTD_isError(size) == 0);
  return Bytes(room->begin(), room->begin() + static_cast<std::ptrdiff_t>(size));
}

Status expand(ZSTD_DCtx* context, ByteSpan frame, std::uint64_t raw_bytes, Bytes* out) {
  out->resize(raw_bytes);
  const std::size_t size =
      ZSTD_decompressDCtx(context, out->data(), out->size(), frame.data(), frame.size());
  if (ZSTD_isError(size) != 0 || size != raw_bytes) {
    return Status(Code::kCorrupt, "the paper's layout: the body is no zstd frame of its raw size");
  }
  return {};
}

std::uint32_t gap_at(std::span<const std::uint32_t> positions, std::size_t i) {
  return i == 0 ? positions[0] : positions[i] - positions[i - 1] - 1;
}

std::uint32_t largest_gap(std::span<const std::uint32_t> positions) {
  std::uint32_t largest = positions[0];
  for (std::size_t i = 1; i < positions.size(); ++i) {
    largest = std::max(largest, positions[i] - positions[i - 1] - 1);
  }
  return largest;
}

template <typename T>
void write_gaps(std::span<const std::uint32_t> positions, std::uint8_t* out) {
  const T first = static_cast<T>(gap_at(positions, 0));
  std::memcpy(out, &first, sizeof(T));
  for (std::size_t i = 1; i < positions.size(); ++i) {
    const T gap = static_cast<T>(positions[i] - positions[i - 1] - 1);
    std::memcpy(out + i * sizeof(T), &gap, sizeof(T));
  }
}

// Positions from gaps; false when one lies at or behind `words`.
template <typename T>
bool read_gaps(const std::uint8_t* gaps, std::uint64_t count, std::uint64_t words,
               std::uint32_t* positions) {
  std::uint64_t next = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    T gap;
    std::memcpy(&gap, gaps + i * sizeof(T), sizeof(T));
    const std::uint64_t position = next + gap;
    positions[i] = static_cast<std::uint32_t>(position);
    next = position + 1;
  }
  return next <= words;
}

std::size_t gap_bytes(PaperLocation location) {
  switch (location) {
    case PaperLocation::kRun:
      return 0;
    case PaperLocation::kGaps8:
      return 1;
    case PaperLocation::kGaps16:
      return 2;
    case PaperLocation::kGaps32:
      return 4;
  }
  return 0;
}

}  // namespace

struct PaperEncoder::State {
  Compressor compressor{ZSTD_createCCtx()};
  std::vector<PaperRow> rows;
  Bytes locations;
  std::vector<std::uint16_t> values;
  Bytes room;
};

PaperEncoder::PaperEncoder() : state_(std::make_unique<State>()) {}
PaperEncoder::~PaperEncoder() = default;

void PaperEncoder::append(std::uint64_t words, std::span<const std::uint32_t> positions,
                          std::span<const std::uint16_t> old_words,
                          std::span<const std::uint16_t> new_words, PaperEncoding encoding) {
  DCR_ASSERT(!positions.empty() && positions.size() == old_words.size() &&
             positions.size() == new_words.size() && positions.back() < words);
  State& state = *state_;
  const std::size_t count = positions.size();
  PaperRow row;
  row.words = words;
  row.count = count;
  row.start = positions.front();
  row.location_offset = state.locations.size();
  row.value_offset = state.values.size();
  if (positions.back() - positions.front() + 1 != count) {
    const std::uint32_t largest = largest_gap(positions);
    row.location = largest <= 0xff     ? PaperLocation::kGaps8
                   : largest <= 0xffff ? PaperLocation::kGaps16
                                       : PaperLocation::kGaps32;
  }
  state.locations.resize(row.location_offset + count * gap_bytes(row.location));
  std::uint8_t* out = state.locations.data() + row.location_offset;
  if (row.location == PaperLocation::kGaps8) write_gaps<std::uint8_t>(positions, out);
  if (row.location == PaperLocation::kGaps16) write_gaps<std::uint16_t>(positions, out);
  if (row.location == PaperLocation::kGaps32) write_gaps<std::uint32_t>(positions, out);

  state.values.resize(row.value_offset + count);
  std::uint16_t* values = state.values.data() + row.value_offset;
  const std::uint16_t mask = encoding == PaperEncoding::kXor ? 0xffff : 0;
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<std::uint16_t>(new_words[i] ^ (old_words[i] & mask));
  }
  state.rows.push_back(row);
}

PaperPayload PaperEncoder::seal() {
  State& state = *state_;
  PaperPayload payload;
  payload.rows = std::move(state.rows);
  payload.location_bytes = state.locations.size();
  payload.value_bytes = state.values.size() * sizeof(std::uint16_t);
  // The values join the locations' buffer: one body, one frame.
  state.locations.resize(payload.location_bytes + payload.value_bytes);
  if (payload.value_bytes != 0) {
    std::memcpy(state.locations.data() + payload.location_bytes, state.values.data(),
                payload.value_bytes);
  }
  payload.body = compress(state.compressor.get(), state.locations, &state.room);
  state.rows.clear();
  state.locations.clear();
  state.values.clear();
  return payload;
}

struct PaperDecoder::State {
  Decompressor decompressor{ZSTD_createDCtx()};
  Bytes raw;
};

PaperDecoder::PaperDecoder() : state_(std::make_unique<State>()) {}
PaperDecoder::~PaperDecoder() = default;

Status PaperDecoder::decode(const PaperPayload& payload, PaperEntries* entries) {
  Bytes& raw = state_->raw;
  DCR_TRY(expand(state_->decompressor.get(), payload.body,
                 payload.location_bytes + payload.value_bytes, &raw));
  const std::uint64_t count = payload.value_bytes / sizeof(std::uint16_t);
  entries->positions.resize(count);
  entries->words.resize(count);
  if (count != 0) {
    std::memcpy(entries->words.data(), raw.data() + payload.location_bytes, payload.value_bytes);
  }
  for (const PaperRow& row : payload.rows) {
    std::uint32_t* positions = entries->positions.data() + row.value_offset;
    const std::uint8_t* gaps = raw.data() + row.location_offset;
    bool inside = true;
    switch (row.location) {
      case PaperLocation::kRun:
        for (std::uint64_t i = 0; i < row.count; ++i) {
          positions[i] = static_cast<std::uint32_t>(row.start + i);
        }
        inside = row.start + row.count <= row.words;
        break;
      case PaperLocation::kGaps8:
        inside = read_gaps<std::uint8_t>(gaps, row.count, row.words, positions);
        break;
      case PaperLocation::kGaps16:
        inside = read_gaps<std::uint16_t>(gaps, row.count, row.words, positions);
        break;
      case PaperLocation::kGaps32:
        inside = read_gaps<std::uint32_t>(gaps, row.count, row.words, positions);
        break;
    }
    if (!inside) return Status(Code::kCorrupt, "the paper's layout: a position is out of range");
  }
  return {};
}

Bytes zstd_level1(ByteSpan bytes) {
  const Compressor compressor(ZSTD_createCCtx());
  Bytes room;
  return compress(compressor.get(), bytes, &room);
}

Result<Bytes> zstd_expand(ByteSpan frame, std::uint64_t raw_bytes) {
  const Decompressor decompressor(ZSTD_createDCtx());
  Bytes raw;
  DCR_TRY(expand(decompressor.get(), frame, raw_bytes, &raw));
  return raw;
}

}  // namespace dcr
