#include "layout/shard.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "layout/view.h"
#include "tensor/cast.h"
#include "tensor/text.h"

namespace dcr {

namespace {

constexpr std::uint64_t kBlockWords = 64 * 1024;

// Fills what one part of the placement maps, a canonical run at a time.
class PartFiller {
 public:
  // `from`, `to`: equal where words are copied.
  PartFiller(std::uint32_t tensor, Dtype from, Dtype to, CanonicalReader& reader,
             std::span<std::uint8_t> out)
      : tensor_(tensor), from_(from), to_(to), reader_(reader), out_(out) {}

  Status fill(const Box& box) {
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
    if (from_ == to_) return reader_.read(tensor_, canonical, here);
    block_.resize(words * word_bytes(from_));
    DCR_TRY(reader_.read(tensor_, canonical, block_));
    cast_words(from_, to_, block_, here);
    return {};
  }

  std::uint32_t tensor_;
  Dtype from_;
  Dtype to_;
  CanonicalReader& reader_;
  std::span<std::uint8_t> out_;
  Bytes block_;
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
    const Dtype from = dtype_bits(dtype) < 8 ? Dtype::kU8 : dtype;  // words as they are
    DCR_TRY(cast_supported(from, task.view.dtype));
    PartFiller filler(part.destination, from, task.view.dtype, reader, out);
    DCR_TRY(filler.fill(part.box));
  }
  return {};
}

}  // namespace dcr
