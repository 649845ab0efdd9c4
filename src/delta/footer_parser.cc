// Reading a footer: every rule that one from outside must keep.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/assert.h"
#include "base/checked.h"
#include "base/limits.h"
#include "delta/delta_file.h"
#include "delta/footer_flags.h"
#include "tensor/checkpoint.h"
#include "tensor/safetensors.h"
#include "tensor/text.h"

namespace dcr {
namespace {

// The least bytes that an entry takes, so that a count is bounded before room is made for it.
constexpr std::uint64_t kFileEntryBytesMin = 1 + 1 + 1 + 16;
constexpr std::uint64_t kTensorEntryBytesMin = 1 + 1 + 4 + 16;
constexpr std::uint64_t kPayloadEntryBytesMin = 1 + 16;
constexpr std::uint64_t kLeftOutEntryBytesMin = 2 + 2;

constexpr std::uint64_t kReasonBytesMax = kKiB;
constexpr std::uint32_t kPermissionsMax = 0777;

Status corrupt(const std::string& what) { return {Code::kCorrupt, "footer: " + what}; }

Status file_error(Code code, const std::string& name, const std::string& what) {
  return {code, "footer: file " + quoted_name(name) + ": " + what};
}

Status tensor_error(Code code, const std::string& name, const std::string& what) {
  return {code, "footer: tensor " + quoted_name(name) + ": " + what, name};
}

// Reads one footer. Each method reads one record and leaves the footer valid so far.
class FooterParser {
 public:
  FooterParser(ByteSpan bytes, std::uint64_t delta_bytes)
      : in_(bytes), footer_bytes_(bytes.size()), delta_bytes_(delta_bytes) {}

  Result<DeltaFooter> parse();

 private:
  Status read_count(const char* what, std::uint64_t limit, std::uint64_t entry_bytes_min,
                    std::uint64_t* count);
  Status read_name(const char* what, std::uint64_t bytes_max, std::string* name);
  Digest read_digest();
  Status read_files();
  Status read_file(DeltaFile* file);
  Status read_base_of_file(DeltaFile* file);
  Status read_target_of_file(DeltaFile* file);
  Status read_tensors();
  Status read_tensor(DeltaTensor* tensor);
  Status read_dtype_and_shape(const std::string& name, TensorSide* side);
  Status read_place(const std::string& name, bool target, TensorSide* side);
  Status read_payloads();
  Status read_left_out();
  Status check_tiling(bool target) const;
  Status place_contents();
  Status check_ok(const std::string& where) const {
    if (in_.ok()) return {};
    return corrupt(where + " is cut short or has a malformed number");
  }

