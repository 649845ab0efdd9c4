// Writing a footer, and what follows from its tensor table.
#include <algorithm>
#include <string_view>

#include "delta/delta_file.h"
#include "delta/footer_flags.h"
#include "tensor/checkpoint.h"

namespace dcr {
namespace {

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

}  // namespace dcr
