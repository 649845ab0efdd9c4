#include "channel/collective_message.h"

#include <algorithm>
#include <utility>

namespace dcr {
namespace {

constexpr std::uint8_t kFormat = 0;
enum Kind : std::uint8_t { kFlags = 0, kPart = 1, kTaken = 2, kLeft = 3 };
// The last code of Code.
constexpr auto kCodeMax = static_cast<std::uint8_t>(Code::kInternal);

Status corrupt(const std::string& what) {
  return {Code::kCorrupt, "a message of a collective " + what};
}

// What a peer says of an error is shown to people.
std::string shown(std::string_view text) {
  std::string clean(text.substr(0, kCollectiveTextBytesMax));
  std::replace_if(
      clean.begin(), clean.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  return clean;
}

struct Writer {
  ByteWriter& out;

  void operator()(const CollectiveFlags& flags) const {
    out.u32(flags.sequence);
    out.bytes(flags.flags);
  }
  void operator()(const CollectivePart& part) const {
    out.u64(part.number);
    out.u64(part.header.attempt);
    out.u32(part.header.tensor);
    out.u64(part.header.part);
    out.u64(part.header.first);
    out.u64(part.total);
    out.u64(part.offset);
    out.bytes(part.bytes);
  }
  void operator()(const CollectiveTaken& taken) const {
    out.u64(taken.number);
    out.u8(static_cast<std::uint8_t>(taken.status.code()));
    const std::string tensor = taken.status.tensor().substr(0, kTensorNameBytesMax);
    out.u16(static_cast<std::uint16_t>(tensor.size()));
    out.text(tensor);
    out.text(shown(taken.status.message()));
  }
  void operator()(const CollectiveLeft& left) const {
    out.u8(left.finished ? 1 : 0);
    out.text(shown(left.reason));
  }
};

Bytes rest_of(ByteReader& in) {
  const ByteSpan rest = in.bytes(in.remaining());
  return {rest.begin(), rest.end()};
}

Status read_flags(ByteReader& in, CollectiveFlags* flags) {
  flags->sequence = in.u32();
  if (in.remaining() > kCollectiveFlagsMax)
    return {Code::kTooLarge, "a message of a collective has too many flags"};
  flags->flags = rest_of(in);
  return {};
}

Status read_part(ByteReader& in, std::uint32_t from, CollectivePart* part) {
  part->number = in.u64();
  part->header.attempt = in.u64();
  part->header.from = from;
  part->header.tensor = in.u32();
  part->header.part = in.u64();
  part->header.first = in.u64();
  part->total = in.u64();
  part->offset = in.u64();
  if (!in.ok()) return {};
  const std::uint64_t bytes = in.remaining();
  if (part->total > kCollectivePartBytesMax || bytes > kCollectiveFragmentBytesMax) {
    return {Code::kTooLarge, "a message of a collective has a part of " +
                                 std::to_string(std::max(part->total, bytes)) + " bytes"};
  }
  if (part->offset > part->total || bytes > part->total - part->offset) {
    return corrupt("has bytes past the end of their part");
  }
  if (part->number == 0) return corrupt("has a part without number");
  part->bytes = rest_of(in);
  return {};
}

Status read_taken(ByteReader& in, CollectiveTaken* taken) {
  taken->number = in.u64();
  const std::uint8_t code = in.u8();
  const std::uint16_t size = in.u16();
  const std::string tensor = shown(in.text(size));
  const std::string message = shown(in.text(in.remaining()));
  if (code > kCodeMax) return corrupt("has a code that there is not");
  if (code != 0) taken->status = Status(static_cast<Code>(code), message, tensor);
  return {};
}

Status read_left(ByteReader& in, CollectiveLeft* left) {
  const std::uint8_t finished = in.u8();
  if (finished > 1) return corrupt("has a flag that is neither 0 nor 1");
  left->finished = finished == 1;
  left->reason = shown(in.text(in.remaining()));
  return {};
}

template <typename Kind, typename Read>
Status read_kind(CollectiveMessage* message, Read read) {
  Kind kind;
  DCR_TRY(read(&kind));
  message->what = std::move(kind);
  return {};
}

}  // namespace

Bytes encode_collective(const CollectiveMessage& message) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.u8(kFormat);
  out.u8(static_cast<std::uint8_t>(message.what.index()));
  out.u64(message.meeting);
  std::visit(Writer{out}, message.what);
  return bytes;
}

Result<CollectiveMessage> decode_collective(ByteSpan bytes, std::uint32_t from) {
  ByteReader in(bytes);
  const std::uint8_t format = in.u8();
  const std::uint8_t kind = in.u8();
  CollectiveMessage message;
  message.meeting = in.u64();
  if (!in.ok()) return corrupt("is cut short");
  if (format != kFormat) {
    return Status(Code::kUnsupported,
                  "a message of a collective has format " + std::to_string(format));
  }
  const auto read = [&]() -> Status {
    switch (kind) {
      case kFlags:
        return read_kind<CollectiveFlags>(&message, [&](auto* to) { return read_flags(in, to); });
      case kPart:
        return read_kind<CollectivePart>(&message,
                                         [&](auto* to) { return read_part(in, from, to); });
      case kTaken:
        return read_kind<CollectiveTaken>(&message, [&](auto* to) { return read_taken(in, to); });
      case kLeft:
        return read_kind<CollectiveLeft>(&message, [&](auto* to) { return read_left(in, to); });
      default:
        return corrupt("has a kind that there is not");
    }
  };
  DCR_TRY(read());
  if (!in.ok()) return corrupt("is cut short");
  return message;
}

}  // namespace dcr
