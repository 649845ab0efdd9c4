#include "receiver/coverage.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "tensor/box.h"
#include "tensor/text.h"

namespace dcr {

namespace {

// What a write leaves in its bytes.
enum class Role : std::uint8_t { kElements, kConstant };

struct Written {
  ByteRange range;
  std::uint32_t tensor = 0;
  std::uint32_t write = 0;
  Role role = Role::kElements;
};

bool before(const Written& a, const Written& b) {
  return std::tie(a.range.storage, a.range.begin, a.tensor, a.write) <
         std::tie(b.range.storage, b.range.begin, b.tensor, b.write);
}

void refuse(TensorClass* of, std::string reason) {
  if (of->path == TensorPath::kRefused) return;
  *of = {TensorPath::kRefused, Need::kSkip, of->collective, std::move(reason)};
}

// Whether several elements of the view lie in one word.
bool repeats(const TensorView& view) {
  for (std::size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] > 1 && view.strides[i] == 0) return true;
  }
  return false;
}

Result<std::vector<Written>> collect(PrewarmResult* result) {
  std::vector<Written> all;
  for (std::uint32_t tensor = 0; tensor < result->traces.size(); ++tensor) {
    TensorClass* const of = &result->classes[tensor];
    if (of->path == TensorPath::kRefused) continue;
    const std::vector<TracedWrite>& writes = result->traces[tensor].writes;
    for (std::uint32_t at = 0; at < writes.size(); ++at) {
      if (writes[at].to_given || writes[at].follows >= 0) continue;
      const TensorView& view = writes[at].event.destination;
      const bool constant = writes[at].kind == WriteKind::kConstant;
      if (!constant && of->path != TensorPath::kDense && repeats(view)) refuse(of, kWritesTwice);
      DCR_ASSIGN(const std::vector<ByteRange> ranges,
                 view_ranges(view, kByteRangesMax - all.size()));
      for (const ByteRange& range : ranges) {
        all.push_back({range, tensor, at, constant ? Role::kConstant : Role::kElements});
      }
    }
  }
  std::sort(all.begin(), all.end(), before);
  return all;
}

// Two writes of one load to the same bytes: constants that are written over later are nothing.
bool harmless(const Written& a, const Written& b, const PrewarmResult& result) {
  if (result.classes[a.tensor].path == TensorPath::kDense) return true;
  const Written& later = a.write > b.write ? a : b;
  const Written& earlier = a.write > b.write ? b : a;
  return earlier.role == Role::kConstant && (later.role == Role::kElements || a.role == b.role);
}

bool same_constant(const Written& a, const Written& b, const PrewarmResult& result) {
  const LoaderEvent& one = result.traces[a.tensor].writes[a.write].event;
  const LoaderEvent& other = result.traces[b.tensor].writes[b.write].event;
  return one.kind == LoaderEventKind::kFill && other.kind == LoaderEventKind::kFill &&
         one.fill_word == other.fill_word &&
         word_bytes(one.destination.dtype) == word_bytes(other.destination.dtype);
}

using Pairs = std::set<std::pair<std::uint32_t, std::uint32_t>>;

// Visits overlapping ranges. `across` becomes the pairs of tensors that write the same bytes.
void find_overlaps(const Catalogue& catalogue, const std::vector<Written>& all,
                   PrewarmResult* result, Pairs* across) {
  std::vector<const Written*> open;
  for (const Written& next : all) {
    std::erase_if(open, [&next](const Written* one) {
      return one->range.storage != next.range.storage || one->range.end <= next.range.begin;
    });
    for (const Written* one : open) {
      if (one->tensor == next.tensor) {
        if (harmless(*one, next, *result)) continue;
        refuse(&result->classes[next.tensor], kWritesTwice);
        continue;
      }
      const Written& later = one->tensor > next.tensor ? *one : next;
      const Written& earlier = one->tensor > next.tensor ? next : *one;
      // Only what is loaded whole writes its constants again.
      if (earlier.role == Role::kConstant &&
          (result->classes[earlier.tensor].path != TensorPath::kDense ||
           (later.role == Role::kConstant && same_constant(earlier, later, *result)))) {
        continue;
      }
      if (later.role == Role::kElements) {
        across->insert({earlier.tensor, later.tensor});
      } else {
        refuse(
            &result->classes[earlier.tensor],
            "tensor " + quoted_name(catalogue[later.tensor].name) + " writes a constant over it");
      }
    }
    open.push_back(&next);
  }
}

// The bytes that elements of these tensors have.
using TensorRanges = std::map<std::uint32_t, std::vector<ByteRange>>;

void add_elements(const std::vector<Written>& all, TensorRanges* of) {
  for (const Written& one : all) {
    const auto found = of->find(one.tensor);
    if (found == of->end() || one.role == Role::kConstant) continue;
    std::vector<ByteRange>& ranges = found->second;
    if (!ranges.empty() && ranges.back().storage == one.range.storage &&
        ranges.back().end >= one.range.begin) {
      ranges.back().end = std::max(ranges.back().end, one.range.end);
    } else {
      ranges.push_back(one.range);
    }
  }
}

