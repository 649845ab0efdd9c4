// Elementwise casts between floating-point dtypes: FP32 masters whose canonical tensors are BF16,
// and their like. The one place where weights are numbers.
//
// Casts give the bits of PyTorch's `.to(dtype)`: rounding to nearest, ties to even; F64 reaches any
// narrower type, and two narrow types each other, through F32. Out of range becomes infinity, and
// NaN in F8_E4M3, which has no infinity. NaNs, where PyTorch's own bits depend on the CPU, become
// what its portable code makes: 0x7fc0 in BF16, the sign and 0x7e00 in F16, the sign and 0x7f in
// 8-bit types; on the way to F32 and F64 they keep sign and payload, are made quiet except from
// BF16, and the NaN of F8_E4M3 becomes 0x7ff00000 in F32.
#pragma once

#include "base/bytes.h"
#include "dcr/status.h"
#include "dcr/tensor.h"

namespace dcr {

// Whether words of `from` can become words of `to`: equal dtypes, or both of F64, F32, F16, BF16,
// F8_E4M3, F8_E5M2. Error kUnsupported naming both.
Status cast_supported(Dtype from, Dtype to);

// Casts every word of `in`; equal dtypes are copied bit by bit. REQUIRES: cast_supported; `out` has
// as many words as `in`; the two do not overlap.
void cast_words(Dtype from, Dtype to, ByteSpan in, MutableByteSpan out);

}  // namespace dcr
