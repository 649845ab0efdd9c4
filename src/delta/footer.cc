// The footer of a delta file: its bytes, and every rule that a footer from outside must keep.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/assert.h"
#include "base/checked.h"
#include "base/limits.h"
#include "delta/delta_file.h"
#include "tensor/checkpoint.h"
#include "tensor/safetensors.h"

namespace dcr {
namespace {

// Bits of the flag bytes.
constexpr unsigned kFooterDirectory = 1;
constexpr unsigned kFileInBase = 1, kFileInTarget = 2, kFileSameAsBase = 4, kFileIsOther = 8;
constexpr unsigned kTensorInBase = 1, kTensorInTarget = 2, kTensorCommon = 4;

// The least bytes that an entry takes, so that a count is bounded before room is made for it.
constexpr std::uint64_t kFileEntryBytesMin = 1 + 1 + 1 + 16;
constexpr std::uint64_t kTensorEntryBytesMin = 1 + 1 + 4 + 16;
constexpr std::uint64_t kPayloadEntryBytesMin = 1 + 16;
constexpr std::uint64_t kLeftOutEntryBytesMin = 2 + 2;

constexpr std::uint64_t kReasonBytesMax = kKiB;
constexpr std::uint32_t kPermissionsMax = 0777;

Status corrupt(const std::string& what) { return {Code::kCorrupt, "footer: " + what}; }

void write_text(ByteWriter& out, std::string_view text) {
  out.varint(text.size());
  out.text(text);
}

void write_dtype_and_shape(ByteWriter& out, const TensorSide& side) {
  out.u8(static_cast<std::uint8_t>(side.dtype));
  out.u8(static_cast<std::uint8_t>(side.shape.size()));
  for (const std::uint64_t size : side.shape) out.varint(size);
}

void write_place_and_digest(ByteWriter& out, const TensorSide& side) {
  out.varint(side.file);
  out.varint(side.offset);
  out.bytes(side.digest);
}

void write_tensor(ByteWriter& out, const DeltaTensor& tensor) {
  write_text(out, tensor.name);
  out.u8(static_cast<std::uint8_t>((tensor.base.present ? kTensorInBase : 0) |
                                   (tensor.target.present ? kTensorInTarget : 0) |
                                   (tensor.common() ? kTensorCommon : 0)));
  if (tensor.base.present) {
    write_dtype_and_shape(out, tensor.base);
    write_place_and_digest(out, tensor.base);
  }
  if (tensor.target.present) {
    if (!tensor.common()) write_dtype_and_shape(out, tensor.target);
    write_place_and_digest(out, tensor.target);
  }
}

void write_file(ByteWriter& out, const DeltaFile& file) {
  const bool weights = file.role == FileRole::kWeights;
  write_text(out, file.name);
  out.u8(static_cast<std::uint8_t>(
      (file.in_base ? kFileInBase : 0) | (file.in_target ? kFileInTarget : 0) |
      (file.same_as_base ? kFileSameAsBase : 0) | (weights ? 0 : kFileIsOther)));
  if (file.in_base) {
    out.varint(file.base_size);
    if (weights) out.varint(file.base_content_bytes);
    out.bytes(file.base_digest);
  }
  if (!file.in_target) return;
  out.varint(file.target_size);
  out.varint(file.permissions);
  if (file.same_as_base) return;
  if (weights) out.varint(file.target_content_bytes);
  out.bytes(file.target_digest);
  out.u8(file.carried.coding);
  out.varint(file.carried.stored_bytes);
  out.bytes(file.carried.digest);
}

// Whether `text` is UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, at most U+10FFFF.
bool is_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<std::uint8_t>(text[i++]);
    if (lead < 0x80) continue;
    if (lead < 0xc2 || lead > 0xf4) return false;
    const unsigned more = lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
    if (text.size() - i < more) return false;
    const auto next = static_cast<std::uint8_t>(text[i]);
    if ((lead == 0xe0 && next < 0xa0) || (lead == 0xed && next > 0x9f) ||
        (lead == 0xf0 && next < 0x90) || (lead == 0xf4 && next > 0x8f)) {
      return false;
    }
    for (unsigned k = 0; k < more; ++k) {
      if ((static_cast<std::uint8_t>(text[i++]) & 0xc0) != 0x80) return false;
    }
  }
  return true;
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
  DCR_TRY(check_ok("file " + file->name));
  if (file->base_content_bytes > file->base_size) {
    return corrupt("file " + file->name + ": its base prefix is longer than the file");
  }
  return {};
}

