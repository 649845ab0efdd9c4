// The delta file (docs/FORMAT.md "Delta file"): prologue, payloads, carried blobs, footer, trailer,
// written in one forward pass. The footer is what everything else is judged against; nothing of it
// is used before its digest and all of its fields were validated.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/limits.h"
#include "codec/payload.h"
#include "dcr/options.h"
#include "dcr/ports.h"
#include "dcr/status.h"
#include "dcr/tensor.h"
#include "delta/work.h"
#include "runtime/file.h"

namespace dcr {

// docs/FORMAT.md "Delta file".
inline constexpr std::uint64_t kDeltaPrologueBytes = 16;
inline constexpr std::uint64_t kDeltaTrailerBytes = 56;
// Input bytes of a payload's items, as the writer closes payloads. Small, so that construction and
// application stay within the least memory bound at every change rate.
inline constexpr std::uint64_t kDeltaBucketBytes = 48 * kMiB;
// Words with a change in one payload, in bytes; more only where its streams take more.
inline constexpr std::uint64_t kDeltaValueBytesMax = 64 * kMiB;
static_assert(kDeltaBucketBytes <= kDeltaValueBytesMax);
// The name under which the file of a single-file checkpoint stands in a delta: what a directory
// with one weights file calls it, so that the names that users give to single files do not matter.
inline constexpr const char* kSingleFileName = "model.safetensors";

// One side of a tensor: as the base or the target checkpoint has it.
struct TensorSide {
  bool present = false;
  Dtype dtype = Dtype::kU8;
  Shape shape;
  std::uint32_t file = 0;    // index into DeltaFooter::files
  std::uint64_t offset = 0;  // of its first byte in that file
  std::uint64_t bytes = 0;   // tensor_bytes(dtype, shape)
  Digest digest{};           // tensor_digest

  bool operator==(const TensorSide&) const = default;
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

  bool operator==(const DeltaTensor&) const = default;
};

// Bytes carried in the delta outside payloads: a safetensors prefix or another file's content.
struct Blob {
  std::uint64_t offset = 0;  // in the delta file
  std::uint64_t stored_bytes = 0;
  std::uint64_t raw_bytes = 0;
  std::uint8_t coding = 0;  // 0 stored, 1 one zstd frame
  Digest digest{};          // BLAKE2b-128 of the stored bytes

  bool operator==(const Blob&) const = default;
};

enum class FileRole : std::uint8_t { kWeights = 0, kOther = 1 };

// A file of the base, the target, or both (then under the same name). The file of a single-file
// checkpoint has the name kSingleFileName.
struct DeltaFile {
  std::string name;
  FileRole role = FileRole::kWeights;
  bool in_base = false, in_target = false;
  std::uint64_t base_size = 0, target_size = 0;
  // kWeights: bytes before the tensors' data. kOther: the same as the sizes.
  std::uint64_t base_content_bytes = 0, target_content_bytes = 0;
  std::uint32_t permissions = 0;  // of the target; the low nine bits
  // The content is the prefix of a kWeights file and the whole of a kOther file.
  bool same_as_base = false;  // the target's content equals the base's: not carried
  Digest base_digest{};       // BLAKE2b-128 of the base's content
  Digest target_digest{};     // BLAKE2b-128 of the target's content
  Blob carried;               // where in_target && !same_as_base

  bool is_carried() const { return in_target && !same_as_base; }

  bool operator==(const DeltaFile&) const = default;
};

struct PayloadIndexEntry {
  std::uint64_t offset = 0;  // in the delta file
  std::uint64_t stored_bytes = 0;
  Digest digest{};  // the payload's own

  bool operator==(const PayloadIndexEntry&) const = default;
};

struct LeftOutEntry {
  std::string name, reason;

  bool operator==(const LeftOutEntry&) const = default;
};

struct DeltaFooter {
  Digest base_identity{}, target_identity{};  // follow from `tensors`; checked when decoded
  bool directory = false;                     // of the target
  std::vector<DeltaTensor> tensors;           // sorted by name
  std::vector<DeltaFile> files;               // sorted by name
  std::vector<PayloadIndexEntry> payloads;
  std::uint64_t payload_raw_bytes_max = 0;  // the largest Payload::raw_bytes()
  std::vector<LeftOutEntry> left_out;       // sorted by name
  std::uint64_t changed = 0;                // words of common tensors with an entry

