#include "tensor/catalogue.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "tensor/text.h"

namespace dcr {
namespace {

constexpr std::string_view kSchemaMark = "dcr-catalogue";

// Checks one tensor and counts its words.
Status check_tensor(CanonicalTensor* tensor) {
  const std::string& name = tensor->name;
  if (name.empty()) return {Code::kCorrupt, "catalogue: a tensor without a name"};
  const auto fail = [&name](Code code, const std::string& what) {
    return Status(code, "catalogue: tensor " + quoted_name(name) + ": " + what, name);
  };
  if (name.size() > kTensorNameBytesMax) {
    return fail(Code::kTooLarge,
                "its name is above " + std::to_string(kTensorNameBytesMax) + " bytes");
  }
  if (!valid_utf8(name)) return fail(Code::kCorrupt, "its name is not UTF-8");
  const Result<std::uint64_t> bytes = tensor_bytes(tensor->dtype, tensor->shape);
  if (!bytes.ok()) return fail(bytes.status().code(), bytes.status().message());
  tensor->words = *bytes / word_bytes(tensor->dtype);
  return {};
}

Digest schema_digest(const std::vector<CanonicalTensor>& tensors) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.text(kSchemaMark);
  out.u64(tensors.size());
  for (const CanonicalTensor& tensor : tensors) {
    out.u32(static_cast<std::uint32_t>(tensor.name.size()));
    out.text(tensor.name);
    out.u8(static_cast<std::uint8_t>(tensor.dtype));
    out.u8(static_cast<std::uint8_t>(tensor.shape.size()));
    for (const std::uint64_t size : tensor.shape) out.u64(size);
  }
  return blake2b(bytes);
}

}  // namespace

Status about_tensor(const CanonicalTensor& tensor, const Status& status) {
  if (status.ok()) return status;
  return {status.code(), "tensor " + quoted_name(tensor.name) + ": " + status.message(),
          tensor.name};
}

Result<Catalogue> Catalogue::make(std::vector<CanonicalTensor> tensors) {
  if (tensors.size() > kTensorsPerCheckpointMax) {
    return Status(Code::kTooLarge, "catalogue: " + std::to_string(tensors.size()) +
                                       " tensors, more than " +
                                       std::to_string(kTensorsPerCheckpointMax));
  }
  std::uint64_t bytes = 0;
  for (CanonicalTensor& tensor : tensors) {
    DCR_TRY(check_tensor(&tensor));
    // A tensor has at most 2^51 bytes and there are at most 2^20, so the sum could wrap only after
    // it was found too large.
    bytes += tensor.words * word_bytes(tensor.dtype);
    if (bytes > kCheckpointBytesMax) {
      return Status(Code::kTooLarge,
                    "catalogue: with tensor " + quoted_name(tensor.name) + " there are more than " +
                        std::to_string(kCheckpointBytesMax) + " bytes",
                    tensor.name);
    }
  }
  // std::string compares as unsigned bytes.
  std::sort(tensors.begin(), tensors.end(),
            [](const CanonicalTensor& a, const CanonicalTensor& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(
      tensors.begin(), tensors.end(),
      [](const CanonicalTensor& a, const CanonicalTensor& b) { return a.name == b.name; });
  if (twice != tensors.end()) {
    return Status(Code::kCorrupt,
                  "catalogue: tensor " + quoted_name(twice->name) + " is there twice", twice->name);
  }
  Catalogue catalogue;
  catalogue.tensors_ = std::move(tensors);
  catalogue.schema_ = schema_digest(catalogue.tensors_);
  return catalogue;
}

std::int64_t Catalogue::find(std::string_view name) const {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const CanonicalTensor& a, std::string_view b) { return a.name < b; });
  if (found == tensors_.end() || found->name != name) return -1;
  return found - tensors_.begin();
}

}  // namespace dcr
