#include "layout/converters.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/bytes.h"
#include "base/checked.h"
#include "layout/canonical_reader.h"
#include "layout/local_tensor.h"
#include "tensor/cast.h"
#include "tensor/text.h"
#include "tensor/view.h"

namespace dcr {

namespace {

constexpr std::uint64_t kLowRankMax = 4096;

Status check(bool right, const std::string& converter, const std::string& input,
             const std::string& what) {
  if (right) return {};
  return {Code::kMismatch,
          "converter " + quoted_name(converter) + ": input " + quoted_name(input) + " " + what};
}

ConverterPart part_of(const ConverterOutput& out) {
  return {out.canonical, out.offset, out.sizes, out.strides};
}

// Words [first, first + out.size()) of a view, as F32.
Status read_floats(SourceMemory& memory, const TensorView& view, std::uint64_t first,
                   std::span<float> out) {
  Bytes bytes(out.size() * word_bytes(view.dtype));
  DCR_TRY(read_range(memory, view, first, bytes));
  cast_words(view.dtype, Dtype::kF32, bytes,
             MutableByteSpan(reinterpret_cast<std::uint8_t*>(out.data()), out.size_bytes()));
  return {};
}

void write_floats(std::span<const float> in, Dtype dtype, MutableByteSpan out) {
  cast_words(Dtype::kF32, dtype,
             ByteSpan(reinterpret_cast<const std::uint8_t*>(in.data()), in.size_bytes()), out);
}

// What all of these converters share: the declaration, and conversion in blocks.
class BlockConverter : public Converter {
 public:
  BlockConverter(SourceMemory& memory, ConverterDeclaration declaration, std::vector<Dtype> dtypes)
      : memory_(memory), declaration_(std::move(declaration)), dtypes_(std::move(dtypes)) {}

  ConverterDeclaration declare() const final { return declaration_; }

  Status convert(std::uint64_t part, std::uint64_t first, std::uint64_t count,
                 std::span<std::uint8_t> out) final {
    const auto refuse = [&](const char* what) {
      return Status(Code::kInvalidArgument,
                    "converter " + quoted_name(declaration_.name) + ": " + what);
    };
    if (part >= declaration_.parts.size()) return refuse("no such part");
    std::uint64_t words = 1;
    for (const std::uint64_t size : declaration_.parts[part].sizes) words *= size;
    const std::size_t width = word_bytes(dtypes_[part]);
    if (first > words || count > words - first) return refuse("past the part's end");
    if (out.size() / width != count || out.size() % width != 0) {
      return refuse("a buffer of another size");
    }
    for (std::uint64_t done = 0; done < count; done += kBlockWords) {
      const std::uint64_t now = std::min(kBlockWords, count - done);
      DCR_TRY(convert_block(part, first + done, out.subspan(done * width, now * width)));
    }
    return {};
  }

 protected:
  // At most kBlockWords words, within the part.
  virtual Status convert_block(std::uint64_t part, std::uint64_t first, MutableByteSpan out) = 0;

  SourceMemory& memory_;
  ConverterDeclaration declaration_;
  std::vector<Dtype> dtypes_;  // index: part
};

class ScaleConverter final : public BlockConverter {
 public:
  ScaleConverter(SourceMemory& memory, ConverterDeclaration declaration, TensorView weight,
                 TensorView scale, Dtype dtype)
      : BlockConverter(memory, std::move(declaration), {dtype}),
        weight_(std::move(weight)),
        scale_(std::move(scale)) {}

 private:
  Status convert_block(std::uint64_t /*part*/, std::uint64_t first, MutableByteSpan out) override {
    float scale = 0;
    DCR_TRY(read_floats(memory_, scale_, 0, {&scale, 1}));
    std::vector<float> values(out.size() / word_bytes(dtypes_[0]));
    DCR_TRY(read_floats(memory_, weight_, first, values));
    for (float& value : values) value *= scale;
    write_floats(values, dtypes_[0], out);
    return {};
  }

  TensorView weight_;
  TensorView scale_;
};

class LowRankConverter final : public BlockConverter {
 public:
  LowRankConverter(SourceMemory& memory, ConverterDeclaration declaration, TensorView weight,
                   TensorView a, TensorView b, float scale, Dtype dtype)
      : BlockConverter(memory, std::move(declaration), {dtype}),
        weight_(std::move(weight)),
        a_(std::move(a)),
        b_(std::move(b)),
        scale_(scale) {}

