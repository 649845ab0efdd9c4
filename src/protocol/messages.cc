#include "protocol/messages.h"

#include <array>
#include <utility>

#include "base/assert.h"
#include "protocol/message_fields.h"
#include "protocol/message_reader.h"
#include "protocol/message_writer.h"

namespace dcr {
namespace {

constexpr std::uint8_t kMessageFormat = 0;

// By kind, which is the message's place in the variant.
constexpr std::array<const char*, std::variant_size_v<Message>> kMessageNames = {
    "refit_request",
    "sent",
    "baseline_updated",
    "cleaned_up",
    "prepare",
    "close_gate",
    "open_apply",
    "flush",
    "stop_and_wait",
    "cleanup",
    "look",
    "refit_ended",
    "prepared",
    "attempt_failed",
    "stopped",
    "staged",
    "staging_full",
    "gate_closed",
    "completed",
    "payloads_sent",
    "credit",
    "owner_end",
    "payload_ready",
    "stream_failed",
    "restore_request",
    "restore_sent",
    "base_digests_request",
    "base_digests",
    "gate_close",
    "gate_is_closed",
    "gate_proof",
    "gate_state",
    "status_request",
    "status_reply",
    "operator_command",
    "operator_reply",
    "refused",
    "applying",
    "sample_request",
    "sample"};

// The largest messages: a prepare of the most endpoints and tensors, and the most digests.
static_assert(kEndpointsMax * (3 * (kEndpointNameBytesMax + 41) + 2 * (kEndpointNameBytesMax + 2)) +
                  2 * kMessageTensorsMax + kLabelBytesMax + 256 <=
              kMessageBytesMax);
static_assert(kMessageDigestsMax * sizeof(Digest) + 2 * kMessageTextBytesMax <= kMessageBytesMax);
static_assert(kEndpointsMax * (kEndpointNameBytesMax + 2) + 2 * kMessageTextBytesMax <=
              kMessageBytesMax);

template <std::size_t kKind>
Status read_kind(MessageReader& in, Message* message) {
  fields(in, message->emplace<kKind>());
  return in.finish();
}

using ReadKind = Status (*)(MessageReader&, Message*);
template <std::size_t... kKinds>
constexpr std::array<ReadKind, sizeof...(kKinds)> readers(
    std::index_sequence<kKinds...> /*kinds*/) {
  return {read_kind<kKinds>...};
}
constexpr auto kReaders = readers(std::make_index_sequence<std::variant_size_v<Message>>());

}  // namespace

Failure failure_of(const Status& status) {
  DCR_ASSERT(!status.ok());
  return {status.code(), cleaned_text(status.tensor(), kTensorNameBytesMax),
          cleaned_text(status.message(), kMessageTextBytesMax)};
}

Status status_of(const Failure& failure) { return {failure.code, failure.message, failure.tensor}; }

const char* message_name(const Message& message) { return kMessageNames[message.index()]; }

Bytes encode_message(const Message& message) {
  Bytes bytes = {kMessageFormat, static_cast<std::uint8_t>(message.index())};
  MessageWriter out(&bytes);
  std::visit([&out](const auto& kind) { fields(out, kind); }, message);
  return bytes;
}

Result<Message> decode_message(ByteSpan bytes) {
  if (bytes.size() > kMessageBytesMax) {
    return Status(Code::kTooLarge, "a message of " + std::to_string(bytes.size()) +
                                       " bytes is larger than the limit of " +
                                       std::to_string(kMessageBytesMax));
  }
  if (bytes.size() < 2) return Status(Code::kCorrupt, "a message is cut short");
  if (bytes[0] != kMessageFormat) {
    return Status(Code::kUnsupported, "a message has format " + std::to_string(bytes[0]) +
                                          "; this build knows format " +
                                          std::to_string(kMessageFormat));
  }
  const std::uint8_t kind = bytes[1];
  if (kind >= kReaders.size()) {
    return Status(Code::kCorrupt, "a message has kind " + std::to_string(kind) +
                                      ", which is none of format " +
                                      std::to_string(kMessageFormat));
  }
  Message message;
  MessageReader in(bytes.subspan(2));
  DCR_TRY(kReaders[kind](in, &message).with_context(kMessageNames[kind]));
  return message;
}

}  // namespace dcr
