// A control message without its digest, which is put behind it so that the fields are looked at.
// Whatever is accepted must be written again as the same bytes.
#include <cstdint>

#include "base/assert.h"
#include "base/envelope.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  dcr::Bytes bytes(data, data + size);
  const dcr::Digest digest = dcr::blake2b(bytes);
  bytes.insert(bytes.end(), digest.begin(), digest.end());
  const auto message = dcr::decode_envelope(bytes);
  if (message.ok()) {
    DCR_ASSERT(dcr::encode_envelope(message->envelope, message->body) == bytes);
  } else {
    DCR_ASSERT(message.status().code() == dcr::Code::kCorrupt ||
               message.status().code() == dcr::Code::kUnsupported);
    DCR_ASSERT(message.status().message().starts_with("a control message "));
  }
  return 0;
}
