// What owners say to each other in a collective. What is accepted is written as something that
// reads the same: texts are cleaned on the way.
#include <cstdint>

#include "base/assert.h"
#include "channel/collective_message.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto message = dcr::decode_collective({data, size}, 3);
  if (!message.ok()) {
    DCR_ASSERT(message.status().message().starts_with("a message of "));
    return 0;
  }
  const dcr::Bytes bytes = dcr::encode_collective(*message);
  const auto again = dcr::decode_collective(bytes, 3);
  DCR_ASSERT(again.ok() && dcr::encode_collective(*again) == bytes);
  return 0;
}
