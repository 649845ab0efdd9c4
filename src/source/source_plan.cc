#include "source/source_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/checked.h"
#include "tensor/cast.h"
#include "tensor/text.h"
#include "tensor/view.h"

namespace dcr {
namespace {

// A strided view cuts a part of a placement into at most so many boxes.
constexpr std::size_t kBoxesPerPartMax = 4096;
constexpr std::uint64_t kStorageWordsMax = std::uint64_t{1} << 60;

// From words of the storage to the positions in the order of the view's indices.
Result<Box> box_of_view(const TensorView& view, std::uint64_t elements) {
  if (view.sizes.size() != view.strides.size()) {
    return Status(Code::kInvalidArgument, "its view has " + std::to_string(view.sizes.size()) +
                                              " sizes and " + std::to_string(view.strides.size()) +
                                              " strides");
  }
  if (dtype_bits(view.dtype) < 8) {
    return Status(Code::kInvalidArgument, std::string(dtype_name(view.dtype)) + " is viewed as U8");
  }
  Box box{view.offset, 0, {}};
  std::uint64_t position = 1;
  box.dims.resize(view.sizes.size());
  for (std::size_t i = view.sizes.size(); i-- > 0;) {
    box.dims[i] = {view.sizes[i], view.strides[i], position};
    position *= std::max<std::uint64_t>(view.sizes[i], 1);
  }
  DCR_TRY(validate_box(box, kStorageWordsMax, elements));
  return normalize(std::move(box));
}

// A part of a placement with the storage in the place of the source tensor's elements.
Result<std::vector<Box>> over_view(const Box& view, const Box& part) {
  const bool contiguous =
      view.dims.empty() || (view.dims.size() == 1 && view.dims[0].src_stride == 1);
  if (contiguous) {
    std::vector<Box> moved(1, part);
    moved[0].src_offset += view.src_offset;
    return moved;
  }
  if (!destinations_disjoint({invert(part)})) {
    return Status(Code::kUnsupported, "a part that repeats elements of a strided view");
  }
  return compose(view, part, kBoxesPerPartMax);
}

// One list entry until pieces are in order.
struct Planned {
  Piece piece;
  SourcePiece source;
};

class Planner {
 public:
  explicit Planner(const SourcePlanInput& input) : input_(input) {}

  Status add_task(std::uint32_t index) {
    const ConversionTask& task = input_.tasks[index];
    if (task.replicas.empty()) return no_replicas();
    if (!owns(task.name, task.replicas, input_.rank)) return {};
    DCR_ASSIGN(const std::uint64_t elements, tensor_elements(task.view.sizes));
    DCR_ASSIGN(const Box view, box_of_view(task.view, elements));
    const std::vector<bool> counted = counted_parts(task.placement);
    const bool feeds = input_.feeds(task.name);
    std::vector<Box> held;  // if it feeds: source elements whose bits the canonical words hold
    bool projected = false;
    for (std::size_t i = 0; i < task.placement.size(); ++i) {
      const PlacementPart& part = task.placement[i];
      if (part.destination >= input_.catalogue->size()) {
        return {Code::kInvalidArgument, "part " + std::to_string(i) + " goes to tensor index " +
                                            std::to_string(part.destination) +
                                            ", which is not in the catalogue"};
      }
      const CanonicalTensor& tensor = (*input_.catalogue)[part.destination];
      DCR_TRY(about_tensor(tensor, validate_box(part.box, elements, tensor.words)));
      if (!input_.projected(part.destination)) continue;
      projected = true;
      const Dtype dtype = view_dtype(tensor.dtype);
      DCR_TRY(about_tensor(tensor, cast_supported(task.view.dtype, dtype)));
      DCR_TRY(about_tensor(tensor, add_part(index, view, part, counted[i])));
      if (feeds && counted[i] && task.view.dtype == dtype) held.push_back(invert(part.box));
    }
    if (!feeds || covers_exactly_once(held, elements).ok()) return {};
    return add_tracked(index, task.view, view, !projected);
  }

  Status add_tracked_source(std::uint32_t index) {
    const TrackedSource& source = input_.tracked[index];
    if (source.replicas.empty()) return no_replicas();
    if (!owns(source.name, source.replicas, input_.rank)) return {};
    DCR_ASSIGN(const std::uint64_t elements, tensor_elements(source.view.sizes));
    DCR_ASSIGN(const Box view, box_of_view(source.view, elements));
    return add_tracked(static_cast<std::uint32_t>(input_.tasks.size()) + index, source.view, view,
                       true);
  }

