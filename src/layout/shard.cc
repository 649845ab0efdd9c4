#include "layout/shard.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "tensor/cast.h"
#include "tensor/text.h"
#include "tensor/view.h"

namespace dcr {

namespace {

// Shorter runs come from a window of canonical words that is read at once: a permuted tensor's runs
// are single words.
constexpr std::uint64_t kShortWords = 64;
constexpr std::uint64_t kWindowWords = 4096;

// Fills what one part of the placement maps, a canonical run at a time.
class PartFiller {
 public:
  // `from`, `to`: equal where words are copied.
  PartFiller(std::uint32_t tensor, std::uint64_t words, Dtype from, Dtype to,
             CanonicalReader& reader, std::span<std::uint8_t> out)
      : tensor_(tensor), words_(words), from_(from), to_(to), reader_(reader), out_(out) {}

  Status fill(Box box) {
    // In ascending canonical order, as the reader likes it.
    std::stable_sort(
        box.dims.begin(), box.dims.end(),
        [](const BoxDimension& a, const BoxDimension& b) { return a.dst_stride > b.dst_stride; });
    Status status;
    for_each_run(box, [&](const Run& run) {
      for (std::uint64_t done = 0; done < run.length && status.ok(); done += kBlockWords) {
        const std::uint64_t words = std::min(kBlockWords, run.length - done);
        status = fill_run(run.src + done, run.dst + done, words);
      }
      return status.ok();
    });
    return status;
  }

 private:
  Status fill_run(std::uint64_t local, std::uint64_t canonical, std::uint64_t words) {
    const std::size_t width = word_bytes(to_);
    const std::span<std::uint8_t> here = out_.subspan(local * width, words * width);
    const std::size_t from_width = word_bytes(from_);
    ByteSpan words_in;
    if (words < kShortWords) {
      DCR_TRY(look_at(canonical, words));
      words_in =
          ByteSpan(window_).subspan((canonical - window_begin_) * from_width, words * from_width);
    } else if (from_ == to_) {
      return reader_.read(tensor_, canonical, here);
    } else {
      block_.resize(words * from_width);
      DCR_TRY(reader_.read(tensor_, canonical, block_));
      words_in = block_;
    }
    cast_words(from_, to_, words_in, here);
    return {};
  }

  // Moves the window over words [canonical, canonical + words).
  Status look_at(std::uint64_t canonical, std::uint64_t words) {
    const std::size_t width = word_bytes(from_);
    const std::uint64_t held = window_.size() / width;
    if (canonical >= window_begin_ && canonical + words <= window_begin_ + held) return {};
    window_begin_ = canonical;
    window_.resize(std::min(kWindowWords, words_ - canonical) * width);
    return reader_.read(tensor_, canonical, window_);
  }

  std::uint32_t tensor_;
  std::uint64_t words_;  // of the canonical tensor
  Dtype from_;
  Dtype to_;
  CanonicalReader& reader_;
  std::span<std::uint8_t> out_;
  Bytes block_;
  Bytes window_;
  std::uint64_t window_begin_ = 0;
};

}  // namespace

Status fill_shard(const Catalogue& catalogue, const ConversionTask& task, CanonicalReader& reader,
                  std::span<std::uint8_t> out) {
  if (out.size() != view_words(task.view) * word_bytes(task.view.dtype)) {
    return {Code::kInvalidArgument, "source tensor " + quoted_name(task.name) + ": a buffer of " +
                                        std::to_string(out.size()) + " bytes"};
  }
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  for (const PlacementPart& part : task.placement) {
    const Dtype dtype = catalogue[part.destination].dtype;
    const Dtype from = view_dtype(dtype);  // words as they are
    DCR_TRY(cast_supported(from, task.view.dtype));
    PartFiller filler(part.destination, catalogue[part.destination].words, from, task.view.dtype,
                      reader, out);
    DCR_TRY(filler.fill(part.box));
  }
  return {};
}

}  // namespace dcr
