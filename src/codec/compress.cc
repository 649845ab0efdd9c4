#include "codec/compress.h"

// Forced literal compression is an experimental parameter of the library; this is the one file that
// uses it. A library that refuses it falls back to level 1, and every decoder reads the result.
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

#include <algorithm>
#include <memory>
#include <string>

#include "base/assert.h"
#include "base/limits.h"

namespace dcr {
namespace {

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

// How a stream is compressed: with a search for repeats, or by the frequencies of its bytes alone.
enum class Search : std::uint8_t { kLevelOne, kNone };

// Streams up to this size are tried both ways; of longer ones a sample of this size is.
constexpr std::size_t kSampleBytes = 16 * 1024;

ZSTD_CCtx* context_for(Search search) {
  thread_local const std::unique_ptr<ZSTD_CCtx, FreeContext> kContext(ZSTD_createCCtx());
  DCR_ASSERT(kContext != nullptr);
  ZSTD_CCtx_reset(kContext.get(), ZSTD_reset_session_and_parameters);
  const auto set = [&](ZSTD_cParameter parameter, int value) {
    return ZSTD_isError(ZSTD_CCtx_setParameter(kContext.get(), parameter, value)) == 0;
  };
  DCR_ASSERT(set(ZSTD_c_compressionLevel, 1));
  if (search == Search::kNone && set(ZSTD_c_literalCompressionMode, ZSTD_ps_enable)) {
    // The longest step between attempts and the smallest table: matches are hardly ever found, and
    // cost nothing.
    DCR_ASSERT(set(ZSTD_c_strategy, ZSTD_fast));
    DCR_ASSERT(set(ZSTD_c_minMatch, 7));
    DCR_ASSERT(set(ZSTD_c_hashLog, ZSTD_HASHLOG_MIN));
    DCR_ASSERT(set(ZSTD_c_targetLength, ZSTD_TARGETLENGTH_MAX));
  }
  return kContext.get();
}

// Appends the frame to `out` if it is smaller than `raw`; returns its size, or raw.size().
std::size_t append_frame(Search search, ByteSpan raw, Bytes* out) {
  const std::size_t before = out->size();
  out->resize(before + ZSTD_compressBound(raw.size()));
  const std::size_t written = ZSTD_compress2(context_for(search), out->data() + before,
                                             out->size() - before, raw.data(), raw.size());
  DCR_ASSERT(ZSTD_isError(written) == 0);
  const bool smaller = written < raw.size();
  out->resize(before + (smaller ? written : 0));
  return smaller ? written : raw.size();
}

// The better way for a sample. A repeat that pays is worth at least one part in sixteen.
Search choose_search(ByteSpan sample) {
  Bytes scratch;
  const std::size_t none = append_frame(Search::kNone, sample, &scratch);
  scratch.clear();
  const std::size_t level_one = append_frame(Search::kLevelOne, sample, &scratch);
  return level_one + level_one / 16 < none ? Search::kLevelOne : Search::kNone;
}

}  // namespace

std::uint8_t compress_stream(ByteSpan raw, Bytes* out) {
  const std::size_t sample = std::min(raw.size(), kSampleBytes);
  const Search search = choose_search(raw.subspan((raw.size() - sample) / 2, sample));
  if (append_frame(search, raw, out) < raw.size()) return kCodingZstd;
  out->insert(out->end(), raw.begin(), raw.end());
  return kCodingStored;
}

Status check_frame(ByteSpan stored, std::uint64_t raw_bytes) {
  ZSTD_frameHeader header;
  const std::size_t missing = ZSTD_getFrameHeader(&header, stored.data(), stored.size());
  if (missing != 0) return Status(Code::kCorrupt, "not a zstd frame");
  if (header.frameType != ZSTD_frame) return Status(Code::kCorrupt, "a skippable zstd frame");
  if (header.dictID != 0) return Status(Code::kCorrupt, "a zstd frame with a dictionary");
  if (header.windowSize > std::max(std::uint64_t{1} << kZstdWindowLogMax, raw_bytes)) {
    return Status(Code::kTooLarge, "zstd window of " + std::to_string(header.windowSize) +
                                       " bytes is above 2^" + std::to_string(kZstdWindowLogMax));
  }
  if (header.frameContentSize == ZSTD_CONTENTSIZE_UNKNOWN) {
    return Status(Code::kCorrupt, "zstd frame does not declare its content size");
  }
  if (header.frameContentSize != raw_bytes) {
    return Status(Code::kCorrupt, "zstd frame declares " + std::to_string(header.frameContentSize) +
                                      " bytes, the stream table " + std::to_string(raw_bytes));
  }
  const std::size_t size = ZSTD_findFrameCompressedSize(stored.data(), stored.size());
  if (ZSTD_isError(size) != 0) return Status(Code::kCorrupt, "truncated zstd frame");
  if (size != stored.size()) {
    return Status(Code::kCorrupt,
                  std::to_string(stored.size() - size) + " bytes after the zstd frame");
  }
  return {};
}

Status decompress_frame(ByteSpan stored, MutableByteSpan out) {
  thread_local const std::unique_ptr<ZSTD_DCtx, FreeContext> kContext(ZSTD_createDCtx());
  DCR_ASSERT(kContext != nullptr);
  const std::size_t written =
      ZSTD_decompressDCtx(kContext.get(), out.data(), out.size(), stored.data(), stored.size());
  if (ZSTD_isError(written) != 0) {
    return Status(Code::kCorrupt, std::string("zstd: ") + ZSTD_getErrorName(written));
  }
  if (written != out.size()) return Status(Code::kCorrupt, "zstd frame ends early");
  return {};
}

}  // namespace dcr