  SourcePlan finish() {
    std::vector<std::size_t> order(planned_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) {
      const Piece& left = planned_[a].piece;
      const Piece& right = planned_[b].piece;
      if (left.tensor != right.tensor) return left.tensor < right.tensor;
      return left.tensor != kNoTensor && left.box.offset < right.box.offset;
    });
    SourcePlan plan;
    plan.pieces.reserve(order.size());
    plan.sources.reserve(order.size());
    for (const std::size_t i : order) {
      Planned& planned = planned_[i];
      planned.source.arena_offset = plan.arena_bytes;
      plan.arena_bytes += arena_bytes_of(planned.piece.box.words() * planned.piece.width);
      plan.pieces.push_back(std::move(planned.piece));
      plan.sources.push_back(std::move(planned.source));
    }
    return plan;
  }

 private:
  static Status no_replicas() { return {Code::kInvalidArgument, "no rank holds it"}; }

  // Which parts come first with their source elements. One source element at two places of
  // canonical tensors is one element that changed.
  static std::vector<bool> counted_parts(const Placement& placement) {
    std::vector<bool> counted(placement.size(), true);
    if (placement.size() < 2) return counted;
    std::vector<Box> sources;
    sources.reserve(placement.size());
    for (const PlacementPart& part : placement) sources.push_back(invert(part.box));
    if (destinations_disjoint(sources)) return counted;
    std::vector<Box> first;
    for (std::size_t i = 0; i < placement.size(); ++i) {
      first.push_back(sources[i]);
      counted[i] = destinations_disjoint(first);
      if (!counted[i]) first.pop_back();
    }
    return counted;
  }

  Status add_part(std::uint32_t task, const Box& view, const PlacementPart& part, bool counted) {
    if (part.box.elements() == 0) return {};
    const unsigned width = word_bytes((*input_.catalogue)[part.destination].dtype);
    DCR_ASSIGN(const std::vector<Box> boxes, over_view(view, part.box));
    for (const Box& box : boxes) {
      DCR_ASSIGN(const Box ordered, in_canonical_order(box));
      add_pieces(task, part.destination, width, ordered, counted);
    }
    return {};
  }

  Status add_tracked(std::uint32_t source, const TensorView& view, const Box& box, bool counted) {
    add_pieces(source, kNoTensor, word_bytes(view.dtype), box, counted);
    return {};
  }

  void add_pieces(std::uint32_t source, std::uint32_t tensor, unsigned width, const Box& box,
                  bool counted) {
    for (Box& part : split(box, piece_words(width))) {
      Planned planned;
      planned.piece.tensor = tensor;
      planned.piece.width = static_cast<std::uint8_t>(width);
      planned.piece.box = canonical_side(part);
      planned.piece.send = tensor != kNoTensor;
      planned.source = {source, std::move(part), 0, counted};
      planned_.push_back(std::move(planned));
    }
  }

  const SourcePlanInput& input_;
  std::vector<Planned> planned_;
};

}  // namespace

Result<Box> in_canonical_order(Box box) {
  box = normalize(std::move(box));
  std::stable_sort(
      box.dims.begin(), box.dims.end(),
      [](const BoxDimension& a, const BoxDimension& b) { return a.dst_stride > b.dst_stride; });
  std::uint64_t reach = 1;
  for (std::size_t i = box.dims.size(); i-- > 0;) {
    const BoxDimension& dim = box.dims[i];
    if (dim.dst_stride < reach) {
      return Status(Code::kUnsupported, "a part whose canonical strides do not nest: stride " +
                                            std::to_string(dim.dst_stride) + " within a reach of " +
                                            std::to_string(reach) + " words");
    }
    reach += (dim.size - 1) * dim.dst_stride;
  }
  return normalize(std::move(box));
}

ItemBox canonical_side(const Box& box) {
  ItemBox item;
  item.offset = box.dst_offset;
  for (const BoxDimension& dim : box.dims) {
    // What continues on the canonical side is one dimension, however it lies in the source.
    if (!item.dims.empty() && item.dims.back().stride == dim.size * dim.dst_stride) {
      item.dims.back() = {item.dims.back().size * dim.size, dim.dst_stride};
    } else {
      item.dims.push_back({dim.size, dim.dst_stride});
    }
  }
  if (item.dims.empty()) item.dims.push_back({1, 1});
  return item;
}

Result<SourcePlan> plan_sources(const SourcePlanInput& input) {
  Planner planner(input);
  for (std::uint32_t i = 0; i < input.tasks.size(); ++i) {
    const Status status = planner.add_task(i);
    if (!status.ok()) return status.with_context("task " + quoted_name(input.tasks[i].name));
  }
  for (std::uint32_t i = 0; i < input.tracked.size(); ++i) {
    const Status status = planner.add_tracked_source(i);
    if (!status.ok()) {
      return status.with_context("source tensor " + quoted_name(input.tracked[i].name));
    }
  }
  return planner.finish();
}

}  // namespace dcr
