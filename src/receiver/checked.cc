#include "receiver/checked.h"

#include <algorithm>
#include <string>
#include <vector>

#include "receiver/grid.h"
#include "receiver/views.h"
#include "simd/words.h"

namespace dcr {

namespace {

// A change that reaches the windows.
struct Hit {
  std::uint64_t element;  // of the windows, row major
  std::size_t place;      // among the positions
};

Dtype dtype_of_width(unsigned width) {
  return width == 1   ? Dtype::kU8
         : width == 2 ? Dtype::kU16
         : width == 4 ? Dtype::kU32
                      : Dtype::kU64;
}

// The windows as a view, and the same target as if they were a storage of their own.
TensorView window_view(const TargetChanges& target, TargetChanges* windows) {
  TensorView view{target.storage, dtype_of_width(target.width), target.offset, {}, {}};
  *windows = target;
  windows->offset = 0;
  std::uint64_t elements = 1;
  for (std::size_t i = target.dims.size(); i-- > 0;) {
    windows->dims[i].stride = elements;
    elements *= target.dims[i].end - target.dims[i].begin;
  }
  for (const TargetChanges::Dimension& dim : target.dims) {
    view.sizes.push_back(dim.end - dim.begin);
    view.strides.push_back(dim.stride);
  }
  return view;
}

std::vector<Hit> find_hits(const Grid& grid, std::span<const std::uint32_t> positions) {
  std::vector<Hit> found;
  GridHits hits;
  std::size_t from = 0;
  std::size_t to = 0;
  grid.clip(positions, &from, &to);
  for (std::size_t done = from; done < to; done += kGridBlock) {
    grid.map(positions.subspan(done, std::min(kGridBlock, to - done)), &hits);
    for (std::size_t i = 0; i < hits.count; ++i) {
      found.push_back({hits.words[i], done + hits.places[i]});
    }
  }
  return found;
}

// What the hits make of a block's words.
void decode_hits(const TargetChanges& target, std::span<const Hit> hits, std::uint64_t first,
                 const void* values, Bytes* words) {
  for_width(target.width, [&]<typename Word>(Word) {
    for (const Hit& hit : hits) {
      const Word resident = load_word<Word>(words->data(), hit.element - first);
      const Word value = static_cast<const Word*>(values)[hit.place];
      store_word(words->data(), hit.element - first, decode_word(target.encoding, resident, value));
    }
  });
}

}  // namespace

Status apply_checked(TargetMemory& memory, const TargetChanges& target,
                     std::span<const std::uint32_t> positions, const void* values,
                     ApplyCounts* counts, std::uint64_t* checked) {
  DCR_ASSIGN(const std::uint64_t storage_bytes, memory.storage_bytes(target.storage));
  DCR_TRY(check_target(target, storage_bytes));
  TargetChanges windows;
  const TensorView view = window_view(target, &windows);
  const std::vector<Hit> hits = find_hits(Grid(windows), positions);
  std::size_t next = 0;
  Bytes wanted, found;
  return for_each_block(view, [&](const ViewBlock& block) -> Status {
    const std::size_t begin = next;
    while (next < hits.size() && hits[next].element < block.first + block.words) ++next;
    if (begin == next) return {};
    wanted.resize(static_cast<std::size_t>(block.words) * target.width);
    found.resize(wanted.size());
    DCR_TRY(memory.read(block.view, wanted));
    decode_hits(target, std::span(hits).subspan(begin, next - begin), block.first, values, &wanted);
    const std::size_t from = hits[begin].place;
    const auto* bytes = static_cast<const std::uint8_t*>(values) + from * target.width;
    DCR_TRY(memory.apply(target, positions.subspan(from, hits[next - 1].place + 1 - from), bytes,
                         ApplyMode::kWrite, counts));
    DCR_TRY(memory.synchronize());
    DCR_TRY(memory.read(block.view, found));
    *checked += block.words;
    if (found == wanted) return {};
    return Status(Code::kMismatch, "post-apply check: words of storage " +
                                       std::to_string(target.storage) +
                                       " are not what their changes make of them");
  });
}

}  // namespace dcr
