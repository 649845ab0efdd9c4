#include "layout/local_tensor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/limits.h"
#include "tensor/cast.h"
#include "tensor/text.h"
#include "tensor/view.h"

namespace dcr {

namespace {

// A dimension of a canonical tensor in the local order.
struct Axis {
  std::uint64_t size = 1;
  std::uint64_t stride = 1;  // words of the canonical tensor
};

// What a shard has of one member: of dimension `dim`, [begin, begin + size); all of the others.
struct Slab {
  std::uint32_t tensor = 0;
  std::vector<Axis> axes;
  std::size_t dim = 0;
  std::uint64_t begin = 0;
  std::uint64_t size = 0;

  Shape shape() const {
    Shape made;
    made.reserve(axes.size());
    for (const Axis& axis : axes) made.push_back(axis.size);
    if (!made.empty()) made[dim] = size;
    return made;
  }
};

Status refuse(const CanonicalTensor& tensor, const std::string& what, Code code = Code::kMismatch) {
  return {
      code,
      "tensor " + quoted_name(tensor.name) + " of shape " + shape_text(tensor.shape) + " " + what,
      tensor.name};
}

bool several_to_a_word(Dtype dtype) { return dtype_bits(dtype) < 8; }

Result<std::vector<Axis>> axes_of(const CanonicalTensor& tensor, const LayoutRule& rule) {
  if (several_to_a_word(tensor.dtype)) {
    if (rule.mapping != MappingClass::kReplicated && rule.mapping != MappingClass::kFsdp) {
      return refuse(tensor,
                    "has several elements to a word: only classes \"replicated\", \"fsdp\" and "
                    "\"boxes\" hold it",
                    Code::kUnsupported);
    }
    return std::vector<Axis>{{tensor.words, 1}};
  }
  const Shape strides = contiguous_strides(tensor.shape);
  std::vector<Axis> axes;
  axes.reserve(strides.size());
  if (rule.permute.empty()) {
    for (std::size_t d = 0; d < strides.size(); ++d) axes.push_back({tensor.shape[d], strides[d]});
    return axes;
  }
  if (rule.permute.size() != strides.size()) {
    return refuse(tensor, "does not have the " + std::to_string(rule.permute.size()) +
                              " dimensions that its rule permutes");
  }
  for (const std::uint32_t d : rule.permute) axes.push_back({tensor.shape[d], strides[d]});
  return axes;
}

// Cuts an axis as the class says. `pattern`: which of the rule's.
Status cut(const CanonicalTensor& tensor, const LayoutRule& rule, std::size_t pattern,
           std::uint32_t shard, Slab* slab) {
  if (rule.mapping == MappingClass::kReplicated) {
    slab->size = slab->axes.empty() ? 1 : slab->axes.front().size;
    return {};
  }
  if (slab->axes.empty() && rule.mapping == MappingClass::kFsdp) slab->axes.push_back({1, 1});
  slab->dim = rule.dim.value_or(0);
  if (slab->dim >= slab->axes.size()) {
    return refuse(tensor, "has no dimension " + std::to_string(slab->dim) +
                              " to cut; class \"replicated\" holds it");
  }
  const std::uint64_t size = slab->axes[slab->dim].size;
  if (rule.mapping == MappingClass::kFsdp) {
    const std::uint64_t chunk = divide_up(size, rule.shards);
    slab->begin = std::min(size, shard * chunk);
    slab->size = std::min(size, slab->begin + chunk) - slab->begin;
    return {};
  }
  const std::uint32_t copies = rule.copies.empty() ? 1 : rule.copies[pattern];
  const std::uint32_t shards = rule.shards / copies;
  if (size % shards != 0) {
    return refuse(tensor, "does not divide into " + std::to_string(shards) +
                              " shards along dimension " + std::to_string(slab->dim) +
                              "; class \"fsdp\" or \"replicated\" holds it");
  }
  slab->size = size / shards;
  slab->begin = shard / copies * slab->size;
  return {};
}

void add_part(Box box, std::uint32_t tensor, LocalTensor* made) {
  box = normalize(std::move(box));
  for (const BoxDimension& dim : box.dims) {
    if (dim.size == 0) return;
  }
  made->parts.push_back({tensor, std::move(box)});
}

// Sets the shape of the local tensor, which must be within the limits, and its padding to none.
Status set_shape(const CanonicalTensor& first, Shape shape, LocalTensor* made) {
  const Result<std::uint64_t> bytes = tensor_bytes(made->dtype, shape);
  if (!bytes.ok()) return refuse(first, "makes a local tensor with " + bytes.status().message());
  made->padding_begin = *bytes / word_bytes(made->dtype);
  made->shape = std::move(shape);
  return {};
}

// Slabs one after the other along the first dimension, and `slots` such stacks in a dimension
// before it.
Status join(const Catalogue& catalogue, const LayoutRule& rule, const std::vector<Slab>& slabs,
            LocalTensor* made) {
  const CanonicalTensor& first = catalogue[slabs.front().tensor];
  const std::size_t count = rule.match.size();
  Shape slot = slabs.front().shape();
  if (slot.empty() && count > 1) slot = {1};
  for (std::size_t i = 1; i < slabs.size(); ++i) {
    Shape shape = slabs[i].shape();
    if (shape.empty() && count > 1) shape = {1};
    const bool fits = i < count ? shape.size() == slot.size() &&
                                      std::equal(shape.begin() + 1, shape.end(), slot.begin() + 1)
                                : slabs[i].shape() == slabs[i - count].shape();
    if (!fits) {
      return refuse(catalogue[slabs[i].tensor], "does not fit together with " +
                                                    quoted_name(first.name) + " of shape " +
                                                    shape_text(first.shape));
    }
    if (i < count) slot[0] += shape[0];
  }
  const Shape strides = contiguous_strides(slot);
  Shape shape = slot;
  if (rule.stacked) shape.insert(shape.begin(), slabs.size() / count);
  DCR_TRY(set_shape(first, std::move(shape), made));
  std::uint64_t slot_words = 1;
  for (const std::uint64_t size : slot) slot_words *= size;
  std::uint64_t row = 0;
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    const Slab& slab = slabs[i];
    if (i % count == 0) row = 0;
    const Shape sizes = slab.shape();
    Box box;
    box.src_offset = i / count * slot_words + (strides.empty() ? 0 : row * strides[0]);
    if (!slab.axes.empty()) box.dst_offset = slab.begin * slab.axes[slab.dim].stride;
    box.dims.reserve(slab.axes.size());
    for (std::size_t d = 0; d < slab.axes.size(); ++d) {
      box.dims.push_back({sizes[d], strides[d], slab.axes[d].stride});
    }
    row += sizes.empty() ? 1 : sizes[0];
    add_part(std::move(box), slab.tensor, made);
  }
  return {};
}

Status make_vocabulary(const CanonicalTensor& tensor, const LayoutRule& rule, Slab slab,
                       std::uint32_t shard, LocalTensor* made) {
  if (slab.axes.empty()) return refuse(tensor, "has no rows to cut");
  const std::uint64_t rows = slab.axes.front().size;
  const std::uint64_t local = divide_up(rows, rule.multiple) * rule.multiple / rule.shards;
  slab.begin = std::min(rows, shard * local);
  slab.size = std::min(rows, slab.begin + local) - slab.begin;
  Shape shape = slab.shape();
  shape[0] = local;
  const Shape strides = contiguous_strides(shape);
  DCR_TRY(set_shape(tensor, std::move(shape), made));
  made->padding_begin = slab.size * strides[0];
  Box box;
  box.dst_offset = slab.begin * slab.axes[0].stride;
  const Shape sizes = slab.shape();
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    box.dims.push_back({sizes[d], strides[d], slab.axes[d].stride});
  }
  add_part(std::move(box), slab.tensor, made);
  return {};
}