  bool operator==(const DeltaFooter&) const = default;
};

// What payloads' item indices point into: the digest over names, dtypes and shapes of the target
// side. See docs/FORMAT.md "Schema".
Digest delta_schema(const std::vector<DeltaTensor>& tensors);

// The reader's own specs for Payload::read, one per tensor (words 0 where there is no target side).
std::vector<TensorSpec> delta_specs(const std::vector<DeltaTensor>& tensors);

// The identities of the two checkpoints, from the table (docs/FORMAT.md "Identity").
Digest base_identity(const std::vector<DeltaTensor>& tensors);
Digest target_identity(const std::vector<DeltaTensor>& tensors);

// Index of a tensor by name, or -1. REQUIRES: sorted by name.
std::int64_t find_delta_tensor(const std::vector<DeltaTensor>& tensors, std::string_view name);

// REQUIRES: a footer that decode_footer accepts; blobs and payloads lie in the delta file as it
// says.
Bytes encode_footer(const DeltaFooter& footer);
// Validates a footer whole. `delta_bytes` is the size of the delta file that it lies in: payloads
// and blobs must fill all of it but prologue, footer and trailer. Errors: kCorrupt, kTooLarge,
// kUnsupported, naming field and entry.
Result<DeltaFooter> decode_footer(ByteSpan bytes, std::uint64_t delta_bytes);

// Writes a delta file front to back. Not thread-safe.
class DeltaWriter final : public PayloadSink {
 public:
  // `file` is empty, and must outlive the writer.
  explicit DeltaWriter(File* file) : file_(file) {}

  Status begin();                                                 // the prologue
  Status send(std::uint64_t number, ByteSpan payload) override;   // then payloads
  Status add_blob(ByteSpan raw, Blob* blob);                      // then blobs
  Result<std::uint64_t> finish(DeltaFooter* footer, Digest* id);  // returns the file's size

 private:
  Status append(ByteSpan bytes);

  File* file_;
  std::uint64_t offset_ = 0;
  std::vector<PayloadIndexEntry> payloads_;
};

// Where an item is found again.
struct ItemPlace {
  std::uint32_t tensor = 0;
  std::uint32_t payload = 0;
  std::uint32_t item = 0;    // index into Payload::items()
  std::uint64_t offset = 0;  // words; the piece that it changes starts there
};

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

  // Working memory that reading one payload takes at most, and what the result keeps of it.
  std::uint64_t read_bytes_max() const;
  std::uint64_t payload_bytes_max() const { return footer_.payload_raw_bytes_max; }

  // Reads a payload and validates it whole, against the footer too: each item is one piece of the
  // fixed grid (source/pipeline.h), and items of tensors that are carried whole are the words
  // themselves. REQUIRES: index < footer().payloads.size().
  Result<Payload> read_payload(std::size_t index) const;

  Result<Bytes> read_blob(const Blob& blob) const;

  // Reads and validates all payloads and blobs, and what only all of them together show: that items
  // come in ascending order, that tensors that are carried whole are complete, that carried
  // prefixes agree with the tensor table, and the count of changes. `visit` (may be empty) sees
  // each payload, in order, on the calling thread. Returns where the items are, in ascending
  // (tensor, offset) order. Error kTooLarge when a payload cannot be decoded within
  // work.memory_bytes_max.
  Result<std::vector<ItemPlace>> validate_all(
      const Work& work, const std::function<void(const Payload&)>& visit = {}) const;

 private:
  DeltaReader() = default;
  Status read_footer();
  Status check_payload(const Payload& payload, std::size_t index) const;
  Status validate_blobs() const;

  std::string path_;
  std::unique_ptr<File> file_;
  DeltaFooter footer_;
  std::vector<TensorSpec> specs_;
  Digest schema_{};
  Digest id_{};
  std::uint64_t file_bytes_ = 0;
};

// Whether the parsed prefix of weights file `file` of the target says what the tensor table says.
// Error kCorrupt naming file and tensor.
Status check_target_prefix(const DeltaFooter& footer, std::uint32_t file, ByteSpan prefix);

// Checks that each delta's target is the next one's base, by identity. Error kMismatch naming both
// files.
Status check_chain(const std::vector<DeltaReader>& chain);

}  // namespace dcr
