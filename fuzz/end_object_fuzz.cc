// The end of owner 1 of 2 in attempt 4 of a run of zeros, without its digest, which is put behind
// it so that the fields are looked at. Whatever is accepted must be written again as the same
// bytes.
#include <cstdint>

#include "base/assert.h"
#include "transport/end_object.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const dcr::EndPlace place{{}, 4, 1, 2};
  dcr::Bytes bytes(data, data + size);
  const dcr::Digest digest = dcr::blake2b(bytes);
  bytes.insert(bytes.end(), digest.begin(), digest.end());
  const auto end = dcr::decode_end(place, bytes);
  if (end.ok()) {
    DCR_ASSERT(dcr::encode_end(place, *end) == bytes);
  } else {
    const dcr::Code code = end.status().code();
    DCR_ASSERT(code == dcr::Code::kCorrupt || code == dcr::Code::kUnsupported ||
               code == dcr::Code::kMismatch);
    DCR_ASSERT(end.status().message().starts_with("the end of owner 1 in attempt 4 "));
  }
  return 0;
}
