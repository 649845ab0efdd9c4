// The delta file (docs/FORMAT.md "Delta file"): prologue, payloads, carried blobs, footer, trailer,
// written in one forward pass. The footer is what everything else is judged against; nothing of it
// is used before its digest and all of its fields were validated.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/digest.h"
#include "codec/payload.h"
#include "dcr/status.h"
#include "dcr/tensor.h"
#include "runtime/file.h"

namespace dcr {

// One side of a tensor: as the base or the target checkpoint has it.
struct TensorSide {
  bool present = false;
  Dtype dtype = Dtype::kU8;
  Shape shape;
  std::uint32_t file = 0;    // index into DeltaFooter::files
  std::uint64_t offset = 0;  // of its first byte in that file
  std::uint64_t bytes = 0;   // tensor_bytes(dtype, shape)
  Digest digest{};           // tensor_digest
};

struct DeltaTensor {
  std::string name;
  TensorSide base, target;

  // Present on both sides with the same dtype and shape: coded as changes. Else the target side, if
  // any, is carried whole.
  bool common() const {
    return base.present && target.present && base.dtype == target.dtype &&
           base.shape == target.shape;
  }
};

// Bytes carried in the delta outside payloads: a safetensors prefix or another file's content.
struct Blob {
  std::uint64_t offset = 0;  // in the delta file
  std::uint64_t stored_bytes = 0;
  std::uint64_t raw_bytes = 0;
  std::uint8_t coding = 0;  // 0 stored, 1 one zstd frame
  Digest digest{};          // BLAKE2b-128 of the raw bytes
};

enum class FileRole : std::uint8_t { kWeights = 0, kOther = 1 };

// A file of the base, the target, or both (then under the same name).
struct DeltaFile {
  std::string name;
  FileRole role = FileRole::kWeights;
  bool in_base = false, in_target = false;
  std::uint64_t base_size = 0, target_size = 0;
  std::uint32_t permissions = 0;  // of the target
  // The prefix of a kWeights file, the content of a kOther file.
  bool same_as_base = false;  // the target's equals the base's: not carried
  Digest base_digest{};       // BLAKE2b-128 of the base's prefix or content
  Blob carried;               // REQUIRES in_target && !same_as_base
  Digest target_digest{};     // BLAKE2b-128 of the target's prefix or content
};

struct PayloadIndexEntry {
  std::uint64_t offset = 0, stored_bytes = 0, raw_bytes = 0;
  std::uint32_t first_tensor = 0,
                last_tensor = 0;  // of its items; validated against them when it is read
  Digest digest{};                // the payload's own
};

struct LeftOutEntry {
  std::string name, reason;
};

struct DeltaFooter {
  Digest base_identity{}, target_identity{};
  bool directory = false;            // of the target
  std::vector<DeltaTensor> tensors;  // sorted by name
  std::vector<DeltaFile> files;      // sorted by name
  std::vector<PayloadIndexEntry> payloads;
  std::vector<LeftOutEntry> left_out;  // sorted by name
  std::uint64_t changed = 0;           // elements of common tensors with an entry
};

// What payloads' item indices point into: the digest over names, dtypes and shapes of the target
// side. See docs/FORMAT.md "Schema".
Digest delta_schema(const std::vector<DeltaTensor>& tensors);

// The reader's own specs for Payload::read, one per tensor (words 0 where there is no target side).
std::vector<TensorSpec> delta_specs(const std::vector<DeltaTensor>& tensors);

Bytes encode_footer(const DeltaFooter& footer);
// Validates a footer whole. Errors: kCorrupt, kTooLarge, kUnsupported, naming field and entry.
Result<DeltaFooter> decode_footer(ByteSpan bytes, std::uint64_t delta_bytes);

// An open delta whose prologue, trailer and footer were verified. Payloads are verified as they are
// read. Thread-safe.
class DeltaReader {
 public:
  static Result<DeltaReader> open(FileSystem& files, const std::string& path);

  const std::string& path() const { return path_; }
  const DeltaFooter& footer() const { return footer_; }
  // The digest in the trailer: it covers the footer, which covers everything else. Names this delta
  // (journals).
  const Digest& id() const { return id_; }
  std::uint64_t file_bytes() const { return file_bytes_; }

  Result<Payload> read_payload(std::size_t index) const;
  Result<Bytes> read_blob(const Blob& blob) const;

  // Reads and validates all payloads and blobs without keeping them.
  Status validate_all() const;

 private:
  std::string path_;
  std::unique_ptr<File> file_;
  DeltaFooter footer_;
  std::vector<TensorSpec> specs_;
  Digest schema_{};
  Digest id_{};
  std::uint64_t file_bytes_ = 0;
};

// Checks that each delta's target is the next one's base, by identity. Error kMismatch naming both
// files.
Status check_chain(const std::vector<DeltaReader>& chain);

}  // namespace dcr
