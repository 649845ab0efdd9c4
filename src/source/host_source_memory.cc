#include "source/host_source_memory.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "base/checked.h"
#include "base/limits.h"
#include "simd/words.h"

namespace dcr {
namespace {

// Rows of at least so many bytes are read by themselves; shorter ones with what lies between them,
// so many bytes at a time.
constexpr std::uint64_t kRowBytesMin = 4 * kKiB;
constexpr std::uint64_t kSpanBytesMax = 256 * kKiB;

struct Axis {
  std::uint64_t size = 1;
  std::uint64_t stride = 1;
};
using Axes = std::span<const Axis>;

// Words from the first to one past the last. REQUIRES: no size is 0.
std::uint64_t span_words(Axes axes) {
  std::uint64_t last = 0;
  for (const Axis& axis : axes) last += (axis.size - 1) * axis.stride;
  return last + 1;
}

std::uint64_t count_words(Axes axes) {
  std::uint64_t product = 1;
  for (const Axis& axis : axes) product *= axis.size;
  return product;
}

// Copies words in the order of the axes' indices.
template <typename Word>
void gather(const std::uint8_t* from, Axes axes, std::uint8_t* to) {
  if (axes.empty()) {
    std::memcpy(to, from, sizeof(Word));
    return;
  }
  const Axis inner = axes.back();
  const Axes outer = axes.first(axes.size() - 1);
  std::vector<std::uint64_t> index(outer.size(), 0);
  while (true) {
    std::uint64_t start = 0;
    for (std::size_t i = 0; i < outer.size(); ++i) start += index[i] * outer[i].stride;
    const std::uint8_t* const row = from + start * sizeof(Word);
    if (inner.stride == 1) {
      std::memcpy(to, row, static_cast<std::size_t>(inner.size) * sizeof(Word));
    } else {
      for (std::uint64_t i = 0; i < inner.size; ++i) {
        store_word(to, i, load_word<Word>(row, i * inner.stride));
      }
    }
    to += inner.size * sizeof(Word);
    std::size_t at = outer.size();
    while (at > 0 && ++index[at - 1] == outer[at - 1].size) index[--at] = 0;
    if (at == 0) return;
  }
}

void gather_words(unsigned width, const std::uint8_t* from, Axes axes, std::uint8_t* to) {
  for_width(width, [&]<typename Word>(Word) { gather<Word>(from, axes, to); });
}

// Reads words of a file in the order of the axes' indices.
class FileReader {
 public:
  FileReader(const File& file, unsigned width) : file_(file), width_(width) {}

  Status read(std::uint64_t offset, Axes axes, std::uint8_t* to) {
    const std::uint64_t bytes = count_words(axes) * width_;
    const bool run = axes.empty() || (axes.size() == 1 && axes[0].stride == 1);
    if (run) return file_.read(offset, {to, static_cast<std::size_t>(bytes)});
    const bool long_rows = axes.back().stride == 1 && axes.back().size * width_ >= kRowBytesMin;
    if (!long_rows && span_words(axes) * width_ <= kSpanBytesMax)
      return read_span(offset, axes, to);
    // Some indices along the first axis at a time.
    std::uint64_t step = 1;
    const std::uint64_t one = span_words(axes.subspan(1)) * width_;
    const std::uint64_t pitch = axes[0].stride * width_;
    if (!long_rows && one < kSpanBytesMax && pitch > 0) step += (kSpanBytesMax - one) / pitch;
    std::vector<Axis> part(axes.begin(), axes.end());
    for (std::uint64_t i = 0; i < axes[0].size; i += step) {
      part[0].size = std::min(step, axes[0].size - i);
      const Axes rest = part[0].size == 1 ? Axes(part).subspan(1) : Axes(part);
      DCR_TRY(read(offset + i * pitch, rest, to));
      to += count_words(rest) * width_;
    }
    return {};
  }

 private:
  Status read_span(std::uint64_t offset, Axes axes, std::uint8_t* to) {
    if (span_ == nullptr) span_ = std::make_unique_for_overwrite<std::uint8_t[]>(kSpanBytesMax);
    const std::size_t bytes = static_cast<std::size_t>(span_words(axes)) * width_;
    DCR_TRY(file_.read(offset, {span_.get(), bytes}));
    gather_words(width_, span_.get(), axes, to);
    return {};
  }

