#include "receiver/views.h"

#include <optional>
#include <string>
#include <utility>

#include "base/checked.h"
#include "tensor/text.h"

namespace dcr {

Box view_box(const TensorView& view) {
  Box box{0, view.offset, {}};
  std::uint64_t elements = 1;
  for (std::size_t i = view.sizes.size(); i-- > 0;) {
    box.dims.insert(box.dims.begin(), {view.sizes[i], elements, view.strides[i]});
    elements *= view.sizes[i];
  }
  return box;
}

Status for_each_block(const TensorView& view,
                      const std::function<Status(const ViewBlock&)>& visit) {
  for (const Box& piece : split(view_box(view), kViewBlockBytes / word_bytes(view.dtype))) {
    ViewBlock block{{view.storage, view.dtype, piece.dst_offset, {}, {}}, piece.src_offset, 1};
    for (const BoxDimension& dim : piece.dims) {
      block.view.sizes.push_back(dim.size);
      block.view.strides.push_back(dim.dst_stride);
      block.words *= dim.size;
    }
    DCR_TRY(visit(block));
  }
  return {};
}

TensorView range_view(const TensorView& view, std::uint64_t first, std::uint64_t words) {
  return {view.storage, view.dtype, view.offset + first, {words}, {1}};
}

std::string storage_text(const std::vector<LoaderTarget>& targets, std::uint64_t storage) {
  for (const LoaderTarget& target : targets) {
    if (target.view.storage == storage) return "target " + quoted_name(target.name);
  }
  return "storage " + std::to_string(storage);
}

}  // namespace dcr
