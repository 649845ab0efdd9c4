#include "receiver/rank_coverage.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "tensor/box.h"

namespace dcr {
namespace {

// What is counted element by element is in so many pieces at most, on all ranks together.
constexpr std::size_t kRunsMax = std::size_t{1} << 22;

// The tensor's elements that the box has, mapped to themselves, in ascending order where strides
// allow it: a parameter may have them in any other.
Box identity_of(const PlacedBox& placed) {
  Box box;
  box.src_offset = box.dst_offset = placed.tensor_offset;
  for (const PlacedBox::Dimension& dim : placed.dimensions) {
    const bool repeats = dim.tensor_stride == 0 && dim.size > 0;
    if (!repeats) box.dims.push_back({dim.size, dim.tensor_stride, dim.tensor_stride});
  }
  std::sort(box.dims.begin(), box.dims.end(),
            [](const BoxDimension& one, const BoxDimension& other) {
              return one.src_stride > other.src_stride;
            });
  return normalize(std::move(box));
}

// What one rank has of a tensor.
using Boxes = std::vector<Box>;

// Elements [begin, end).
struct Interval {
  std::uint64_t begin = 0, end = 0;
};

// The elements of a rank, ascending, each once; nothing if they are in more than `runs_max` pieces.
std::optional<std::vector<Interval>> intervals_of(const Boxes& boxes, std::size_t runs_max) {
  std::vector<Interval> runs;
  for (const Box& box : boxes) {
    for_each_run(box, [&](const Run& run) {
      runs.push_back({run.src, run.src + run.length});
      return runs.size() <= runs_max;
    });
    if (runs.size() > runs_max) return std::nullopt;
  }
  std::sort(runs.begin(), runs.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> joined;
  for (const Interval& run : runs) {
    if (!joined.empty() && run.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, run.end);
    } else {
      joined.push_back(run);
    }
  }
  return joined;
}

// A step of the number of ranks that have an element.
struct Step {
  std::uint64_t element = 0;
  std::int64_t ranks = 0;
};

std::string ranks_text(std::int64_t ranks) {
  return std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
}

// Why a tensor is uneven; empty if it is not.
struct Found {
  std::string reason;
  bool missing = false;  // as UnevenTensor has it
};

// By counting: the first element that no rank has, else the first that more or fewer have than the
// first one.
Found counted(std::vector<Step> steps, std::uint64_t elements) {
  const bool taken = !steps.empty();
  steps.push_back({0, 0});
  steps.push_back({elements, 0});
  std::sort(steps.begin(), steps.end(),
            [](const Step& a, const Step& b) { return a.element < b.element; });
  std::int64_t ranks = 0;
  std::optional<std::int64_t> first;
  Found uneven;
  for (std::size_t i = 0; i < steps.size() && steps[i].element < elements; ++i) {
    ranks += steps[i].ranks;
    if (steps[i + 1].element == steps[i].element) continue;
    const std::string at = "element " + std::to_string(steps[i].element);
    if (ranks == 0) return {at + " lies on no rank", taken};
    if (!first) first = ranks;
    if (ranks == *first || !uneven.reason.empty()) continue;
    uneven.reason = at + " lies on " + ranks_text(ranks) + ", element 0 on " + ranks_text(*first);
  }
  return uneven;
}

// The shares of ranks, equal ones once; nothing if they are not equally many each.
std::optional<Boxes> distinct_shares(const std::vector<Boxes>& ranks) {
  std::vector<std::pair<const Boxes*, std::uint64_t>> distinct;
  for (const Boxes& boxes : ranks) {
    if (boxes.empty()) continue;
    const auto found = std::find_if(distinct.begin(), distinct.end(),
                                    [&](const auto& one) { return *one.first == boxes; });
    if (found == distinct.end()) {
      distinct.emplace_back(&boxes, 1);
    } else {
      ++found->second;
    }
  }
  Boxes all;
  for (const auto& [boxes, count] : distinct) {
    if (count != distinct.front().second) return std::nullopt;
    all.insert(all.end(), boxes->begin(), boxes->end());
  }
  return all;
}

Found uneven_elements(const std::vector<Boxes>& ranks, std::uint64_t elements) {
  // Shards and replicas of them, which is what runtimes make: without looking at their elements.
  const std::optional<Boxes> once = distinct_shares(ranks);
  if (once && covers_exactly_once(*once, elements).ok()) return {};
  std::vector<Step> steps;
  for (const Boxes& boxes : ranks) {
    const std::optional<std::vector<Interval>> intervals =
        intervals_of(boxes, kRunsMax - steps.size() / 2);
    if (!intervals) return {"its elements lie on ranks in too many pieces to be counted"};
    for (const Interval& interval : *intervals) {
      steps.push_back({interval.begin, 1});
      steps.push_back({interval.end, -1});
    }
  }
  return counted(std::move(steps), elements);
}

Found uneven(std::span<const std::vector<RankShare>> ranks, std::uint32_t tensor,
             std::uint64_t elements) {
  bool something = false;
  std::vector<Boxes> shares;
  for (const std::vector<RankShare>& rank : ranks) {
    const RankShare& share = rank[tensor];
    // Which elements a loader takes is known where it was traced; those of a tied tensor lie on the
    // rank as another's.
    if (share.path != TensorPath::kTraced && share.path != TensorPath::kSkip) return {};
    if (share.tied) return {};
    something = something || share.path == TensorPath::kTraced;
    Boxes& boxes = shares.emplace_back();
    for (const PlacedBox& placed : share.boxes) boxes.push_back(identity_of(placed));
  }
  if (!something) return {"every rank's loader skips it"};
  return uneven_elements(shares, elements);
}

}  // namespace

std::vector<PlacedBox> placed_boxes(std::span<const Place> places) {
  std::vector<PlacedBox> boxes;
  boxes.reserve(places.size());
  for (const Place& place : places) {
    PlacedBox& made = boxes.emplace_back();
    made.storage = place.storage;
    made.word_bytes = place.width;
    made.tensor_offset = place.box.src_offset;
    made.storage_offset = place.box.dst_offset;
    for (const BoxDimension& dim : place.box.dims) {
      made.dimensions.push_back({dim.size, dim.src_stride, dim.dst_stride});
    }
  }
  return boxes;
}

std::vector<UnevenTensor> uneven_tensors(const Catalogue& catalogue,
                                         std::span<const std::vector<RankShare>> ranks) {
  std::vector<UnevenTensor> found;
  for (std::uint32_t tensor = 0; tensor < catalogue.size(); ++tensor) {
    if (ranks.empty() || catalogue[tensor].words == 0) continue;
    Found one = uneven(ranks, tensor, catalogue[tensor].words);
    if (!one.reason.empty()) found.push_back({tensor, std::move(one.reason), one.missing});
  }
  return found;
}

std::vector<UnevenTensor> uneven_tensors(std::span<Receiver* const> ranks) {
  if (ranks.empty()) return {};
  std::vector<std::vector<RankShare>> shares;
  for (const Receiver* rank : ranks) {
    std::vector<RankShare>& made = shares.emplace_back();
    for (std::uint32_t tensor = 0; tensor < rank->catalogue().size(); ++tensor) {
      const TensorClass& one = rank->classes()[tensor];
      made.push_back({one.path, one.tied, placed_boxes(rank->places(tensor))});
    }
  }
  return uneven_tensors(ranks.front()->catalogue(), shares);
}

}  // namespace dcr