  const File& file_;
  const unsigned width_;
  std::unique_ptr<std::uint8_t[]> span_;
};

Status invalid(const std::string& what) {
  return {Code::kInvalidArgument, "source memory: " + what};
}

// The view's axes without those of one index, merged where they continue each other. Checks that
// all its words lie within `storage_bytes`, and that they are `out_bytes`.
Result<std::vector<Axis>> check_view(const TensorView& view, std::uint64_t storage_bytes,
                                     std::uint64_t out_bytes) {
  if (dtype_bits(view.dtype) < 8) {
    return invalid(std::string(dtype_name(view.dtype)) + " is viewed as U8");
  }
  if (view.sizes.size() != view.strides.size() || view.sizes.size() > kRankMax) {
    return invalid("a view of " + std::to_string(view.sizes.size()) + " sizes and " +
                   std::to_string(view.strides.size()) + " strides");
  }
  const unsigned width = word_bytes(view.dtype);
  std::vector<Axis> axes;
  std::optional<std::uint64_t> last = view.offset;
  std::optional<std::uint64_t> words = 1;
  for (std::size_t i = 0; i < view.sizes.size(); ++i) {
    const Axis axis{view.sizes[i], view.strides[i]};
    words = checked_multiply(*words, axis.size);
    const auto reach = axis.size == 0 ? 0 : checked_multiply(axis.size - 1, axis.stride);
    last = reach ? checked_add(*last, *reach) : std::nullopt;
    if (!words || !last) return invalid("a view that overflows");
    if (axis.size == 1) continue;
    if (!axes.empty() && checked_multiply(axis.size, axis.stride) == axes.back().stride) {
      axes.back() = {axes.back().size * axis.size, axis.stride};
    } else {
      axes.push_back(axis);
    }
  }
  if (*words > 0 && *last >= storage_bytes / width) {
    return invalid("a view reaches word " + std::to_string(*last) + " of storage " +
                   std::to_string(view.storage) + ", which has " +
                   std::to_string(storage_bytes / width));
  }
  if (checked_multiply(*words, width) != out_bytes) {
    return invalid("a view of " + std::to_string(*words) + " words of " + std::to_string(width) +
                   " bytes into " + std::to_string(out_bytes) + " bytes");
  }
  return axes;
}

}  // namespace

Status read_host_view(ByteSpan storage, const TensorView& view, MutableByteSpan out) {
  DCR_ASSIGN(const std::vector<Axis> axes, check_view(view, storage.size(), out.size()));
  if (out.empty()) return {};
  const unsigned width = word_bytes(view.dtype);
  gather_words(width, storage.data() + view.offset * width, axes, out.data());
  return {};
}

std::uint64_t HostSourceMemory::add(ByteSpan bytes) {
  storages_.push_back({bytes.data(), nullptr, 0, bytes.size()});
  return storages_.size() - 1;
}

std::uint64_t HostSourceMemory::add_file(const File& file, std::uint64_t offset,
                                         std::uint64_t bytes) {
  storages_.push_back({nullptr, &file, offset, bytes});
  return storages_.size() - 1;
}

Status HostSourceMemory::read(const TensorView& view, std::span<std::uint8_t> out) {
  if (view.storage >= storages_.size()) {
    return invalid("there is no storage " + std::to_string(view.storage));
  }
  const Storage& storage = storages_[static_cast<std::size_t>(view.storage)];
  if (storage.file == nullptr) {
    return read_host_view({storage.memory, static_cast<std::size_t>(storage.bytes)}, view, out);
  }
  DCR_ASSIGN(const std::vector<Axis> axes, check_view(view, storage.bytes, out.size()));
  if (out.empty()) return {};
  const unsigned width = word_bytes(view.dtype);
  const std::uint64_t offset = view.offset * width;
  return FileReader(*storage.file, width).read(storage.file_offset + offset, axes, out.data());
}

}  // namespace dcr