Status FooterParser::read_target_of_file(DeltaFile* file) {
  file->target_size = in_.varint();
  const std::uint64_t permissions = in_.varint();
  if (permissions > kPermissionsMax) {
    return corrupt("file " + file->name + ": permissions above 0777");
  }
  file->permissions = static_cast<std::uint32_t>(permissions);
  if (file->same_as_base) {
    file->target_content_bytes = file->base_content_bytes;
    file->target_digest = file->base_digest;
    if (file->target_size != file->base_size) {
      return corrupt("file " + file->name + ": called the same as in the base, of another size");
    }
    return check_ok("file " + file->name);
  }
  const bool weights = file->role == FileRole::kWeights;
  file->target_content_bytes = weights ? in_.varint() : file->target_size;
  file->target_digest = read_digest();
  Blob& blob = file->carried;
  blob.coding = in_.u8();
  blob.stored_bytes = in_.varint();
  blob.digest = read_digest();
  blob.raw_bytes = file->target_content_bytes;
  DCR_TRY(check_ok("file " + file->name));
  const std::uint64_t limit = weights ? kSafetensorsHeaderBytesMax + 8 : kCarriedFileBytesMax;
  if (blob.raw_bytes > limit) {
    return {Code::kTooLarge, "footer: file " + file->name + ": carried bytes above the limit of " +
                                 std::to_string(limit)};
  }
  if (blob.raw_bytes > file->target_size) {
    return corrupt("file " + file->name + ": its target prefix is longer than the file");
  }
  if (blob.coding > 1) {
    return {Code::kUnsupported, "footer: file " + file->name + ": coding " +
                                    std::to_string(blob.coding) + " is unknown to this build"};
  }
  // A frame that saves nothing is stored instead, so that there is one way to write a content.
  const bool fits =
      blob.coding == 0 ? blob.stored_bytes == blob.raw_bytes : blob.stored_bytes < blob.raw_bytes;
  if (!fits) return corrupt("file " + file->name + ": stored bytes do not fit its coding");
  return {};
}

