// Whether boxes reach destinations twice or not at all. Both questions are answered by a sweep over
// the destination indices in ascending order; what is regular is factored out before it.
#include <algorithm>
#include <functional>
#include <queue>
#include <string>
#include <utility>

#include "tensor/box.h"

namespace dcr {

namespace {

struct CellAxis {
  std::uint64_t size = 1;
  std::uint64_t stride = 1;
  bool operator==(const CellAxis&) const = default;
};

// The set of a box's destinations: runs of `length` at start + Σ i_d · stride_d. Axes have
// descending strides (0, which repeats, first); a set that is contiguous in whatever order is one
// run.
struct Cells {
  std::uint64_t start = 0;
  std::vector<CellAxis> axes;
  std::uint64_t length = 1;

  // One past the highest index.
  std::uint64_t end() const {
    std::uint64_t last = start + length;
    for (const CellAxis& axis : axes) last += (axis.size - 1) * axis.stride;
    return last;
  }

  // Whether no index is reached twice for the simple reason that each stride is beyond the reach
  // of the smaller ones.
  bool nested() const {
    std::uint64_t reach = length;
    for (std::size_t i = axes.size(); i-- > 0;) {
      if (axes[i].stride < reach) return false;
      reach += (axes[i].size - 1) * axes[i].stride;
    }
    return true;
  }
};

Cells cells_of(const Box& box) {
  Cells cells;
  cells.start = box.dst_offset;
  // Most boxes are one run: they need no list of axes.
  if (box.dims.size() == 1 && box.dims[0].dst_stride == 1) {
    cells.length = box.dims[0].size;
    return cells;
  }
  for (const BoxDimension& dim : box.dims) {
    if (dim.size > 1) cells.axes.push_back({dim.size, dim.dst_stride});
  }
  std::sort(cells.axes.begin(), cells.axes.end(), [](const CellAxis& a, const CellAxis& b) {
    return a.stride != b.stride && (a.stride == 0 || (b.stride != 0 && a.stride > b.stride));
  });
  std::size_t merged = 0;  // so many axes are left
  for (const CellAxis axis : cells.axes) {
    if (merged > 0 && cells.axes[merged - 1].stride == axis.size * axis.stride) {
      cells.axes[merged - 1] = {cells.axes[merged - 1].size * axis.size, axis.stride};
    } else {
      cells.axes[merged++] = axis;
    }
  }
  cells.axes.resize(merged);
  if (!cells.axes.empty() && cells.axes.back().stride == 1) {
    cells.length = cells.axes.back().size;
    cells.axes.pop_back();
  }
  return cells;
}

std::vector<Cells> cells_of(const std::vector<Box>& boxes) {
  std::vector<Cells> all;
  all.reserve(boxes.size());
  for (const Box& box : boxes) {
    if (box.elements() != 0) all.push_back(cells_of(box));
  }
  std::sort(all.begin(), all.end(),
            [](const Cells& a, const Cells& b) { return a.start < b.start; });
  return all;
}

// The runs of several sets, by ascending start. Memory is O(sets · rank) where each is nested.
class RunSweep {
 public:
  RunSweep(const Cells* begin, const Cells* end) {
    std::vector<Node> nodes;
    nodes.reserve(static_cast<std::size_t>(end - begin));
    for (const Cells* cells = begin; cells != end; ++cells) {
      nodes.push_back({cells->start, cells, 0, cells->axes.empty() ? 1 : cells->axes[0].size});
    }
    heap_ = std::priority_queue<Node>(std::less<Node>(), std::move(nodes));
  }

  // The next run as [start, end); false after the last.
  bool next(std::uint64_t* start, std::uint64_t* end) {
    if (heap_.empty()) return false;
    Node node = heap_.top();
    heap_.pop();
    // The first child of a node starts where it does: go down to a run, leaving the others behind.
    const std::vector<CellAxis>& axes = node.cells->axes;
    while (node.level < axes.size()) {
      if (node.remaining > 1) {
        heap_.push(
            {node.start + axes[node.level].stride, node.cells, node.level, node.remaining - 1});
      }
      ++node.level;
      if (node.level < axes.size()) node.remaining = axes[node.level].size;
    }
    *start = node.start;
    *end = node.start + node.cells->length;
    return true;
  }

