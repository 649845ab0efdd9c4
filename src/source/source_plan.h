// From conversion tasks to pieces (docs/ARCHITECTURE.md "One refit at its owners"): which words of
// which storage an owner compares for which item, and where its baseline keeps them. Fixed by the
// tasks' geometry alone.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dcr/ports.h"
#include "dcr/status.h"
#include "runtime/arena.h"
#include "source/pipeline.h"
#include "tensor/box.h"
#include "tensor/catalogue.h"
#include "tensor/task.h"

namespace dcr {

// A source tensor that no placement projects and converters read: its changes are looked for all
// the same.
struct TrackedSource {
  std::string name;  // unique among tasks too, and replicated as a task is
  TensorView view;
  std::vector<std::uint32_t> replicas;
};

// Tensor of pieces that no canonical tensor has a share in.
inline constexpr std::uint32_t kNoTensor = ~std::uint32_t{0};

// Where a piece's words come from and where they are kept.
struct SourcePiece {
  std::uint32_t source = 0;  // index of the task, or tasks + index of the tracked source
  // From words of the view's storage to words of the canonical tensor, in the item's order.
  Box box;
  std::uint64_t arena_offset = 0;  // bytes
  bool counted = true;  // false: another piece has the same source elements (a tied tensor)
};

struct SourcePlan {
  // Those of canonical tensors in ascending (tensor, offset) order, then those of kNoTensor, which
  // are not sent.
  std::vector<Piece> pieces;
  std::vector<SourcePiece> sources;  // of the same index
  std::uint64_t arena_bytes = 0;
};

struct SourcePlanInput {
  const Catalogue* catalogue = nullptr;
  std::span<const ConversionTask> tasks;
  std::span<const TrackedSource> tracked;
  std::uint32_t rank = 0;
  std::function<bool(std::uint32_t tensor)> projected;  // false: only converters make it
  std::function<bool(const std::string& name)> feeds;   // whether some converter reads it
};

// Plans what `rank` owns. A task that feeds a converter is tracked as it is, beside its canonical
// words, unless those hold all its bits. Errors name the task and the tensor: kUnsupported (a cast
// that there is not; a part whose canonical strides do not nest), kCorrupt, kTooLarge,
// kInvalidArgument.
Result<SourcePlan> plan_sources(const SourcePlanInput& input);

// The box with its dimensions by descending canonical stride, so that its order is the canonical
// order, and normalized. Error kUnsupported where the strides do not nest.
Result<Box> in_canonical_order(Box box);

// The canonical side of a box in canonical order. REQUIRES: it has elements.
ItemBox canonical_side(const Box& box);

}  // namespace dcr
