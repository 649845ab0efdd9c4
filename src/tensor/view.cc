#include "tensor/view.h"

#include <algorithm>

#include "base/assert.h"

namespace dcr {

Shape contiguous_strides(const Shape& sizes) {
  Shape strides(sizes.size(), 1);
  for (std::size_t d = sizes.size(); d > 1; --d) {
    strides[d - 2] = strides[d - 1] * std::max<std::uint64_t>(sizes[d - 1], 1);
  }
  return strides;
}

TensorView contiguous_view(std::uint64_t storage, Dtype dtype, const Shape& sizes) {
  return {storage, dtype, 0, sizes, contiguous_strides(sizes)};
}

Dtype view_dtype(Dtype dtype) { return dtype_bits(dtype) < 8 ? Dtype::kU8 : dtype; }

TensorView contiguous_view(std::uint64_t storage, const CanonicalTensor& tensor) {
  const Dtype dtype = view_dtype(tensor.dtype);
  return contiguous_view(storage, dtype,
                         dtype == tensor.dtype ? tensor.shape : Shape{tensor.words});
}

std::uint64_t view_words(const TensorView& view) {
  std::uint64_t words = 1;
  for (const std::uint64_t size : view.sizes) words *= size;
  return words;
}

Status for_each_range(const TensorView& view, std::uint64_t first, std::uint64_t count,
                      const std::function<Status(const TensorView&)>& visit) {
  DCR_ASSERT(first <= view_words(view) && count <= view_words(view) - first);
  const Shape inner = contiguous_strides(view.sizes);  // words of one index step, by dimension
  while (count > 0) {
    // The largest aligned rectangle that begins at `first`: whole indices of dimension d, all the
    // dimensions before it at one index.
    TensorView piece = view;
    std::uint64_t rest = first;
    std::size_t d = 0;
    for (; d < view.sizes.size(); ++d) {
      const std::uint64_t index = rest / inner[d];
      rest -= index * inner[d];
      piece.offset += index * view.strides[d];
      piece.sizes[d] = 1;
      if (rest == 0 && count >= inner[d]) {
        piece.sizes[d] = std::min(count / inner[d], view.sizes[d] - index);
        break;
      }
    }
    const std::uint64_t words = d < view.sizes.size() ? piece.sizes[d] * inner[d] : 1;
    DCR_TRY(visit(piece));
    first += words;
    count -= words;
  }
  return {};
}

namespace {

// Calls `copy` with each piece of the range and the bytes of it.
template <typename Byte, typename Copy>
Status copy_range(const TensorView& view, std::uint64_t first, std::span<Byte> bytes, Copy copy) {
  const std::size_t width = word_bytes(view.dtype);
  return for_each_range(view, first, bytes.size() / width, [&](const TensorView& piece) {
    const std::size_t size = static_cast<std::size_t>(view_words(piece)) * width;
    const std::span<Byte> now = bytes.first(size);
    bytes = bytes.subspan(size);
    return copy(piece, now);
  });
}

}  // namespace

Status read_range(SourceMemory& memory, const TensorView& view, std::uint64_t first,
                  std::span<std::uint8_t> out) {
  return copy_range(view, first, out, [&](const TensorView& piece, std::span<std::uint8_t> bytes) {
    return memory.read(piece, bytes);
  });
}

Status read_range(TargetMemory& memory, const TensorView& view, std::uint64_t first,
                  std::span<std::uint8_t> out) {
  return copy_range(view, first, out, [&](const TensorView& piece, std::span<std::uint8_t> bytes) {
    return memory.read(piece, bytes);
  });
}

Status write_range(TargetMemory& memory, const TensorView& view, std::uint64_t first,
                   std::span<const std::uint8_t> in) {
  return copy_range(view, first, in,
                    [&](const TensorView& piece, std::span<const std::uint8_t> bytes) {
                      return memory.write(piece, bytes);
                    });
}

}  // namespace dcr
