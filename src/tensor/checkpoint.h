// A checkpoint: one .safetensors file, or a Hugging Face directory with `model.safetensors` or with
// `model.safetensors.index.json` and its shards. One view of both: a name-sorted table of tensors,
// each in a file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "dcr/status.h"
#include "dcr/tensor.h"
#include "runtime/file.h"
#include "tensor/safetensors.h"

namespace dcr {

struct CheckpointFile {
  std::string name;  // one path component; for a single file its base name
  std::string path;
  std::unique_ptr<File> file;
  SafetensorsHeader header;
  Bytes prefix;  // everything before the data, as it stands in the file
  std::uint32_t permissions = 0;
};

struct CheckpointTensor {
  std::string name;
  Dtype dtype = Dtype::kU8;
  Shape shape;
  std::uint64_t bytes = 0;
  std::uint32_t file = 0;    // index into `files`
  std::uint64_t offset = 0;  // in that file
};

// A regular file of the directory that holds no tensors of the checkpoint (configuration,
// tokenizer, index).
struct OtherFile {
  std::string name;
  std::uint64_t size = 0;
  std::uint32_t permissions = 0;
};

// A file that is left out of deltas, with the reason ("above 64 MiB", "pickle", "safetensors file
// outside the index", "symlink to a directory", "not a regular file").
struct LeftOutFile {
  std::string name;
  std::string reason;
};

struct Checkpoint {
  std::string path;
  bool directory = false;
  std::vector<CheckpointFile> files;      // sorted by name
  std::vector<CheckpointTensor> tensors;  // sorted by name (bytewise), names unique over all files
  std::vector<OtherFile> others;          // sorted by name; the index JSON is among them
  std::vector<LeftOutFile> left_out;      // sorted by name
};

// Opens a checkpoint read-only (`writable` false) or for pwrite. Symlinks are followed when
// read-only (the layout of the Hugging Face cache). Validates every header and the index whole: a
// name in two shards, a shard that the index names but is missing, an index entry whose tensor its
// shard lacks or the reverse, file names that are not one plain component are errors (kCorrupt,
// kNotFound) that name tensor and file.
Result<Checkpoint> open_checkpoint(FileSystem& files, const std::string& path,
                                   bool writable = false);

// Index of a tensor by name, or -1.
std::int64_t find_tensor(const Checkpoint& checkpoint, std::string_view name);

// Reads bytes [offset, offset + out.size()) of a tensor. Error kIo names tensor and file.
Status read_tensor(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                   std::uint64_t offset, MutableByteSpan out);

// "One component of at most 255 bytes, no NUL, '/', '.' or '..'" — also what a delta may name.
Status validate_file_name(std::string_view name);

// The `weight_map` of an index JSON: tensor name → file name; validated by the SAX interface within
// limits.h.
Result<std::map<std::string, std::string>> parse_index(ByteSpan json);

// One line of a checkpoint's identity.
struct IdentityEntry {
  std::string_view name;
  Dtype dtype;
  const Shape* shape;
  Digest digest;  // tensor_digest
};
// The identity of a checkpoint (docs/FORMAT.md "Identity"): BLAKE2b-128 over the name-sorted
// entries, so it does not depend on sharding. REQUIRES: entries sorted by name.
Digest checkpoint_identity(const std::vector<IdentityEntry>& entries);

}  // namespace dcr
