// Weights in host buffers and in files (checkpoints), as an owner's SourceMemory.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "dcr/ports.h"
#include "runtime/file.h"

namespace dcr {

// Reads a view of a storage that lies in `storage`: SourceMemory::read.
Status read_host_view(ByteSpan storage, const TensorView& view, MutableByteSpan out);

// Storages are added first and read then; reads may run at the same time.
class HostSourceMemory final : public SourceMemory {
 public:
  // Adds a storage and returns its id: 0, 1, 2, … What it refers to must outlive this object.
  std::uint64_t add(ByteSpan bytes);
  // Bytes [offset, offset + bytes) of a file. Rows that lie close together are read in one go.
  std::uint64_t add_file(const File& file, std::uint64_t offset, std::uint64_t bytes);

  Status read(const TensorView& view, std::span<std::uint8_t> out) override;

 private:
  struct Storage {
    const std::uint8_t* memory = nullptr;
    const File* file = nullptr;
    std::uint64_t file_offset = 0;
    std::uint64_t bytes = 0;
  };

  std::vector<Storage> storages_;
};

}  // namespace dcr
