// Declarations on their way between ranks, and the parts of shards.
#include <algorithm>
#include <string>
#include <utility>

#include "api/owner_tasks.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/limits.h"
#include "dcr/owner.h"
#include "tensor/text.h"

namespace dcr {
namespace {

constexpr std::string_view kMagic = "dcr-declaration";
constexpr std::uint64_t kDeclarationFormat = 1;

class DeclarationWriter {
 public:
  explicit DeclarationWriter(Bytes* bytes) : out_(bytes) {}

  void write(const RankDeclaration& declaration) {
    out_.text(kMagic);
    out_.varint(kDeclarationFormat);
    out_.varint(declaration.rank);
    out_.varint(declaration.ranks);
    out_.varint(declaration.tensors.size());
    for (const CanonicalTensor& tensor : declaration.tensors) {
      head(tensor.name, tensor.dtype, tensor.shape);
    }
    out_.varint(declaration.tasks.size());
    for (const DeclaredTask& task : declaration.tasks) {
      head(task.name, task.dtype, task.sizes);
      DCR_ASSERT(task.strides.size() == task.sizes.size());
      for (const std::uint64_t stride : task.strides) out_.varint(stride);
      out_.varint(task.parts.size());
      for (const DeclaredPart& one : task.parts) part(one);
    }
  }

 private:
  void head(const std::string& name, Dtype dtype, const Shape& sizes) {
    out_.varint(name.size());
    out_.text(name);
    out_.u8(static_cast<std::uint8_t>(dtype));
    out_.varint(sizes.size());
    for (const std::uint64_t size : sizes) out_.varint(size);
  }

  void part(const DeclaredPart& part) {
    out_.varint(part.tensor);
    out_.varint(part.box.source_offset);
    out_.varint(part.box.destination_offset);
    out_.varint(part.box.dims.size());
    for (const DeclaredDimension& dim : part.box.dims) {
      out_.varint(dim.size);
      out_.varint(dim.source_stride);
      out_.varint(dim.destination_stride);
    }
  }

  ByteWriter out_;
};

Status corrupt(const std::string& what) {
  return {Code::kCorrupt, "a rank's declaration: " + what};
}

Status too_large(const std::string& what) {
  return {Code::kTooLarge, "a rank's declaration: " + what};
}

class DeclarationReader {
 public:
  explicit DeclarationReader(ByteSpan bytes) : in_(bytes) {}

  Status read(RankDeclaration* declaration) {
    if (in_.text(kMagic.size()) != kMagic) return corrupt("it does not begin as one");
    const std::uint64_t format = in_.varint();
    if (in_.ok() && format != kDeclarationFormat) {
      return {Code::kUnsupported, "a rank's declaration of format " + std::to_string(format) +
                                      "; this build reads " + std::to_string(kDeclarationFormat)};
    }
    const std::uint64_t rank = in_.varint();
    const std::uint64_t ranks = in_.varint();
    if (!in_.ok()) return ended();
    if (ranks > kDeclaredRanksMax) return too_large(std::to_string(ranks) + " ranks");
    if (rank >= ranks) {
      return corrupt("rank " + std::to_string(rank) + " of " + std::to_string(ranks));
    }
    declaration->rank = static_cast<std::uint32_t>(rank);
    declaration->ranks = static_cast<std::uint32_t>(ranks);
    DCR_TRY(read_tensors(declaration));
    DCR_TRY(read_tasks(declaration));
    if (!in_.ok()) return ended();
    if (in_.remaining() > 0) return corrupt(std::to_string(in_.remaining()) + " bytes too many");
    return {};
  }

 private:
  static Status ended() {
    return corrupt("it ends early, or a number is not spelled as it should");
  }

  // Of entries of at least one byte each, so that a count is never above what could follow.
  Result<std::uint64_t> count(const char* what, std::uint64_t limit) {
    const std::uint64_t entries = in_.varint();
    if (!in_.ok() || entries > in_.remaining()) return ended();
    if (entries > limit) return too_large(std::to_string(entries) + " " + what);
    return entries;
  }

  Status head(std::string* name, Dtype* dtype, Shape* sizes) {
    const std::uint64_t size = in_.varint();
    if (in_.ok() && (size == 0 || size > kTensorNameBytesMax)) {
      return corrupt("a name of " + std::to_string(size) + " bytes");
    }
    *name = in_.text(size);
    const std::uint8_t number = in_.u8();
    const std::uint64_t rank = in_.varint();
    if (!in_.ok()) return ended();
    if (!valid_utf8(*name)) return corrupt("name " + quoted_name(*name) + " is not UTF-8");
    if (number >= kDtypeCount) {
      return {Code::kUnsupported, "a rank's declaration: " + quoted_name(*name) + " has dtype " +
                                      std::to_string(number)};
    }
    *dtype = static_cast<Dtype>(number);
    if (rank > kRankMax) {
      return too_large(quoted_name(*name) + " has " + std::to_string(rank) + " dimensions");
    }
    for (std::uint64_t i = 0; i < rank; ++i) sizes->push_back(in_.varint());
    if (!in_.ok()) return ended();
    const Result<std::uint64_t> elements = tensor_elements(*sizes);
    return elements.status().with_context("a rank's declaration: " + quoted_name(*name));
  }

