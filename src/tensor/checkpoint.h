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

// An entry of the directory that is left out of deltas, with the reason: "above 64 MiB", "pickle",
// "safetensors file outside the index", "second safetensors file", "directory", "symlink to a
// directory", "symlink to nothing", "not a regular file", "left by an interrupted run of dcr".
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

// Opens a checkpoint read-only (`writable` false) or for pwrite. A directory's tensors are in the
// shards of `model.safetensors.index.json`, else in `model.safetensors`, else in the only
// *.safetensors file. Validates every header and the index whole. Errors, which name tensor and
// file: kNotFound (nothing at `path`, none of the three, a shard that the index names is missing),
// kCorrupt (what the headers and the index say of themselves; a name in two shards, an index entry
// whose tensor its shard lacks or the reverse), kTooLarge (limits.h), kIo. Symlinks are followed
// when read-only (the layout of the Hugging Face cache); with `writable`, any file of the
// checkpoint that is a symlink or has several links is refused with kMismatch.
Result<Checkpoint> open_checkpoint(FileSystem& files, const std::string& path,
                                   bool writable = false);

// Index of a tensor by name, or -1.
std::int64_t find_tensor(const Checkpoint& checkpoint, std::string_view name);

// Reads bytes [offset, offset + out.size()) of a tensor. Error kIo names tensor and file, also when
// the file shrank since it was opened. REQUIRES: within the tensor. Thread-safe.
Status read_tensor(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                   std::uint64_t offset, MutableByteSpan out);

// "One component of at most 255 bytes, no NUL, '/', '.' or '..'": also what a delta may name. Error
// kCorrupt quoting the name.
Status validate_file_name(std::string_view name);

// The `weight_map` of an index JSON: tensor name → file name, one plain component that ends in
// ".safetensors". What else the index holds ("metadata" mostly) is skipped. Errors, naming the
// tensor: kCorrupt (not JSON, a value of wrong type, `weight_map` missing or repeated, a repeated
// tensor, a file name that is not allowed), kTooLarge (limits.h, nesting).
Result<std::map<std::string, std::string>> parse_index(ByteSpan json);

// One line of a checkpoint's identity.
struct IdentityEntry {
  std::string_view name;
  Dtype dtype;
  const Shape* shape;
  Digest digest;  // tensor_digest
};
// The identity of a checkpoint (docs/FORMAT.md "Identity"), which does not depend on sharding:
// BLAKE2b-128 over the 12 bytes "dcr-identity", the number of entries as u64 and, in the order of
// names, of each: u32 length of its name, name, u8 dtype, u8 rank, the sizes as u64, the 16 bytes
// of its digest (all little-endian). REQUIRES: entries sorted by name, validated.
Digest checkpoint_identity(const std::vector<IdentityEntry>& entries);

}  // namespace dcr
