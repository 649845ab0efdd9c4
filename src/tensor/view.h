// Views in pieces: ranges of their words, and blocks that fit a buffer.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "dcr/ports.h"
#include "dcr/status.h"
#include "tensor/catalogue.h"

namespace dcr {

// A whole tensor from the start of a storage, row major. REQUIRES: within the limits of tensor.h.
TensorView contiguous_view(std::uint64_t storage, Dtype dtype, const Shape& sizes);

// Row-major strides. REQUIRES: as contiguous_view.
Shape contiguous_strides(const Shape& sizes);

// The dtype that views of such tensors have: of several elements to a word, bytes.
Dtype view_dtype(Dtype dtype);

// A tensor of the catalogue from the start of a storage.
TensorView contiguous_view(std::uint64_t storage, const CanonicalTensor& tensor);

std::uint64_t view_words(const TensorView& view);

// Words [first, first + count) of a view, in the order of its indices, as views one after the
// other (at most two per dimension). REQUIRES: the range lies within the view. Stops early when
// `visit` fails.
Status for_each_range(const TensorView& view, std::uint64_t first, std::uint64_t count,
                      const std::function<Status(const TensorView&)>& visit);

// Copies words [first, first + size / width) of a view out or in.
Status read_range(SourceMemory& memory, const TensorView& view, std::uint64_t first,
                  std::span<std::uint8_t> out);
Status read_range(TargetMemory& memory, const TensorView& view, std::uint64_t first,
                  std::span<std::uint8_t> out);
Status write_range(TargetMemory& memory, const TensorView& view, std::uint64_t first,
                   std::span<const std::uint8_t> in);

}  // namespace dcr