 private:
  // Row by row; of a row a block of columns for which rank × columns values of `a` fit.
  Status convert_block(std::uint64_t /*part*/, std::uint64_t first, MutableByteSpan out) override {
    const std::uint64_t columns = weight_.sizes[1];
    const std::uint64_t rank = a_.sizes[0];
    const std::uint64_t block =
        std::max<std::uint64_t>(1, kBlockWords / std::max<std::uint64_t>(rank, 1));
    std::vector<float> values(out.size() / word_bytes(dtypes_[0]));
    DCR_TRY(read_floats(memory_, weight_, first, values));
    for (std::uint64_t at = 0; at < columns; at += block) {
      DCR_TRY(add_columns(first, at, std::min(columns, at + block), values));
    }
    write_floats(values, dtypes_[0], out);
    return {};
  }

  // Adds the product to those of the words [first, first + values.size()) that lie in columns
  // [begin, end).
  Status add_columns(std::uint64_t first, std::uint64_t begin, std::uint64_t end,
                     std::span<float> values) {
    const std::uint64_t columns = weight_.sizes[1];
    const std::uint64_t rank = a_.sizes[0];
    std::vector<float> a(rank * (end - begin));
    TensorView part = a_;
    part.offset += begin * part.strides[1];
    part.sizes[1] = end - begin;
    DCR_TRY(read_floats(memory_, part, 0, a));
    std::vector<float> b(rank);
    const std::uint64_t last = first + values.size();
    for (std::uint64_t row = first / columns; row * columns < last; ++row) {
      const std::uint64_t from = std::max(first, row * columns + begin);
      const std::uint64_t to = std::min(last, row * columns + end);
      if (from >= to) continue;
      DCR_TRY(read_floats(memory_, b_, row * rank, b));
      for (std::uint64_t at = from; at < to; ++at) {
        const std::uint64_t column = at - row * columns - begin;
        float sum = 0;
        for (std::uint64_t k = 0; k < rank; ++k) {
          const float product = b[k] * a[k * (end - begin) + column];
          sum += product;
        }
        const float added = scale_ * sum;
        values[at - first] += added;
      }
    }
    return {};
  }

  TensorView weight_;
  TensorView a_;
  TensorView b_;
  float scale_;
};

class Fp8Converter final : public BlockConverter {
 public:
  Fp8Converter(SourceMemory& memory, ConverterDeclaration declaration, TensorView weight)
      : BlockConverter(memory, std::move(declaration), {Dtype::kF8E4M3, Dtype::kF32}),
        weight_(std::move(weight)) {}

 private:
  std::uint64_t block_columns() const { return divide_up(weight_.sizes[1], kFp8Block); }

  // The scales of the blocks of block row `row` and block columns [begin, end).
  Status scales(std::uint64_t row, std::uint64_t begin, std::uint64_t end,
                std::vector<float>* out) {
    const std::uint64_t first = begin * kFp8Block;
    const std::uint64_t last = std::min(weight_.sizes[1], end * kFp8Block);
    const std::uint64_t bottom = std::min(weight_.sizes[0], (row + 1) * kFp8Block);
    out->assign(end - begin, 0.0F);
    std::vector<float> values(last - first);
    for (std::uint64_t i = row * kFp8Block; i < bottom; ++i) {
      DCR_TRY(read_floats(memory_, weight_, i * weight_.sizes[1] + first, values));
      for (std::uint64_t j = 0; j < values.size(); ++j) {
        float& largest = (*out)[j / kFp8Block];
        largest = std::fmax(largest, std::fabs(values[j]));  // passes over NaN
      }
    }
    for (float& scale : *out) {
      scale /= kFp8Max;
      if (scale == 0.0F) scale = 1.0F;
    }
    return {};
  }

  Status convert_block(std::uint64_t part, std::uint64_t first, MutableByteSpan out) override {
    return part == 0 ? convert_weight(first, out) : convert_scales(first, out);
  }

  Status convert_scales(std::uint64_t first, MutableByteSpan out) {
    const std::uint64_t columns = block_columns();
    std::vector<float> found;
    for (std::uint64_t done = 0; done < out.size() / sizeof(float);) {
      const std::uint64_t at = first + done;
      const std::uint64_t begin = at % columns;
      const std::uint64_t count = std::min(columns - begin, out.size() / sizeof(float) - done);
      DCR_TRY(scales(at / columns, begin, begin + count, &found));
      write_floats(found, Dtype::kF32, out.subspan(done * sizeof(float), count * sizeof(float)));
      done += count;
    }
    return {};
  }

  Status convert_weight(std::uint64_t first, MutableByteSpan out) {
    const std::uint64_t columns = weight_.sizes[1];
    std::vector<float> values(out.size());
    DCR_TRY(read_floats(memory_, weight_, first, values));
    const std::uint64_t last = first + values.size();
    std::vector<float> found;
    std::uint64_t known = ~std::uint64_t{0};  // the block row of `found`
    for (std::uint64_t row = first / columns; row * columns < last; ++row) {
      if (row / kFp8Block != known) {
        known = row / kFp8Block;
        DCR_TRY(scales(known, 0, block_columns(), &found));
      }
      const std::uint64_t from = std::max(first, row * columns);
      const std::uint64_t to = std::min(last, (row + 1) * columns);
      for (std::uint64_t at = from; at < to; ++at) {
        values[at - first] /= found[(at - row * columns) / kFp8Block];
      }
    }
    write_floats(values, Dtype::kF8E4M3, out);
    return {};
  }