// One member of packed query, key and value: in each group of `group` rows, `length` rows at
// `begin`.
struct PackedRows {
  std::uint64_t group = 0, begin = 0, length = 0;
};

// The part of `slab`'s tensor that lies in packed rows [first, first + count) of `row` words each.
void add_packed(const Slab& slab, const PackedRows& packed, std::uint64_t first,
                std::uint64_t count, std::uint64_t row, LocalTensor* made) {
  const std::uint64_t last = first + count;
  const auto add = [&](std::uint64_t group, std::uint64_t groups) {
    const std::uint64_t origin = group * packed.group + packed.begin;
    const std::uint64_t from = std::max(first, origin);
    const std::uint64_t to = std::min(last, origin + packed.length);
    if (groups == 0 || to <= from) return;
    Box box;
    box.src_offset = (from - first) * row;
    box.dst_offset = (group * packed.length + (from - origin)) * slab.axes[0].stride;
    box.dims.push_back({groups, packed.group * row, packed.length * slab.axes[0].stride});
    box.dims.push_back({to - from, row, slab.axes[0].stride});
    if (slab.axes.size() == 2) box.dims.push_back({slab.axes[1].size, 1, slab.axes[1].stride});
    add_part(std::move(box), slab.tensor, made);
  };
  // Whole groups at once; at either end a group may be cut.
  const std::uint64_t whole_begin = divide_up(first, packed.group);
  const std::uint64_t whole_end = std::max(whole_begin, last / packed.group);
  if (first / packed.group < whole_begin) add(first / packed.group, 1);
  if (whole_begin * packed.group < last) add(whole_begin, whole_end - whole_begin);
  if (whole_end * packed.group < last) add(whole_end, 1);
}

