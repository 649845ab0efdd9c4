// A record of the control plane without its digest, which is put behind it so that the fields are
// looked at. Whatever is accepted must be written again as the same bytes.
#include <cstdint>

#include "base/assert.h"
#include "base/digest.h"
#include "control/records.h"

namespace {

template <typename T, typename Encode>
void check(const dcr::Result<T>& read, const dcr::Bytes& bytes, Encode encode) {
  if (read.ok()) {
    DCR_ASSERT(encode(*read) == bytes);
  } else {
    DCR_ASSERT(read.status().code() == dcr::Code::kCorrupt ||
               read.status().code() == dcr::Code::kUnsupported);
    DCR_ASSERT(!read.status().message().empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  dcr::Bytes bytes(data, data + size);
  const dcr::Digest digest = dcr::blake2b(bytes);
  bytes.insert(bytes.end(), digest.begin(), digest.end());
  check(dcr::decode_head(bytes), bytes, dcr::encode_head);
  check(dcr::decode_transition(bytes), bytes, dcr::encode_transition);
  check(dcr::decode_member(bytes), bytes, dcr::encode_member);
  return 0;
}
