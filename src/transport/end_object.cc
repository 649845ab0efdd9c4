#include "transport/end_object.h"

#include <algorithm>
#include <string>

#include "base/assert.h"
#include "dcr/options.h"

namespace dcr {
namespace {

constexpr std::string_view kMagic = "DCROWEND";

std::uint8_t algorithm(ByteSpan key) {
  return key.empty() ? kDigestBlake2b128 : kDigestBlake2b128Keyed;
}

std::string name_of(const EndPlace& place) {
  return "the end of owner " + std::to_string(place.owner) + " in attempt " +
         std::to_string(place.attempt);
}

Status corrupt(const EndPlace& place, const std::string& what) {
  return {Code::kCorrupt, name_of(place) + " " + what};
}

Digest read_digest(ByteReader& in) {
  Digest digest{};
  const ByteSpan bytes = in.bytes(digest.size());
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return digest;
}

}  // namespace

Bytes encode_end(const EndPlace& place, const AttemptEnd& end, ByteSpan key) {
  DCR_ASSERT(end.payloads.size() <= kPayloadsPerOwnerMax);
  Bytes bytes;
  bytes.reserve(kEndHeaderBytes + end.payloads.size() * kEndEntryBytes + sizeof(Digest));
  ByteWriter out(&bytes);
  out.text(kMagic);
  out.u32(kFormatVersion);
  out.u8(algorithm(key));
  out.zeros(3);
  out.bytes(place.run);
  out.u64(place.attempt);
  out.u32(place.owner);
  out.u32(place.owners);
  out.u64(end.payloads.size());
  for (const PayloadEntry& payload : end.payloads) {
    out.u64(payload.bytes);
    out.bytes(payload.digest);
  }
  out.bytes(blake2b(bytes, key));
  return bytes;
}

Result<AttemptEnd> decode_end(const EndPlace& place, ByteSpan bytes, ByteSpan key) {
  if (bytes.size() < kEndHeaderBytes + sizeof(Digest)) return corrupt(place, "is cut short");
  const ByteSpan covered = bytes.first(bytes.size() - sizeof(Digest));
  ByteReader in(covered);
  if (in.text(kMagic.size()) != kMagic) return corrupt(place, "is no end: its magic differs");
  const std::uint32_t version = in.u32();
  if (version != kFormatVersion) {
    return Status(Code::kUnsupported, name_of(place) + " has format version " +
                                          std::to_string(version) + "; this build knows version " +
                                          std::to_string(kFormatVersion));
  }
  Digest stored;
  std::copy(bytes.end() - sizeof(Digest), bytes.end(), stored.begin());
  if (in.u8() != algorithm(key) || !digest_equal(stored, blake2b(covered, key))) {
    return corrupt(place, "is damaged, or was made with another key: its digest differs");
  }
  const ByteSpan reserved = in.bytes(3);
  if (std::any_of(reserved.begin(), reserved.end(), [](std::uint8_t byte) { return byte != 0; })) {
    return corrupt(place, "has reserved bytes that are not 0");
  }
  const Digest run = read_digest(in);
  const std::uint64_t attempt = in.u64();
  const std::uint32_t owner = in.u32();
  const std::uint32_t owners = in.u32();
  if (run != place.run || attempt != place.attempt || owner != place.owner ||
      owners != place.owners) {
    return Status(Code::kMismatch, corrupt(place, "belongs to owner ").message() +
                                       std::to_string(owner) + " of " + std::to_string(owners) +
                                       " in attempt " + std::to_string(attempt) + " of run " +
                                       digest_text(run));
  }
  const std::uint64_t count = in.u64();
  if (count > kPayloadsPerOwnerMax || in.remaining() != count * kEndEntryBytes) {
    return corrupt(place, "says that it has " + std::to_string(count) +
                              " payloads, which is not what it holds");
  }
  AttemptEnd end;
  end.payloads.reserve(static_cast<std::size_t>(count));
  for (std::uint64_t i = 0; i < count; ++i) {
    PayloadEntry payload;
    payload.bytes = in.u64();
    payload.digest = read_digest(in);
    end.payloads.push_back(payload);
  }
  return end;
}

}  // namespace dcr