  ByteReader in_;
  std::uint64_t footer_bytes_;
  std::uint64_t delta_bytes_;
  DeltaFooter footer_;
};

Status FooterParser::read_count(const char* what, std::uint64_t limit,
                                std::uint64_t entry_bytes_min, std::uint64_t* count) {
  *count = in_.varint();
  DCR_TRY(check_ok(std::string("the number of ") + what));
  if (*count > limit) {
    return {Code::kTooLarge, "footer: " + std::to_string(*count) + " " + what +
                                 " are above the limit of " + std::to_string(limit)};
  }
  if (*count > in_.remaining() / entry_bytes_min) {
    return corrupt(std::to_string(*count) + " " + what + " do not fit into the " +
                   std::to_string(in_.remaining()) + " bytes that are left");
  }
  return {};
}

Status FooterParser::read_name(const char* what, std::uint64_t bytes_max, std::string* name) {
  const std::uint64_t size = in_.varint();
  DCR_TRY(check_ok(what));
  if (size > bytes_max) {
    return {Code::kTooLarge, std::string("footer: ") + what + " of " + std::to_string(size) +
                                 " bytes is above the limit of " + std::to_string(bytes_max)};
  }
  *name = in_.text(size);
  return check_ok(what);
}

Digest FooterParser::read_digest() {
  Digest digest{};
  const ByteSpan bytes = in_.bytes(digest.size());
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return digest;
}

Status FooterParser::read_base_of_file(DeltaFile* file) {
  file->base_size = in_.varint();
  file->base_content_bytes = file->role == FileRole::kWeights ? in_.varint() : file->base_size;
  file->base_digest = read_digest();
  DCR_TRY(check_ok("file " + quoted_name(file->name)));
  if (file->base_content_bytes > file->base_size) {
    return file_error(Code::kCorrupt, file->name, "its base prefix is longer than the file");
  }
  return {};
}

Status FooterParser::read_target_of_file(DeltaFile* file) {
  file->target_size = in_.varint();
  const std::uint64_t permissions = in_.varint();
  if (permissions > kPermissionsMax) {
    return file_error(Code::kCorrupt, file->name, "permissions above 0777");
  }
  file->permissions = static_cast<std::uint32_t>(permissions);
  if (file->same_as_base) {
    file->target_content_bytes = file->base_content_bytes;
    file->target_digest = file->base_digest;
    if (file->target_size != file->base_size) {
      return file_error(Code::kCorrupt, file->name,
                        "called the same as in the base, of another size");
    }
    return check_ok("file " + quoted_name(file->name));
  }
  const bool weights = file->role == FileRole::kWeights;
  file->target_content_bytes = weights ? in_.varint() : file->target_size;
  file->target_digest = read_digest();
  Blob& blob = file->carried;
  blob.coding = in_.u8();
  blob.stored_bytes = in_.varint();
  blob.digest = read_digest();
  blob.raw_bytes = file->target_content_bytes;
  DCR_TRY(check_ok("file " + quoted_name(file->name)));
  const std::uint64_t limit = weights ? kSafetensorsHeaderBytesMax + 8 : kCarriedFileBytesMax;
  if (blob.raw_bytes > limit) {
    return file_error(Code::kTooLarge, file->name,
                      "carried bytes above the limit of " + std::to_string(limit));
  }
  if (blob.raw_bytes > file->target_size) {
    return file_error(Code::kCorrupt, file->name, "its target prefix is longer than the file");
  }
  if (blob.coding > 1) {
    return file_error(Code::kUnsupported, file->name,
                      "coding " + std::to_string(blob.coding) + " is unknown to this build");
  }
  // A frame that saves nothing is stored instead, so that there is one way to write a content.
  const bool fits =
      blob.coding == 0 ? blob.stored_bytes == blob.raw_bytes : blob.stored_bytes < blob.raw_bytes;
  if (!fits) return file_error(Code::kCorrupt, file->name, "stored bytes do not fit its coding");
  return {};
}

Status FooterParser::read_file(DeltaFile* file) {
  DCR_TRY(read_name("file name", kFileNameBytesMax, &file->name));
  if (Status status = validate_file_name(file->name); !status.ok()) {
    return Status(Code::kCorrupt, status.message()).with_context("footer");
  }
  const std::uint8_t flags = in_.u8();
  DCR_TRY(check_ok("file " + quoted_name(file->name)));
  file->in_base = (flags & kFileInBase) != 0;
  file->in_target = (flags & kFileInTarget) != 0;
  file->same_as_base = (flags & kFileSameAsBase) != 0;
  file->role = (flags & kFileIsOther) != 0 ? FileRole::kOther : FileRole::kWeights;
  if (flags > 15 || !(file->in_base || file->in_target) ||
      (file->same_as_base && !(file->in_base && file->in_target))) {
    return file_error(Code::kCorrupt, file->name,
                      "flags " + std::to_string(flags) + " mean nothing");
  }
  if (file->in_base) DCR_TRY(read_base_of_file(file));
  if (file->in_target) DCR_TRY(read_target_of_file(file));
  return {};
}

Status FooterParser::read_files() {
  std::uint64_t count = 0;
  DCR_TRY(read_count("files", 2 * kFilesPerCheckpointMax, kFileEntryBytesMin, &count));
  footer_.files.resize(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < footer_.files.size(); ++i) {
    DCR_TRY(read_file(&footer_.files[i]));
    if (i > 0 && footer_.files[i].name <= footer_.files[i - 1].name) {
      return file_error(Code::kCorrupt, footer_.files[i].name, "out of order or named twice");
    }
  }
  if (footer_.directory) return {};
  const auto is_odd = [](const DeltaFile& file) {
    return file.in_target && (file.name != kSingleFileName || file.role != FileRole::kWeights);
  };
  if (std::any_of(footer_.files.begin(), footer_.files.end(), is_odd)) {
    return corrupt(std::string("a single-file target has other files than ") + kSingleFileName);
  }
  const auto in_target = [](const DeltaFile& file) { return file.in_target; };
  if (std::none_of(footer_.files.begin(), footer_.files.end(), in_target)) {
    return corrupt("a single-file target has no file");
  }
  return {};
}

Status FooterParser::read_dtype_and_shape(const std::string& name, TensorSide* side) {
  const std::uint8_t dtype = in_.u8();
  const std::uint8_t rank = in_.u8();
  DCR_TRY(check_ok("tensor " + quoted_name(name)));
  if (dtype >= kDtypeCount) {
    return tensor_error(Code::kUnsupported, name, "dtype " + std::to_string(dtype) + " is unknown");
  }
  if (rank > kRankMax) {
    return tensor_error(
        Code::kTooLarge, name,
        "rank " + std::to_string(rank) + " is above the limit of " + std::to_string(kRankMax));
  }
  side->dtype = static_cast<Dtype>(dtype);
  side->shape.resize(rank);
  for (std::uint64_t& size : side->shape) size = in_.varint();
  return check_ok("tensor " + quoted_name(name));
}

Status FooterParser::read_place(const std::string& name, bool target, TensorSide* side) {
  const std::string side_name = target ? "target" : "base";
  side->present = true;
  const std::uint64_t file = in_.varint();
  side->offset = in_.varint();
  side->digest = read_digest();
  DCR_TRY(check_ok("tensor " + quoted_name(name)));
  Result<std::uint64_t> bytes = tensor_bytes(side->dtype, side->shape);
  if (!bytes.ok()) {
    return tensor_error(bytes.status().code(), name, side_name + ": " + bytes.status().message());
  }
  side->bytes = *bytes;
  if (file >= footer_.files.size()) {
    return tensor_error(Code::kCorrupt, name, "its " + side_name + " file index is out of range");
  }
  side->file = static_cast<std::uint32_t>(file);
  const DeltaFile& in = footer_.files[side->file];
  if (in.role != FileRole::kWeights || !(target ? in.in_target : in.in_base)) {
    return tensor_error(Code::kCorrupt, name,
                        "file " + quoted_name(in.name) + " holds no tensors of the " + side_name);
  }
  if (side->bytes == 0 && side->digest != combine_leaves({})) {
    return tensor_error(Code::kCorrupt, name, "it is empty but its digest is not");
  }
  return {};
}

Status FooterParser::read_tensor(DeltaTensor* tensor) {
  DCR_TRY(read_name("tensor name", kTensorNameBytesMax, &tensor->name));
  if (!valid_utf8(tensor->name)) return corrupt("a tensor name is not UTF-8");
  const std::uint8_t flags = in_.u8();
  DCR_TRY(check_ok("tensor " + quoted_name(tensor->name)));
  const bool in_base = (flags & kTensorInBase) != 0;
  const bool in_target = (flags & kTensorInTarget) != 0;
  const bool common = (flags & kTensorCommon) != 0;
  if (flags > 7 || !(in_base || in_target) || (common && !(in_base && in_target))) {
    return tensor_error(Code::kCorrupt, tensor->name,
                        "flags " + std::to_string(flags) + " mean nothing");
  }
  if (in_base) {
    DCR_TRY(read_dtype_and_shape(tensor->name, &tensor->base));
    DCR_TRY(read_place(tensor->name, false, &tensor->base));
  }
  if (in_target) {
    if (common) {
      tensor->target.dtype = tensor->base.dtype;
      tensor->target.shape = tensor->base.shape;
    } else {
      DCR_TRY(read_dtype_and_shape(tensor->name, &tensor->target));
    }
    DCR_TRY(read_place(tensor->name, true, &tensor->target));
  }
  if (tensor->common() != common) {
    return tensor_error(Code::kCorrupt, tensor->name, "it repeats the base's dtype and shape");
  }
  return {};
}

Status FooterParser::read_tensors() {
  std::uint64_t count = 0;
  DCR_TRY(read_count("tensors", 2 * kTensorsPerCheckpointMax, kTensorEntryBytesMin, &count));
  footer_.tensors.resize(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < footer_.tensors.size(); ++i) {
    DCR_TRY(read_tensor(&footer_.tensors[i]));
    const std::string& name = footer_.tensors[i].name;
    if (i > 0 && name <= footer_.tensors[i - 1].name) {
      return tensor_error(Code::kCorrupt, name, "out of order or named twice");
    }
  }
  return {};
}

// A side's tensors must fill its files' data parts without holes or overlaps, as the safetensors
// format asks (and tensor/safetensors.h checks in the files themselves).
Status FooterParser::check_tiling(bool target) const {
  std::vector<const DeltaTensor*> order;
  order.reserve(footer_.tensors.size());
  const auto side_of = [target](const DeltaTensor* tensor) -> const TensorSide& {
    return target ? tensor->target : tensor->base;
  };
  for (const DeltaTensor& tensor : footer_.tensors) {
    if (side_of(&tensor).present) order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [&](const DeltaTensor* a, const DeltaTensor* b) {
    const TensorSide &x = side_of(a), &y = side_of(b);
    if (x.file != y.file) return x.file < y.file;
    return x.offset != y.offset ? x.offset < y.offset : x.bytes < y.bytes;
  });
  std::size_t next = 0;
  std::uint64_t total = 0;
  for (std::uint32_t index = 0; index < footer_.files.size(); ++index) {
    const DeltaFile& file = footer_.files[index];
    if (file.role != FileRole::kWeights || !(target ? file.in_target : file.in_base)) continue;
    const std::uint64_t size = target ? file.target_size : file.base_size;
    std::uint64_t end = target ? file.target_content_bytes : file.base_content_bytes;
    if (size > kCheckpointBytesMax - total) {
      return file_error(Code::kTooLarge, file.name,
                        std::string("with it the ") + (target ? "target" : "base") +
                            " is above the limit of " + std::to_string(kCheckpointBytesMax) +
                            " bytes");
    }
    total += size;
    for (; next < order.size() && side_of(order[next]).file == index; ++next) {
      const TensorSide& side = side_of(order[next]);
      if (side.offset != end || side.bytes > size - end) {
        return tensor_error(
            Code::kCorrupt, order[next]->name,
            std::string("overlaps another, leaves a hole or ends past the end in ") +
                (target ? "the target's " : "the base's ") + quoted_name(file.name));
      }
      end += side.bytes;
    }
    if (end != size) {
      return file_error(Code::kCorrupt, file.name,
                        std::string("it has bytes of the ") + (target ? "target" : "base") +
                            " that no tensor explains");
    }
  }
  return {};
}

Status FooterParser::read_payloads() {
  std::uint64_t count = 0;
  DCR_TRY(read_count("payloads", kPayloadsPerDeltaMax, kPayloadEntryBytesMin, &count));
  footer_.payloads.resize(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < footer_.payloads.size(); ++i) {
    footer_.payloads[i].stored_bytes = in_.varint();
    footer_.payloads[i].digest = read_digest();
    DCR_TRY(check_ok("payload " + std::to_string(i)));
    if (footer_.payloads[i].stored_bytes > kPayloadStoredBytesMax) {
      return {Code::kTooLarge, "footer: payload " + std::to_string(i) + " of " +
                                   std::to_string(footer_.payloads[i].stored_bytes) +
                                   " bytes is above the limit of " +
                                   std::to_string(kPayloadStoredBytesMax)};
    }
  }
  return {};
}

Status FooterParser::read_left_out() {
  std::uint64_t count = 0;
  DCR_TRY(read_count("left-out files", kFilesPerCheckpointMax, kLeftOutEntryBytesMin, &count));
  footer_.left_out.resize(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < footer_.left_out.size(); ++i) {
    LeftOutEntry& entry = footer_.left_out[i];
    DCR_TRY(read_name("name of a left-out file", kFileNameBytesMax, &entry.name));
    if (Status status = validate_file_name(entry.name); !status.ok()) {
      return Status(Code::kCorrupt, status.message()).with_context("footer");
    }
    DCR_TRY(read_name("reason of a left-out file", kReasonBytesMax, &entry.reason));
    if (entry.reason.empty() || !valid_utf8(entry.reason)) {
      return corrupt("left-out file " + quoted_name(entry.name) +
                     ": its reason is empty or not UTF-8");
    }
    if (i > 0 && entry.name <= footer_.left_out[i - 1].name) {
      return corrupt("left-out file " + quoted_name(entry.name) +
                     " is out of order or named twice");
    }
  }
  return {};
}

// Payloads, then blobs, lie back to back from the prologue to the footer, so their places follow
// from their sizes. REQUIRES: everything was read.
Status FooterParser::place_contents() {
  std::uint64_t offset = kDeltaPrologueBytes;
  const auto take = [&offset](std::uint64_t bytes) {
    const std::uint64_t at = offset;
    offset = checked_add(offset, bytes).value_or(~std::uint64_t{0});
    return at;
  };
  for (PayloadIndexEntry& payload : footer_.payloads) payload.offset = take(payload.stored_bytes);
  for (DeltaFile& file : footer_.files) {
    if (file.is_carried()) file.carried.offset = take(file.carried.stored_bytes);
  }
  const std::optional<std::uint64_t> whole =
      checked_add(offset, footer_bytes_ + kDeltaTrailerBytes);
  if (!whole || *whole != delta_bytes_) {
    return corrupt("payloads and carried files end at byte " + std::to_string(offset) +
                   ", where the footer does not start");
  }
  return {};
}

Result<DeltaFooter> FooterParser::parse() {
  footer_.base_identity = read_digest();
  footer_.target_identity = read_digest();
  const std::uint8_t flags = in_.u8();
  footer_.changed = in_.varint();
  footer_.payload_raw_bytes_max = in_.varint();
  DCR_TRY(check_ok("the head"));
  if (flags > kFooterDirectory) return corrupt("flags " + std::to_string(flags) + " mean nothing");
  footer_.directory = flags == kFooterDirectory;
  if (footer_.payload_raw_bytes_max > kPayloadRawBytesMax) {
    return Status(Code::kTooLarge, "footer: the largest raw payload is above the limit of " +
                                       std::to_string(kPayloadRawBytesMax));
  }
  DCR_TRY(read_files());
  DCR_TRY(read_tensors());
  DCR_TRY(check_tiling(false));
  DCR_TRY(check_tiling(true));
  DCR_TRY(read_payloads());
  DCR_TRY(read_left_out());
  if (in_.remaining() != 0) {
    return corrupt(std::to_string(in_.remaining()) + " bytes after the last entry");
  }
  DCR_TRY(place_contents());
  if (footer_.base_identity != base_identity(footer_.tensors)) {
    return corrupt("the base identity does not follow from the tensor table");
  }
  if (footer_.target_identity != target_identity(footer_.tensors)) {
    return corrupt("the target identity does not follow from the tensor table");
  }
  return std::move(footer_);
}

}  // namespace

Result<DeltaFooter> decode_footer(ByteSpan bytes, std::uint64_t delta_bytes) {
  return FooterParser(bytes, delta_bytes).parse();
}

}  // namespace dcr