 private:
  struct Node {
    std::uint64_t start;
    const Cells* cells;
    std::size_t level;  // the axis along which `remaining` indices are left
    std::uint64_t remaining;
    bool operator<(const Node& other) const { return start > other.start; }  // lowest on top
  };
  std::priority_queue<Node> heap_;
};

// Drops the outermost axis if all have the same and everything else fits into one step of it: then
// each step looks like the first. `begin` is the lowest destination.
bool drop_common_axis(std::vector<Cells>* all, std::uint64_t begin) {
  const std::vector<CellAxis>& first = all->front().axes;
  if (first.empty()) return false;
  const CellAxis common = first[0];
  for (const Cells& cells : *all) {
    if (cells.axes.empty() || cells.axes[0] != common) return false;
    const std::uint64_t end = cells.end() - (common.size - 1) * common.stride;
    if (end - begin > common.stride) return false;
  }
  for (Cells& cells : *all) cells.axes.erase(cells.axes.begin());
  return true;
}

// REQUIRES: sorted by start.
bool disjoint(std::vector<Cells> all) {
  std::size_t begin = 0;
  while (begin < all.size()) {
    // A cluster: the sets whose extents overlap, one after another.
    std::uint64_t reached = all[begin].end();
    std::size_t end = begin + 1;
    while (end < all.size() && all[end].start < reached) {
      reached = std::max(reached, all[end++].end());
    }
    if (end - begin > 1 || !all[begin].nested()) {
      std::vector<Cells> cluster(all.begin() + static_cast<std::ptrdiff_t>(begin),
                                 all.begin() + static_cast<std::ptrdiff_t>(end));
      if (drop_common_axis(&cluster, cluster[0].start)) {
        if (!disjoint(std::move(cluster))) return false;
      } else {
        RunSweep sweep(cluster.data(), cluster.data() + cluster.size());
        std::uint64_t start = 0;
        std::uint64_t stop = 0;
        std::uint64_t covered = 0;
        while (sweep.next(&start, &stop)) {
          if (start < covered) return false;
          covered = stop;
        }
      }
    }
    begin = end;
  }
  return true;
}

Status uncovered(std::uint64_t index) {
  return Status(Code::kMismatch, "element " + std::to_string(index) + " is not covered");
}

Status covered_twice(std::uint64_t index) {
  return Status(Code::kMismatch, "element " + std::to_string(index) + " is covered twice");
}

}  // namespace

bool destinations_disjoint(const std::vector<Box>& boxes) { return disjoint(cells_of(boxes)); }

Status covers_exactly_once(const std::vector<Box>& boxes, std::uint64_t elements) {
  std::vector<Cells> all = cells_of(boxes);
  // The first step along a common axis shows the first fault, if the steps fill the tensor.
  std::uint64_t step = elements;
  while (!all.empty() && !all[0].axes.empty()) {
    const CellAxis outer = all[0].axes[0];
    if (outer.stride == 0 || step / outer.stride != outer.size || step % outer.stride != 0) break;
    if (!drop_common_axis(&all, 0)) break;
    step = outer.stride;
  }
  RunSweep sweep(all.data(), all.data() + all.size());
  std::uint64_t start = 0;
  std::uint64_t stop = 0;
  std::uint64_t covered = 0;
  while (sweep.next(&start, &stop)) {
    if (start > covered && covered < step) return uncovered(covered);
    if (start < covered) return covered_twice(start);
    if (stop > step) {
      const std::uint64_t past = std::max(start, step);
      // What lies over this run comes before what it has past the end.
      if (sweep.next(&start, &stop) && start < past) return covered_twice(start);
      return Status(Code::kMismatch, "element " + std::to_string(past) + " is past the end at " +
                                         std::to_string(elements));
    }
    covered = stop;
  }
  return covered < step ? uncovered(covered) : Status();
}

}  // namespace dcr
