// Converters that compute canonical tensors from source tensors with arithmetic or from several at
// once (paper §4.3): what a trainer's export does and no placement describes. All of them read
// ranges of views and need memory for some rows only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dcr/ports.h"
#include "dcr/status.h"
#include "layout/owner_plan.h"
#include "tensor/catalogue.h"
#include "tensor/task.h"

namespace dcr {

// A source tensor that a converter reads: its name as flags know it (a task's, or of a tensor that
// only converters read).
struct ConverterInput {
  std::string name;
  TensorView view;
};

// One rank's share of an output: where the rank's rows and columns lie in the canonical tensor.
struct ConverterOutput {
  std::string canonical;
  Dtype dtype = Dtype::kBF16;
  std::uint64_t offset = 0;  // as ConverterPart
  Shape sizes;
  Shape strides;
};

// out = dtype(float(weight) · scale), `scale` being one F32 shared by all. Errors of all makers:
// kMismatch naming input and shape where sizes do not go together; kUnsupported for a dtype.
Result<std::unique_ptr<Converter>> make_scale_converter(SourceMemory& memory, std::string name,
                                                        ConverterInput weight, ConverterInput scale,
                                                        const ConverterOutput& out);

// out = dtype(float(weight) + scale · Σ_k float(b[i, k]) · float(a[k, j])), k ascending, each
// product and sum rounded to F32. weight is [n, m], b [n, r], a [r, m].
Result<std::unique_ptr<Converter>> make_low_rank_converter(SourceMemory& memory, std::string name,
                                                           ConverterInput weight, ConverterInput a,
                                                           ConverterInput b, float scale,
                                                           const ConverterOutput& out);

// weight [n, m] → F8_E4M3 with one F32 per block of 128 × 128: scale = max |w| / 448 (1 where that
// is 0, as it also is of the smallest subnormal numbers), out = e4m3(float(w) / scale). NaN
// elements do not count for the maximum. A rank's rows and columns begin and end at a block, or
// where the tensor ends.
inline constexpr std::uint64_t kFp8Block = 128;
inline constexpr float kFp8Max = 448.0F;
Result<std::unique_ptr<Converter>> make_fp8_converter(SourceMemory& memory, std::string name,
                                                      ConverterInput weight,
                                                      const ConverterOutput& out,
                                                      const ConverterOutput& scales);

// The full conversion of whole tensors from their shards (the paper's mode F): one converter for
// each group of the plan, in order, the same groups on every rank. A rank's converter has parts
// where the rank owns a task of the group (ConversionTask::replicas); storages of `memory` are as
// OwnerPlan::rank numbers them.
std::vector<std::unique_ptr<Converter>> make_identity_converters(const Catalogue& catalogue,
                                                                 const OwnerPlan& plan,
                                                                 std::uint32_t rank,
                                                                 SourceMemory& memory);

// The same for the rules of the layout that say so, while the others' tensors are projected.
std::vector<std::unique_ptr<Converter>> make_rule_converters(const Catalogue& catalogue,
                                                             const OwnerPlan& plan,
                                                             std::uint32_t rank,
                                                             SourceMemory& memory);

}  // namespace dcr