  Status read_tensors(RankDeclaration* declaration) {
    DCR_ASSIGN(const std::uint64_t tensors, count("tensors", kTensorsPerCheckpointMax));
    for (std::uint64_t i = 0; i < tensors; ++i) {
      CanonicalTensor& tensor = declaration->tensors.emplace_back();
      DCR_TRY(head(&tensor.name, &tensor.dtype, &tensor.shape));
    }
    return {};
  }

  Status read_tasks(RankDeclaration* declaration) {
    DCR_ASSIGN(const std::uint64_t tasks, count("tasks", kTensorsPerCheckpointMax));
    for (std::uint64_t i = 0; i < tasks; ++i) {
      DeclaredTask& task = declaration->tasks.emplace_back();
      DCR_TRY(head(&task.name, &task.dtype, &task.sizes));
      for (std::size_t d = 0; d < task.sizes.size(); ++d) task.strides.push_back(in_.varint());
      DCR_ASSIGN(const std::uint64_t parts, count("parts of a task", kPartsPerTaskMax));
      for (std::uint64_t p = 0; p < parts; ++p) {
        DCR_TRY(read_part(task.name, declaration->tensors.size(), &task.parts.emplace_back()));
      }
    }
    return {};
  }

  Status read_part(const std::string& task, std::size_t tensors, DeclaredPart* part) {
    const std::uint64_t tensor = in_.varint();
    part->box.source_offset = in_.varint();
    part->box.destination_offset = in_.varint();
    const std::uint64_t dims = in_.varint();
    if (!in_.ok()) return ended();
    if (tensor >= tensors) {
      return corrupt("task " + quoted_name(task) + " has a part of tensor " +
                     std::to_string(tensor) + " of " + std::to_string(tensors));
    }
    if (dims > kRankMax) {
      return too_large("task " + quoted_name(task) + " has a part of " + std::to_string(dims) +
                       " dimensions");
    }
    part->tensor = static_cast<std::uint32_t>(tensor);
    for (std::uint64_t i = 0; i < dims; ++i) {
      DeclaredDimension& dim = part->box.dims.emplace_back();
      dim.size = in_.varint();
      dim.source_stride = in_.varint();
      dim.destination_stride = in_.varint();
    }
    return in_.ok() ? Status() : ended();
  }

  ByteReader in_;
};

// REQUIRES: validated boxes.
bool injective_in_source(std::span<const Box> boxes) {
  std::vector<Box> inverted;
  for (const Box& box : boxes) inverted.push_back(invert(box));
  return destinations_disjoint(inverted);
}

Status invalid(const std::string& what) { return {Code::kInvalidArgument, what}; }

}  // namespace

Box box_of(const DeclaredBox& declared) {
  Box box{declared.source_offset, declared.destination_offset, {}};
  for (const DeclaredDimension& dim : declared.dims) {
    box.dims.push_back({dim.size, dim.source_stride, dim.destination_stride});
  }
  return box;
}

DeclaredBox declared_of(const Box& box) {
  DeclaredBox declared{box.src_offset, box.dst_offset, {}};
  for (const BoxDimension& dim : box.dims) {
    declared.dims.push_back({dim.size, dim.src_stride, dim.dst_stride});
  }
  return declared;
}

Result<std::vector<DeclaredPart>> parts_of_shard(std::span<const DeclaredBox> shard,
                                                 std::span<const DeclaredPart> whole) {
  std::vector<Box> firsts;
  for (const DeclaredBox& declared : shard) {
    firsts.push_back(normalize(box_of(declared)));
    DCR_TRY(validate_box(firsts.back(), kElementsMax, kElementsMax));
  }
  if (!destinations_disjoint(firsts)) return invalid("a shard has an element of its tensor twice");
  std::vector<DeclaredPart> parts;
  for (const DeclaredPart& part : whole) {
    const Box second = normalize(box_of(part.box));
    DCR_TRY(validate_box(second, kElementsMax, kElementsMax));
    if (!injective_in_source(std::span(&second, 1))) {
      return invalid("a part has an element of its source tensor twice");
    }
    for (const Box& first : firsts) {
      if (first.elements() == 0 || second.elements() == 0) continue;
      DCR_ASSIGN(const std::vector<Box> boxes, compose(first, second, kPartsPerTaskMax));
      for (const Box& box : boxes) parts.push_back({part.tensor, declared_of(normalize(box))});
      if (parts.size() > kPartsPerTaskMax) {
        return Status(Code::kTooLarge,
                      "a shard of more than " + std::to_string(kPartsPerTaskMax) + " boxes");
      }
    }
  }
  return parts;
}

std::vector<std::uint8_t> encode_declaration(const RankDeclaration& declaration) {
  Bytes bytes;
  DeclarationWriter(&bytes).write(declaration);
  return bytes;
}

Result<RankDeclaration> decode_declaration(std::span<const std::uint8_t> bytes) {
  if (bytes.size() > kDeclarationBytesMax) {
    return too_large(std::to_string(bytes.size()) + " bytes");
  }
  RankDeclaration declaration;
  DCR_TRY(DeclarationReader(bytes).read(&declaration));
  return declaration;
}

}  // namespace dcr
