// A control message as it is in an envelope; a first byte of 1 or 2 makes the rest an owner's or a
// receiver's details. Whatever is accepted must be written again as the same bytes.
#include <cstdint>

#include "base/assert.h"
#include "protocol/messages.h"

namespace {

template <typename T, typename Encode>
void check(const dcr::Result<T>& read, dcr::ByteSpan bytes, Encode encode) {
  if (read.ok()) {
    DCR_ASSERT(encode(*read) == dcr::Bytes(bytes.begin(), bytes.end()));
    return;
  }
  const dcr::Code code = read.status().code();
  DCR_ASSERT(code == dcr::Code::kCorrupt || code == dcr::Code::kUnsupported ||
             code == dcr::Code::kTooLarge);
  DCR_ASSERT(!read.status().message().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const dcr::ByteSpan bytes(data + 1, size - 1);
  if (data[0] == 1) {
    check(dcr::decode_owner_details(bytes), bytes, dcr::encode_owner_details);
  } else if (data[0] == 2) {
    check(dcr::decode_receiver_details(bytes), bytes, dcr::encode_receiver_details);
  } else {
    check(dcr::decode_message(bytes), bytes, dcr::encode_message);
  }
  return 0;
}