Status FooterParser::read_file(DeltaFile* file) {
  DCR_TRY(read_name("file name", kFileNameBytesMax, &file->name));
  if (Status status = validate_file_name(file->name); !status.ok()) {
    return Status(Code::kCorrupt, status.message()).with_context("footer");
  }
  const std::uint8_t flags = in_.u8();
  DCR_TRY(check_ok("file " + file->name));
  file->in_base = (flags & kFileInBase) != 0;
  file->in_target = (flags & kFileInTarget) != 0;
  file->same_as_base = (flags & kFileSameAsBase) != 0;
  file->role = (flags & kFileIsOther) != 0 ? FileRole::kOther : FileRole::kWeights;
  if (flags > 15 || !(file->in_base || file->in_target) ||
      (file->same_as_base && !(file->in_base && file->in_target))) {
    return corrupt("file " + file->name + ": flags " + std::to_string(flags) + " mean nothing");
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
      return corrupt("file " + footer_.files[i].name + " is out of order or named twice");
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
  DCR_TRY(check_ok("tensor " + name));
  if (dtype >= kDtypeCount) {
    return {Code::kUnsupported,
            "footer: tensor " + name + ": dtype " + std::to_string(dtype) + " is unknown", name};
  }
  if (rank > kRankMax) {
    return {Code::kTooLarge,
            "footer: tensor " + name + ": rank " + std::to_string(rank) +
                " is above the limit of " + std::to_string(kRankMax),
            name};
  }
  side->dtype = static_cast<Dtype>(dtype);
  side->shape.resize(rank);
  for (std::uint64_t& size : side->shape) size = in_.varint();
  return check_ok("tensor " + name);
}

Status FooterParser::read_place(const std::string& name, bool target, TensorSide* side) {
  const std::string side_name = target ? "target" : "base";
  side->present = true;
  const std::uint64_t file = in_.varint();
  side->offset = in_.varint();
  side->digest = read_digest();
  DCR_TRY(check_ok("tensor " + name));
  Result<std::uint64_t> bytes = tensor_bytes(side->dtype, side->shape);
  if (!bytes.ok()) {
    return Status(bytes.status().code(), bytes.status().message(), name)
        .with_context("footer: tensor " + name + ", " + side_name);
  }
  side->bytes = *bytes;
  if (file >= footer_.files.size()) {
    return {Code::kCorrupt,
            "footer: tensor " + name + ": its " + side_name + " file index is out of range", name};
  }
  side->file = static_cast<std::uint32_t>(file);
  const DeltaFile& in = footer_.files[side->file];
  if (in.role != FileRole::kWeights || !(target ? in.in_target : in.in_base)) {
    return {
        Code::kCorrupt,
        "footer: tensor " + name + ": file " + in.name + " holds no tensors of the " + side_name,
        name};
  }
  if (side->bytes == 0 && side->digest != combine_leaves({})) {
    return {Code::kCorrupt, "footer: tensor " + name + " is empty but its digest is not", name};
  }
  return {};
}

Status FooterParser::read_tensor(DeltaTensor* tensor) {
  DCR_TRY(read_name("tensor name", kTensorNameBytesMax, &tensor->name));
  if (!is_utf8(tensor->name)) return corrupt("a tensor name is not UTF-8");
  const std::uint8_t flags = in_.u8();
  DCR_TRY(check_ok("tensor " + tensor->name));
  const bool in_base = (flags & kTensorInBase) != 0;
  const bool in_target = (flags & kTensorInTarget) != 0;
  const bool common = (flags & kTensorCommon) != 0;
  if (flags > 7 || !(in_base || in_target) || (common && !(in_base && in_target))) {
    return {Code::kCorrupt,
            "footer: tensor " + tensor->name + ": flags " + std::to_string(flags) + " mean nothing",
            tensor->name};
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
    return {Code::kCorrupt,
            "footer: tensor " + tensor->name + " repeats the base's dtype and shape", tensor->name};
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
      return {Code::kCorrupt, "footer: tensor " + name + " is out of order or named twice", name};
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
  for (std::uint32_t index = 0; index < footer_.files.size(); ++index) {
    const DeltaFile& file = footer_.files[index];
    if (file.role != FileRole::kWeights || !(target ? file.in_target : file.in_base)) continue;
    const std::uint64_t size = target ? file.target_size : file.base_size;
    std::uint64_t end = target ? file.target_content_bytes : file.base_content_bytes;
    for (; next < order.size() && side_of(order[next]).file == index; ++next) {
      const TensorSide& side = side_of(order[next]);
      if (side.offset != end || side.bytes > size - end) {
        return {Code::kCorrupt,
                "footer: tensor " + order[next]->name +
                    " overlaps another, leaves a hole or ends " + "past the end in the " +
                    (target ? "target's " : "base's ") + file.name,
                order[next]->name};
      }
      end += side.bytes;
    }
    if (end != size) {
      return corrupt("file " + file.name + " has bytes of the " + (target ? "target" : "base") +
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
    if (entry.reason.empty() || !is_utf8(entry.reason)) {
      return corrupt("left-out file " + entry.name + ": its reason is empty or not UTF-8");
    }
    if (i > 0 && entry.name <= footer_.left_out[i - 1].name) {
      return corrupt("left-out file " + entry.name + " is out of order or named twice");
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

Digest identity_of_side(const std::vector<DeltaTensor>& tensors, bool target) {
  std::vector<IdentityEntry> entries;
  entries.reserve(tensors.size());
  for (const DeltaTensor& tensor : tensors) {
    const TensorSide& side = target ? tensor.target : tensor.base;
    if (side.present) entries.push_back({tensor.name, side.dtype, &side.shape, side.digest});
  }
  return checkpoint_identity(entries);
}

}  // namespace

Digest base_identity(const std::vector<DeltaTensor>& tensors) {
  return identity_of_side(tensors, false);
}

Digest target_identity(const std::vector<DeltaTensor>& tensors) {
  return identity_of_side(tensors, true);
}

Digest delta_schema(const std::vector<DeltaTensor>& tensors) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.text("DCR schema");
  out.u64(tensors.size());
  for (const DeltaTensor& tensor : tensors) {
    out.u16(static_cast<std::uint16_t>(tensor.name.size()));
    out.text(tensor.name);
    out.u8(static_cast<std::uint8_t>((tensor.target.present ? kTensorInTarget : 0) |
                                     (tensor.common() ? kTensorCommon : 0)));
    if (!tensor.target.present) continue;
    out.u8(static_cast<std::uint8_t>(tensor.target.dtype));
    out.u8(static_cast<std::uint8_t>(tensor.target.shape.size()));
    for (const std::uint64_t size : tensor.target.shape) out.u64(size);
  }
  return blake2b(bytes);
}

std::vector<TensorSpec> delta_specs(const std::vector<DeltaTensor>& tensors) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const DeltaTensor& tensor : tensors) {
    TensorSpec spec;
    if (tensor.target.present) {
      spec.width = static_cast<std::uint8_t>(word_bytes(tensor.target.dtype));
      spec.words = tensor.target.bytes / spec.width;
    }
    spec.overwrite_only = !tensor.common();
    specs.push_back(spec);
  }
  return specs;
}

std::int64_t find_delta_tensor(const std::vector<DeltaTensor>& tensors, std::string_view name) {
  const auto found = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const DeltaTensor& tensor, std::string_view n) { return tensor.name < n; });
  return found == tensors.end() || found->name != name ? -1 : found - tensors.begin();
}

Bytes encode_footer(const DeltaFooter& footer) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.bytes(footer.base_identity);
  out.bytes(footer.target_identity);
  out.u8(footer.directory ? kFooterDirectory : 0);
  out.varint(footer.changed);
  out.varint(footer.payload_raw_bytes_max);
  out.varint(footer.files.size());
  for (const DeltaFile& file : footer.files) write_file(out, file);
  out.varint(footer.tensors.size());
  for (const DeltaTensor& tensor : footer.tensors) write_tensor(out, tensor);
  out.varint(footer.payloads.size());
  for (const PayloadIndexEntry& payload : footer.payloads) {
    out.varint(payload.stored_bytes);
    out.bytes(payload.digest);
  }
  out.varint(footer.left_out.size());
  for (const LeftOutEntry& entry : footer.left_out) {
    write_text(out, entry.name);
    write_text(out, entry.reason);
  }
  return bytes;
}

Result<DeltaFooter> decode_footer(ByteSpan bytes, std::uint64_t delta_bytes) {
  return FooterParser(bytes, delta_bytes).parse();
}

}  // namespace dcr