void settle_pairs(const Catalogue& catalogue, const std::vector<Written>& all, const Pairs& across,
                  PrewarmResult* result) {
  TensorRanges ranges;
  for (const auto& [first, second] : across) {
    ranges[first];
    ranges[second];
  }
  add_elements(all, &ranges);
  for (const auto& [first, second] : across) {
    const std::string& loaded_later = catalogue[second].name;
    if (ranges[first] == ranges[second]) {
      if (result->classes[first].path == TensorPath::kRefused) continue;
      result->classes[first] = {TensorPath::kSkip, Need::kSkip, result->classes[first].collective,
                                "tensor " + quoted_name(loaded_later) + " has the same bytes",
                                true};
      result->places[first].clear();
      continue;
    }
    refuse(&result->classes[first],
           "tensor " + quoted_name(loaded_later) + " writes some of the same bytes");
    refuse(&result->classes[second],
           "tensor " + quoted_name(catalogue[first].name) + " writes some of the same bytes");
  }
}

// Disjoint ranges, ascending.
std::vector<ByteRange> merge(const std::vector<Written>& all) {
  std::vector<ByteRange> merged;
  for (const Written& one : all) {
    if (!merged.empty() && merged.back().storage == one.range.storage &&
        one.range.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, one.range.end);
    } else {
      merged.push_back(one.range);
    }
  }
  return merged;
}

// The first byte of `range` that no range of `merged` has; range.end if there is none.
std::uint64_t first_gap(const std::vector<ByteRange>& merged, const ByteRange& range) {
  const auto above = std::upper_bound(
      merged.begin(), merged.end(), range, [](const ByteRange& a, const ByteRange& b) {
        return std::tie(a.storage, a.begin) < std::tie(b.storage, b.begin);
      });
  if (above == merged.begin()) return range.begin;
  const ByteRange& found = *(above - 1);
  if (found.storage != range.storage || found.end <= range.begin) return range.begin;
  return std::min(found.end, range.end);
}

}  // namespace

Result<std::vector<ByteRange>> view_ranges(const TensorView& view, std::size_t ranges_max) {
  const std::uint64_t width = word_bytes(view.dtype);
  Box box{view.offset * width, view.offset * width, {}};
  for (std::size_t i = 0; i < view.sizes.size(); ++i) {
    const std::uint64_t stride = view.strides[i] * width;
    box.dims.push_back(
        {view.strides[i] == 0 && view.sizes[i] > 0 ? 1 : view.sizes[i], stride, stride});
  }
  std::stable_sort(
      box.dims.begin(), box.dims.end(),
      [](const BoxDimension& a, const BoxDimension& b) { return a.dst_stride > b.dst_stride; });
  box.dims.push_back({width, 1, 1});
  std::vector<ByteRange> ranges;
  bool full = false;
  if (box.elements() > 0) {
    for_each_run(box, [&](const Run& run) {
      full = ranges.size() >= ranges_max;
      if (!full) ranges.push_back({view.storage, run.dst, run.dst + run.length});
      return !full;
    });
  }
  if (!full) return ranges;
  return Status(Code::kUnsupported, "the loader's writes fall into more than " +
                                        std::to_string(kByteRangesMax) + " ranges");
}

Status check_coverage(const Catalogue& catalogue, const std::vector<LoaderTarget>& targets,
                      const std::vector<std::string>& never_loaded, PrewarmResult* result) {
  DCR_ASSIGN(const std::vector<Written> all, collect(result));
  Pairs across;
  find_overlaps(catalogue, all, result, &across);
  settle_pairs(catalogue, all, across, result);
  const bool refused =
      std::any_of(result->classes.begin(), result->classes.end(),
                  [](const TensorClass& one) { return one.path == TensorPath::kRefused; });
  if (refused) return {};  // what it would have written is unknown
  const std::vector<ByteRange> merged = merge(all);
  const std::set<std::string> never(never_loaded.begin(), never_loaded.end());
  for (const LoaderTarget& target : targets) {
    if (never.contains(target.name)) continue;
    DCR_ASSIGN(const std::vector<ByteRange> ranges, view_ranges(target.view, kByteRangesMax));
    for (const ByteRange& range : ranges) {
      const std::uint64_t gap = first_gap(merged, range);
      if (gap == range.end) continue;
      return Status(Code::kMismatch,
                    "target " + quoted_name(target.name) + ": no load writes byte " +
                        std::to_string(gap - range.begin) + " of its range from byte " +
                        std::to_string(range.begin) + " of storage " +
                        std::to_string(range.storage) +
                        "; name the target among those that are never loaded if that is meant");
    }
  }
  return {};
}

}  // namespace dcr
