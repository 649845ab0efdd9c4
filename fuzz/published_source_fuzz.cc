// What owners publish. Whatever is read must be written again as the same bytes.
#include <algorithm>
#include <cstdint>

#include "base/assert.h"
#include "run/published_source.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const dcr::ByteSpan bytes(data, size);
  const auto source = dcr::decode_source(bytes);
  if (!source.ok()) {
    DCR_ASSERT(!source.status().message().empty());
    return 0;
  }
  const dcr::Bytes again = dcr::encode_source(*source);
  DCR_ASSERT(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  return 0;
}
