// What joins say, as bytes: u8 format (0), fields.
#include "protocol/message_fields.h"
#include "protocol/message_reader.h"
#include "protocol/message_writer.h"
#include "protocol/messages.h"

namespace dcr {
namespace {

constexpr std::uint8_t kDetailsFormat = 0;

template <typename Details>
Bytes encode(const Details& details) {
  Bytes bytes = {kDetailsFormat};
  MessageWriter out(&bytes);
  fields(out, details);
  return bytes;
}

template <typename Details>
Result<Details> decode(ByteSpan bytes, const char* what) {
  if (bytes.size() > kNeedsBytesMax) {
    return Status(Code::kTooLarge,
                  std::string(what) + " exceed " + std::to_string(kNeedsBytesMax) + " bytes");
  }
  if (bytes.empty()) return Status(Code::kCorrupt, std::string(what) + " are missing");
  if (bytes[0] != kDetailsFormat) {
    return Status(Code::kUnsupported, std::string(what) + " have format " +
                                          std::to_string(bytes[0]) + "; this build knows format " +
                                          std::to_string(kDetailsFormat));
  }
  Details details;
  MessageReader in(bytes.subspan(1));
  fields(in, details);
  DCR_TRY(in.finish().with_context(what));
  return details;
}

}  // namespace

Bytes encode_owner_details(const OwnerDetails& details) { return encode(details); }
Bytes encode_receiver_details(const ReceiverDetails& details) { return encode(details); }

Result<OwnerDetails> decode_owner_details(ByteSpan bytes) {
  return decode<OwnerDetails>(bytes, "an owner's details");
}
Result<ReceiverDetails> decode_receiver_details(ByteSpan bytes) {
  return decode<ReceiverDetails>(bytes, "a receiver's details");
}

}  // namespace dcr
