#include "base/envelope.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "base/endpoint_name.h"

namespace dcr {
namespace {

constexpr std::string_view kMagic = "DCRMESSG";
constexpr std::size_t kReservedBytes = 6;
static_assert(kEndpointNameBytesMax <= 255);
static_assert(kControlBodyBytesMax <= 0xffff'ffff);

Status corrupt(const std::string& what) { return {Code::kCorrupt, "a control message " + what}; }

// `least`: of its incarnation.
bool plausible(const Endpoint& endpoint, std::uint64_t least) {
  return check_endpoint_name(endpoint.name).ok() && endpoint.incarnation >= least &&
         endpoint.incarnation <= kCounterMax;
}

Status check_endpoint(const char* who, const Endpoint& endpoint, std::uint64_t least) {
  const Status name = check_endpoint_name(endpoint.name);
  if (!name.ok()) return corrupt(std::string("has a bad ") + who + ": " + name.message());
  if (endpoint.incarnation >= least && endpoint.incarnation <= kCounterMax) return {};
  return corrupt(std::string("has a bad ") + who + ": " + endpoint.name + " in incarnation " +
                 std::to_string(endpoint.incarnation) + ", which no endpoint has");
}

// What can be said before anything is digested.
Status check_frame(ByteSpan bytes) {
  if (bytes.size() > kControlMessageBytesMax) {
    return {Code::kTooLarge, "a control message of " + std::to_string(bytes.size()) +
                                 " bytes is above the limit of " +
                                 std::to_string(kControlMessageBytesMax)};
  }
  if (bytes.size() < kEnvelopeHeaderBytes + sizeof(Digest)) return corrupt("is cut short");
  ByteReader in(bytes);
  if (in.text(kMagic.size()) != kMagic) return corrupt("is none: its magic differs");
  const std::uint32_t version = in.u32();
  if (version == kEnvelopeVersion) return {};
  return {Code::kUnsupported, "a control message has version " + std::to_string(version) +
                                  "; this build knows version " + std::to_string(kEnvelopeVersion)};
}

}  // namespace

Bytes encode_envelope(const Envelope& envelope, ByteSpan body) {
  DCR_ASSERT(plausible(envelope.sender, 1) && plausible(envelope.addressee, 0));
  DCR_ASSERT(body.size() <= kControlBodyBytesMax);
  Bytes bytes;
  bytes.reserve(kEnvelopeBytesMax + body.size());
  ByteWriter out(&bytes);
  out.text(kMagic);
  out.u32(kEnvelopeVersion);
  out.u32(static_cast<std::uint32_t>(body.size()));
  out.bytes(envelope.run);
  out.u64(envelope.sender.incarnation);
  out.u64(envelope.addressee.incarnation);
  out.u8(static_cast<std::uint8_t>(envelope.sender.name.size()));
  out.u8(static_cast<std::uint8_t>(envelope.addressee.name.size()));
  out.zeros(kReservedBytes);
  out.text(envelope.sender.name);
  out.text(envelope.addressee.name);
  out.bytes(body);
  out.bytes(blake2b(bytes));
  return bytes;
}

Result<Enveloped> decode_envelope(ByteSpan bytes) {
  DCR_TRY(check_frame(bytes));
  const ByteSpan covered = bytes.first(bytes.size() - sizeof(Digest));
  Digest stored;
  std::copy(bytes.end() - sizeof(Digest), bytes.end(), stored.begin());
  if (!digest_equal(stored, blake2b(covered))) return corrupt("is damaged: its digest differs");

  ByteReader in(covered);
  in.bytes(kMagic.size() + sizeof(kEnvelopeVersion));
  const std::uint32_t body_bytes = in.u32();
  Enveloped message;
  const ByteSpan run = in.bytes(message.envelope.run.size());
  std::copy(run.begin(), run.end(), message.envelope.run.begin());
  message.envelope.sender.incarnation = in.u64();
  message.envelope.addressee.incarnation = in.u64();
  const std::size_t sender_bytes = in.u8();
  const std::size_t addressee_bytes = in.u8();
  const ByteSpan reserved = in.bytes(kReservedBytes);
  if (std::any_of(reserved.begin(), reserved.end(), [](std::uint8_t byte) { return byte != 0; })) {
    return corrupt("has reserved bytes that are not 0");
  }
  if (in.remaining() != sender_bytes + addressee_bytes + std::uint64_t{body_bytes}) {
    return corrupt("says that it has names of " + std::to_string(sender_bytes) + " and " +
                   std::to_string(addressee_bytes) + " bytes and a body of " +
                   std::to_string(body_bytes) + ", which is not what it holds");
  }
  if (body_bytes > kControlBodyBytesMax) {
    return Status(Code::kTooLarge, "a control message has a body of " + std::to_string(body_bytes) +
                                       " bytes, above the limit of " +
                                       std::to_string(kControlBodyBytesMax));
  }
  message.envelope.sender.name = in.text(sender_bytes);
  message.envelope.addressee.name = in.text(addressee_bytes);
  DCR_TRY(check_endpoint("sender", message.envelope.sender, 1));
  DCR_TRY(check_endpoint("addressee", message.envelope.addressee, 0));
  message.body = in.bytes(body_bytes);
  return message;
}

}  // namespace dcr
