// The envelope of a control message: who says it to whom, in which lives and in which run, around a
// body that is not looked into. A message is
//
//   offset  bytes
//   0       8      magic "DCRMESSG"
//   8       4      version, kEnvelopeVersion
//   12      4      bytes of the body
//   16      16     run
//   32      8      sender's incarnation
//   40      8      addressee's incarnation; 0: whichever it has
//   48      1      bytes of the sender's name, s
//   49      1      bytes of the addressee's name, a
//   50      6      0
//   56      s      sender's name
//   56+s    a      addressee's name
//   56+s+a         body
//   last    16     BLAKE2b-128 of all before it
//
// with all numbers little-endian. Each message has exactly one spelling.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/limits.h"
#include "dcr/control.h"
#include "dcr/status.h"

namespace dcr {

// Of envelopes and of the bodies in them: a peer of another version is refused whole.
inline constexpr std::uint32_t kEnvelopeVersion = 0;

inline constexpr std::uint64_t kEnvelopeHeaderBytes = 56;
inline constexpr std::uint64_t kEnvelopeBytesMax =
    kEnvelopeHeaderBytes + 2 * kEndpointNameBytesMax + sizeof(Digest);
inline constexpr std::uint64_t kControlMessageBytesMax = kControlBodyBytesMax + kEnvelopeBytesMax;

struct Envelope {
  RunId run{};
  Endpoint sender;
  Endpoint addressee;
  bool operator==(const Envelope&) const = default;
};

// A message that was validated. `body` lies in the bytes that it was decoded from.
struct Enveloped {
  Envelope envelope;
  ByteSpan body;
};

// REQUIRES: valid names, incarnations in [1, kCounterMax] (the addressee's may be 0), a body of at
// most kControlBodyBytesMax bytes.
Bytes encode_envelope(const Envelope& envelope, ByteSpan body);

// Validates all of it; allocates nothing but the names. Errors: kCorrupt naming the field,
// kUnsupported for another version, kTooLarge.
Result<Enveloped> decode_envelope(ByteSpan bytes);

}  // namespace dcr
