// A safetensors file without its data: 8 bytes for the length of the data, then the JSON header.
// Whatever is accepted must tile the data exactly, and survive being written and read again.
#include <cstdint>

#include "base/assert.h"
#include "base/checked.h"
#include "base/limits.h"
#include "tensor/safetensors.h"
#include "tensor/text.h"

namespace dcr {
namespace {

void check_accepted(const SafetensorsHeader& header, ByteSpan json) {
  DCR_ASSERT(header.data_offset == 8 + json.size());
  DCR_ASSERT(header.tensors.size() <= kTensorsPerCheckpointMax);
  std::uint64_t end = header.data_offset;
  for (const TensorEntry& tensor : header.tensors) {
    DCR_ASSERT(tensor.offset == end);
    const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
    DCR_ASSERT(bytes.ok() && *bytes == tensor.bytes);
    DCR_ASSERT(valid_utf8(tensor.name) && tensor.name.size() <= kTensorNameBytesMax);
    end += tensor.bytes;
  }
  DCR_ASSERT(end == header.file_bytes);

  const auto prefix = make_safetensors_prefix(header.tensors, header.metadata);
  DCR_ASSERT(prefix.ok());
  const auto again = parse_safetensors_header(ByteSpan(*prefix).subspan(8),
                                              prefix->size() + (end - header.data_offset));
  DCR_ASSERT(again.ok());
  DCR_ASSERT(again->metadata == header.metadata);
  DCR_ASSERT(again->tensors.size() == header.tensors.size());
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    DCR_ASSERT(again->tensors[i].name == header.tensors[i].name);
    DCR_ASSERT(again->tensors[i].dtype == header.tensors[i].dtype);
    DCR_ASSERT(again->tensors[i].shape == header.tensors[i].shape);
  }
}

void check_refused(const Status& status) {
  DCR_ASSERT(status.code() == Code::kCorrupt || status.code() == Code::kTooLarge ||
             status.code() == Code::kUnsupported);
  DCR_ASSERT(!status.message().empty() && valid_utf8(status.message()));
}

}  // namespace
}  // namespace dcr

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const dcr::ByteSpan input(data, size);
  dcr::ByteReader reader(input);
  const std::uint64_t data_bytes = reader.u64();
  const dcr::ByteSpan json = input.subspan(reader.position());
  const auto file_bytes = dcr::checked_add(data_bytes, 8 + json.size());
  if (!file_bytes) return 0;
  const auto header = dcr::parse_safetensors_header(json, *file_bytes);
  if (header.ok()) {
    dcr::check_accepted(*header, json);
  } else {
    dcr::check_refused(header.status());
  }
  return 0;
}