Status make_qkv(const Catalogue& catalogue, const LayoutRule& rule, const std::vector<Slab>& slabs,
                std::uint32_t shard, LocalTensor* made) {
  std::uint64_t group = 0;
  for (const Slab& slab : slabs) {
    const CanonicalTensor& tensor = catalogue[slab.tensor];
    if (slab.axes.empty() || slab.axes.size() > 2) {
      return refuse(tensor, "is neither a matrix nor a vector of heads");
    }
    if (slab.axes.size() != slabs[0].axes.size() ||
        (slab.axes.size() == 2 && slab.axes[1].size != slabs[0].axes[1].size)) {
      return refuse(tensor,
                    "does not fit together with " + quoted_name(catalogue[slabs[0].tensor].name));
    }
    if (slab.axes[0].size % rule.groups != 0) {
      return refuse(tensor,
                    "does not divide into " + std::to_string(rule.groups) + " groups of heads");
    }
    group += slab.axes[0].size / rule.groups;
  }
  const std::uint64_t rows = group * rule.groups;
  const CanonicalTensor& first = catalogue[slabs[0].tensor];
  if (rows % rule.shards != 0) {
    return refuse(first, "and its key and value have " + std::to_string(rows) +
                             " rows, which do not divide into " + std::to_string(rule.shards) +
                             " shards");
  }
  const std::uint64_t local = rows / rule.shards;
  const bool matrix = slabs[0].axes.size() == 2;
  const std::uint64_t row = matrix ? slabs[0].axes[1].size : 1;
  DCR_TRY(set_shape(first, matrix ? Shape{local, row} : Shape{local}, made));
  if (rows == 0) return {};
  PackedRows packed{group, 0, 0};
  for (const Slab& slab : slabs) {
    packed.length = slab.axes[0].size / rule.groups;
    add_packed(slab, packed, shard * local, local, row, made);
    packed.begin += packed.length;
  }
  return {};
}

Status make_boxes(const Catalogue& catalogue, const LayoutRule& rule,
                  std::span<const std::uint32_t> members, std::uint32_t shard, LocalTensor* made) {
  const ExplicitShard& given = rule.boxes[shard];
  const CanonicalTensor& first = catalogue[members.front()];
  DCR_TRY(set_shape(first, given.shape, made));
  const std::uint64_t words = made->padding_begin;
  std::vector<Box> inverted;
  for (std::size_t i = 0; i < given.boxes.size(); ++i) {
    const auto& [member, box] = given.boxes[i];
    const CanonicalTensor& tensor = catalogue[members[member]];
    const Status valid = validate_box(box, words, tensor.words);
    if (!valid.ok()) {
      return refuse(tensor, "has box " + std::to_string(i + 1) + " of shard " +
                                std::to_string(shard + 1) + ": " + valid.message());
    }
    inverted.push_back(invert(box));
    add_part(box, members[member], made);
  }
  if (!destinations_disjoint(inverted)) {
    return refuse(first, "has boxes of shard " + std::to_string(shard + 1) +
                             " that overlap in the local tensor");
  }
  return {};
}

Status choose_dtype(const Catalogue& catalogue, const LayoutRule& rule,
                    std::span<const std::uint32_t> members, LocalTensor* made) {
  const CanonicalTensor& first = catalogue[members.front()];
  made->dtype = view_dtype(first.dtype);
  for (const std::uint32_t member : members) {
    const CanonicalTensor& tensor = catalogue[member];
    if (rule.dtype && *rule.dtype != tensor.dtype) {
      const Status supported = cast_supported(tensor.dtype, *rule.dtype);
      if (!supported.ok()) return refuse(tensor, supported.message(), Code::kUnsupported);
    } else if (!rule.dtype && tensor.dtype != first.dtype) {
      return refuse(tensor, "has dtype " + std::string(dtype_name(tensor.dtype)) + " and " +
                                quoted_name(first.name) + " has " +
                                std::string(dtype_name(first.dtype)) +
                                "; a rule that joins them says which \"dtype\" they get");
    }
  }
  if (rule.dtype && !several_to_a_word(*rule.dtype)) made->dtype = *rule.dtype;
  return {};
}

}  // namespace

Result<LocalTensor> make_local_tensor(const Catalogue& catalogue, const LayoutRule& rule,
                                      std::span<const std::uint32_t> members, std::uint32_t shard) {
  LocalTensor made;
  DCR_TRY(choose_dtype(catalogue, rule, members, &made));
  if (rule.mapping == MappingClass::kBoxes) {
    DCR_TRY(make_boxes(catalogue, rule, members, shard, &made));
    return made;
  }
  const bool whole =
      rule.mapping == MappingClass::kVocabulary || rule.mapping == MappingClass::kQkv;
  std::vector<Slab> slabs;
  slabs.reserve(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    const CanonicalTensor& tensor = catalogue[members[i]];
    Slab slab;
    slab.tensor = members[i];
    DCR_ASSIGN(slab.axes, axes_of(tensor, rule));
    if (!whole) DCR_TRY(cut(tensor, rule, i % rule.match.size(), shard, &slab));
    slabs.push_back(std::move(slab));
  }
  if (rule.mapping == MappingClass::kQkv) {
    DCR_TRY(make_qkv(catalogue, rule, slabs, shard, &made));
  } else if (rule.mapping == MappingClass::kVocabulary) {
    DCR_TRY(make_vocabulary(catalogue[members[0]], rule, std::move(slabs[0]), shard, &made));
  } else {
    DCR_TRY(join(catalogue, rule, slabs, &made));
  }
  return made;
}

}  // namespace dcr
