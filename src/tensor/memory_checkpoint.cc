#include "tensor/memory_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "tensor/text.h"

namespace dcr {
namespace {

// What a file of these tensors would have after its prefix. Read-only.
class MemoryFile final : public File {
 public:
  MemoryFile(std::string name, std::uint64_t size) : name_(std::move(name)), size_(size) {}

  // Tensors are added in the order of their offsets, which tile the data.
  void add(std::uint64_t offset, ByteSpan bytes) { parts_.push_back({offset, bytes}); }

  Status read(std::uint64_t offset, MutableByteSpan out) const override {
    auto part =
        std::upper_bound(parts_.begin(), parts_.end(), offset,
                         [](std::uint64_t wanted, const Part& p) { return wanted < p.offset; });
    if (out.empty()) return {};
    while (part != parts_.begin()) {
      --part;
      if (!part->bytes.empty()) break;  // those of empty tensors lie where the next one does
    }
    const std::uint64_t at = part == parts_.end() ? 0 : offset - part->offset;
    if (part == parts_.end() || offset < part->offset || at > part->bytes.size() ||
        out.size() > part->bytes.size() - at) {
      return {Code::kIo, quoted_name(name_) + ": read past a tensor's end"};
    }
    std::memcpy(out.data(), part->bytes.data() + at, out.size());
    return {};
  }

  Status write(std::uint64_t, ByteSpan) override { return refuse(); }
  Status sync() override { return refuse(); }
  Status resize(std::uint64_t) override { return refuse(); }
  Result<std::uint64_t> size() const override { return size_; }

 private:
  struct Part {
    std::uint64_t offset;
    ByteSpan bytes;
  };

  Status refuse() const { return {Code::kIo, quoted_name(name_) + " is only read"}; }

  std::string name_;
  std::uint64_t size_;
  std::vector<Part> parts_;
};

Status tensor_error(const MemoryTensor& tensor, const std::string& what) {
  return {Code::kInvalidArgument, "tensor " + quoted_name(tensor.name) + " " + what, tensor.name};
}

}  // namespace

Result<Checkpoint> memory_checkpoint(std::span<const MemoryTensor> tensors,
                                     const std::string& name) {
  std::vector<const MemoryTensor*> sorted;
  for (const MemoryTensor& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(),
            [](const MemoryTensor* a, const MemoryTensor* b) { return a->name < b->name; });
  std::vector<TensorEntry> entries;
  for (const MemoryTensor* tensor : sorted) {
    if (!entries.empty() && entries.back().name == tensor->name) {
      return tensor_error(*tensor, "is there twice");
    }
    entries.push_back({tensor->name, tensor->dtype, tensor->shape, 0, 0});
  }
  CheckpointFile file;
  DCR_ASSIGN(file.prefix, make_safetensors_prefix(entries, {}));
  Checkpoint checkpoint;
  checkpoint.path = name;
  std::uint64_t offset = file.prefix.size();
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const MemoryTensor& tensor = *sorted[i];
    // The prefix was made of them, so shape and sum are within their limits.
    const std::uint64_t bytes = tensor_bytes(tensor.dtype, tensor.shape).value();
    if (tensor.bytes.size() != bytes) {
      return tensor_error(tensor, "has " + std::to_string(tensor.bytes.size()) +
                                      " bytes of memory, not " + std::to_string(bytes));
    }
    entries[i].offset = offset;
    entries[i].bytes = bytes;
    checkpoint.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, bytes, 0, offset});
    offset += bytes;
  }
  auto memory = std::make_unique<MemoryFile>(name, offset);
  for (std::size_t i = 0; i < sorted.size(); ++i) memory->add(entries[i].offset, sorted[i]->bytes);
  file.name = file.path = name;
  file.file = std::move(memory);
  file.header.data_offset = file.prefix.size();
  file.header.file_bytes = offset;
  file.header.tensors = std::move(entries);
  file.permissions = 0644;
  checkpoint.files.push_back(std::move(file));
  return checkpoint;
}

}  // namespace dcr
