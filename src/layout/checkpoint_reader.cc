#include "layout/checkpoint_reader.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace dcr {

Result<Catalogue> checkpoint_catalogue(const Checkpoint& checkpoint) {
  std::vector<CanonicalTensor> tensors;
  tensors.reserve(checkpoint.tensors.size());
  for (const CheckpointTensor& tensor : checkpoint.tensors) {
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape, 0});
  }
  return Catalogue::make(std::move(tensors));
}

Status check_same_tensors(const Checkpoint& old_one, const Checkpoint& new_one) {
  const auto describe = [](const CheckpointTensor& tensor) {
    return std::string(dtype_name(tensor.dtype)) + " " + shape_text(tensor.shape);
  };
  const std::size_t count = std::max(old_one.tensors.size(), new_one.tensors.size());
  for (std::size_t i = 0; i < count; ++i) {
    const CheckpointTensor* a = i < old_one.tensors.size() ? &old_one.tensors[i] : nullptr;
    const CheckpointTensor* b = i < new_one.tensors.size() ? &new_one.tensors[i] : nullptr;
    if (b == nullptr || (a != nullptr && a->name < b->name)) {
      return Status(Code::kMismatch, "the new checkpoint has no tensor " + a->name, a->name);
    }
    if (a == nullptr || b->name < a->name) {
      return Status(Code::kMismatch, "the old checkpoint has no tensor " + b->name, b->name);
    }
    if (a->dtype != b->dtype || a->shape != b->shape) {
      return Status(Code::kMismatch,
                    a->name + " is " + describe(*a) + " in the old checkpoint and " + describe(*b) +
                        " in the new one",
                    a->name);
    }
  }
  return {};
}

Status CheckpointReader::read(std::uint32_t tensor, std::uint64_t first,
                              std::span<std::uint8_t> out) {
  const CheckpointTensor& entry = checkpoint_.tensors[tensor];
  return read_tensor(checkpoint_, entry, first * word_bytes(entry.dtype), out);
}

}  // namespace dcr