  TensorView weight_;
};

class IdentityConverter final : public BlockConverter {
 public:
  // `views`: of each part, in the source's memory.
  IdentityConverter(SourceMemory& memory, ConverterDeclaration declaration,
                    std::vector<Dtype> dtypes, std::vector<TensorView> views)
      : BlockConverter(memory, std::move(declaration), std::move(dtypes)),
        views_(std::move(views)) {}

 private:
  Status convert_block(std::uint64_t part, std::uint64_t first, MutableByteSpan out) override {
    const TensorView& view = views_[part];
    if (view.dtype == dtypes_[part]) return read_range(memory_, view, first, out);
    Bytes bytes(out.size() / word_bytes(dtypes_[part]) * word_bytes(view.dtype));
    DCR_TRY(read_range(memory_, view, first, bytes));
    cast_words(view.dtype, dtypes_[part], bytes, out);
    return {};
  }

  std::vector<TensorView> views_;
};

// Inputs and output that go together element by element.
Status check_weight(const std::string& name, const ConverterInput& weight,
                    const ConverterOutput& out) {
  DCR_TRY(cast_supported(weight.view.dtype, Dtype::kF32));
  DCR_TRY(cast_supported(Dtype::kF32, out.dtype));
  return check(weight.view.sizes == out.sizes && out.sizes.size() == out.strides.size(), name,
               weight.name,
               "of shape " + shape_text(weight.view.sizes) + " does not make an output of shape " +
                   shape_text(out.sizes));
}

// The parts of a task, whole, as a converter makes them.
std::unique_ptr<Converter> convert_task(SourceMemory& memory, const Catalogue& catalogue,
                                        ConverterDeclaration declaration,
                                        const ConversionTask* task) {
  std::vector<Dtype> dtypes;
  std::vector<TensorView> views;
  const Placement none;
  for (const PlacementPart& part : task == nullptr ? none : task->placement) {
    TensorView view = task->view;
    view.offset += part.box.src_offset;
    view.sizes.clear();
    view.strides.clear();
    ConverterPart declared;
    declared.canonical = catalogue[part.destination].name;
    declared.offset = part.box.dst_offset;
    // In the order of the canonical tensor, which the task's own may not be.
    std::vector<BoxDimension> dims = part.box.dims;
    std::stable_sort(dims.begin(), dims.end(), [](const BoxDimension& a, const BoxDimension& b) {
      return a.dst_stride > b.dst_stride;
    });
    for (const BoxDimension& dim : dims) {
      view.sizes.push_back(dim.size);
      view.strides.push_back(dim.src_stride);
      declared.sizes.push_back(dim.size);
      declared.strides.push_back(dim.dst_stride);
    }
    views.push_back(std::move(view));
    declaration.parts.push_back(std::move(declared));
    const Dtype dtype = catalogue[part.destination].dtype;
    dtypes.push_back(view_dtype(dtype));
  }
  return std::make_unique<IdentityConverter>(memory, std::move(declaration), std::move(dtypes),
                                             std::move(views));
}

}  // namespace

Result<std::unique_ptr<Converter>> make_scale_converter(SourceMemory& memory, std::string name,
                                                        ConverterInput weight, ConverterInput scale,
                                                        const ConverterOutput& out) {
  DCR_TRY(check_weight(name, weight, out));
  DCR_TRY(check(scale.view.dtype == Dtype::kF32 && view_words(scale.view) == 1, name, scale.name,
                "is not one F32"));
  ConverterDeclaration declaration;
  declaration.name = std::move(name);
  declaration.inputs = {weight.name, scale.name};
  declaration.outputs = {out.canonical};
  declaration.parts = {part_of(out)};
  return std::unique_ptr<Converter>(std::make_unique<ScaleConverter>(
      memory, std::move(declaration), std::move(weight.view), std::move(scale.view), out.dtype));
}

Result<std::unique_ptr<Converter>> make_low_rank_converter(SourceMemory& memory, std::string name,
                                                           ConverterInput weight, ConverterInput a,
                                                           ConverterInput b, float scale,
                                                           const ConverterOutput& out) {
  DCR_TRY(check_weight(name, weight, out));
  const Shape& sizes = weight.view.sizes;
  DCR_TRY(check(sizes.size() == 2, name, weight.name, "is no matrix"));
  for (const ConverterInput* input : {&a, &b}) {
    DCR_TRY(check(input->view.sizes.size() == 2, name, input->name, "is no matrix"));
    DCR_TRY(cast_supported(input->view.dtype, Dtype::kF32));
  }
  const std::uint64_t rank = a.view.sizes[0];
  DCR_TRY(check(rank <= kLowRankMax, name, a.name,
                "has rank " + std::to_string(rank) + ", above " + std::to_string(kLowRankMax)));
  DCR_TRY(check(
      a.view.sizes[1] == sizes[1], name, a.name,
      "of shape " + shape_text(a.view.sizes) + " does not go with weight " + shape_text(sizes)));
  DCR_TRY(check(b.view.sizes[0] == sizes[0] && b.view.sizes[1] == rank, name, b.name,
                "of shape " + shape_text(b.view.sizes) + " does not go with weight " +
                    shape_text(sizes) + " and rank " + std::to_string(rank)));
  ConverterDeclaration declaration;
  declaration.name = std::move(name);
  declaration.inputs = {weight.name, a.name, b.name};
  declaration.outputs = {out.canonical};
  declaration.parts = {part_of(out)};
  return std::unique_ptr<Converter>(
      std::make_unique<LowRankConverter>(memory, std::move(declaration), std::move(weight.view),
                                         std::move(a.view), std::move(b.view), scale, out.dtype));
}

Result<std::unique_ptr<Converter>> make_fp8_converter(SourceMemory& memory, std::string name,
                                                      ConverterInput weight,
                                                      const ConverterOutput& out,
                                                      const ConverterOutput& scales) {
  DCR_TRY(check_weight(name, weight, out));
  const Shape& sizes = weight.view.sizes;
  DCR_TRY(check(sizes.size() == 2, name, weight.name, "is no matrix"));
  DCR_TRY(check(out.dtype == Dtype::kF8E4M3 && scales.dtype == Dtype::kF32, name, weight.name,
                "makes F8_E4M3 with scales in F32"));
  const Shape blocks = {divide_up(sizes[0], kFp8Block), divide_up(sizes[1], kFp8Block)};
  DCR_TRY(check(scales.sizes == blocks && scales.strides.size() == 2, name, weight.name,
                "of shape " + shape_text(sizes) + " makes scales of shape " + shape_text(blocks) +
                    ", not " + shape_text(scales.sizes)));
  ConverterDeclaration declaration;
  declaration.name = std::move(name);
  declaration.inputs = {weight.name};
  declaration.outputs = {out.canonical, scales.canonical};
  declaration.parts = {part_of(out), part_of(scales)};
  return std::unique_ptr<Converter>(
      std::make_unique<Fp8Converter>(memory, std::move(declaration), std::move(weight.view)));
}

namespace {

std::vector<std::unique_ptr<Converter>> convert_groups(
    const Catalogue& catalogue, const OwnerPlan& plan, std::uint32_t rank, SourceMemory& memory,
    const std::function<bool(const LayoutRule&)>& wanted) {
  const OwnerRank mine = plan.rank(catalogue, rank);
  std::size_t next = 0;  // of mine.tasks, which are in the order of the groups
  std::vector<std::unique_ptr<Converter>> made;
  for (const LayoutGroup& group : plan.groups()) {
    const LayoutRule& rule = plan.layout().rules[group.rule];
    const ConversionTask* task = nullptr;
    if (piece_of_rank(rule, group, rank).here) task = &mine.tasks[next++];
    if (!wanted(rule)) continue;
    ConverterDeclaration declaration;
    declaration.name = group.name;
    declaration.inputs = plan.task_names(group);
    declaration.custom_export = true;  // instead of the tasks' projections
    for (const std::uint32_t member : group.members) {
      declaration.outputs.push_back(catalogue[member].name);
    }
    if (task != nullptr && !owns(task->name, task->replicas, rank)) task = nullptr;
    made.push_back(convert_task(memory, catalogue, std::move(declaration), task));
  }
  return made;
}

}  // namespace

std::vector<std::unique_ptr<Converter>> make_identity_converters(const Catalogue& catalogue,
                                                                 const OwnerPlan& plan,
                                                                 std::uint32_t rank,
                                                                 SourceMemory& memory) {
  return convert_groups(catalogue, plan, rank, memory, [](const LayoutRule&) { return true; });
}

std::vector<std::unique_ptr<Converter>> make_rule_converters(const Catalogue& catalogue,
                                                             const OwnerPlan& plan,
                                                             std::uint32_t rank,
                                                             SourceMemory& memory) {
  return convert_groups(catalogue, plan, rank, memory,
                        [](const LayoutRule& rule) { return rule.convert; });
}

}  // namespace dcr
