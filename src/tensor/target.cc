#include "tensor/target.h"

#include <optional>
#include <string>

#include "base/checked.h"
#include "dcr/tensor.h"
#include "tensor/view.h"

namespace dcr {

namespace {

Status invalid_target(const std::string& what) {
  return Status(Code::kInvalidArgument, "target of changes: " + what);
}

bool valid_width(unsigned width) { return width == 1 || width == 2 || width == 4 || width == 8; }

}  // namespace

Status check_target(const TargetChanges& target, std::uint64_t storage_bytes) {
  if (!valid_width(target.width)) {
    return invalid_target("words of " + std::to_string(target.width) + " bytes");
  }
  if (target.dims.size() > kGridRankMax) return invalid_target("too many dimensions");
  std::uint64_t grid = 1;
  bool empty = false;
  std::optional<std::uint64_t> last = target.offset;
  for (const TargetChanges::Dimension& dim : target.dims) {
    const auto product = checked_multiply(grid, dim.size);
    if (dim.size == 0 || !product || *product >= kGridSizeMax) {
      return invalid_target("the grid is empty or above " + std::to_string(kGridSizeMax));
    }
    grid = *product;
    if (dim.begin > dim.end || dim.end > dim.size)
      return invalid_target("a window leaves its dimension");
    empty = empty || dim.begin == dim.end;
    const auto reach = checked_multiply(dim.end - dim.begin - (empty ? 0 : 1), dim.stride);
    last = last && reach ? checked_add(*last, *reach) : std::nullopt;
  }
  if (target.first >= kGridSizeMax) return invalid_target("the first grid index is out of range");
  if (empty) return {};
  if (!last || *last >= storage_bytes / target.width) {
    return invalid_target("a word past the end of storage " + std::to_string(target.storage) +
                          " of " + std::to_string(storage_bytes) + " bytes");
  }
  return {};
}

std::uint64_t window_words(const TargetChanges& target) {
  std::uint64_t words = 1;
  for (const TargetChanges::Dimension& dim : target.dims) words *= dim.end - dim.begin;
  return words;
}

Status check_positions(const TargetChanges& target, std::span<const std::uint32_t> positions,
                       ApplyMode mode) {
  if (mode == ApplyMode::kVerify && target.encoding != Encoding::kOverwrite) {
    return Status(Code::kInvalidArgument, "only overwrites can be verified");
  }
  if (positions.empty() || positions.back() + target.first < kGridSizeMax) return {};
  return invalid_target("a position is out of range");
}

bool view_fits(const TensorView& view, std::uint64_t storage_bytes) {
  if (view.sizes.size() != view.strides.size()) return false;
  const Result<std::uint64_t> words = tensor_elements(view.sizes);
  if (!words.ok() || *words == 0) return words.ok();
  std::optional<std::uint64_t> last = view.offset;
  for (std::size_t i = 0; i < view.sizes.size(); ++i) {
    const auto reach = checked_multiply(view.sizes[i] - 1, view.strides[i]);
    last = last && reach ? checked_add(*last, *reach) : std::nullopt;
  }
  return last && *last < storage_bytes / word_bytes(view.dtype);
}

Status check_view(const TensorView& view, std::uint64_t storage_bytes, std::uint64_t buffer_bytes) {
  const std::string name = "a view of storage " + std::to_string(view.storage);
  if (!view_fits(view, storage_bytes)) return Status(Code::kInvalidArgument, name + " leaves it");
  if (buffer_bytes == view_words(view) * word_bytes(view.dtype)) return {};
  return Status(Code::kInvalidArgument, name + " has another size than its buffer");
}

Status check_scratch(std::uint64_t bytes, std::uint64_t in_use, std::uint64_t limit) {
  if (in_use <= limit && bytes <= limit - in_use) return {};
  return {Code::kTooLarge, "scratch of " + std::to_string(bytes) + " bytes beside the " +
                               std::to_string(in_use) + " in use is above the limit of " +
                               std::to_string(limit)};
}

}  // namespace dcr
