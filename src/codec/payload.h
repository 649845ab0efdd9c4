// The payload container (docs/FORMAT.md "Payload"): a header, a table of streams, the streams, one
// digest over all. The reader treats every byte as hostile: it verifies the digest before it parses
// anything beyond length and version, and validates all items before any view of them exists.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "codec/item.h"
#include "dcr/status.h"

namespace dcr {

// Streams of a payload. Each is compressed by itself so that statistics do not mix.
enum class StreamKind : std::uint8_t {
  kItems = 0,
  kGaps = 1,
  kGapLow = 2,
  kBitmap = 3,
  kSymbol2 = 4,
  kSymbol4 = 5,
  kSymbol8 = 6,  // byte symbols, those of escapes included
  kExtra = 7,
  kPlane0 = 8,  // … kPlane0 + 7: byte k of the words
};
inline constexpr unsigned kStreamKindCount = 16;

// "items", "gaps", …, "plane0".
std::string stream_name(StreamKind kind);

struct PayloadHeader {
  Digest run{};               // zero in delta files
  std::uint64_t attempt = 0;  // zero in delta files
  std::uint32_t owner = 0;
  std::uint32_t owners = 1;
  std::uint64_t number = 0;  // of this owner's payloads; order = number × owners + owner
  std::uint64_t base_version = 0;
  std::uint64_t target_version = 0;
  Digest schema{};  // binds the tensor table that item indices point into

  std::uint64_t order() const { return number * owners + owner; }
};

struct StreamEntry {
  StreamKind kind = StreamKind::kItems;
  std::uint8_t coding = 0;  // 0 stored, 1 one zstd frame
  std::uint8_t width = 0;   // bytes of the words; 0 for kItems, kGaps, kGapLow, kBitmap
  std::uint64_t raw_bytes = 0;
  std::uint64_t stored_bytes = 0;
};

// Gathers encoded items. Not thread-safe.
class PayloadWriter {
 public:
  PayloadWriter();
  ~PayloadWriter();
  PayloadWriter(PayloadWriter&&) noexcept;
  PayloadWriter& operator=(PayloadWriter&&) noexcept;

  // Items must come in ascending (tensor, box.offset) order.
  void append(const EncodedItem& item);

  std::uint64_t items() const;
  std::uint64_t raw_bytes() const;

  // Compresses, digests and returns the payload. Usable once. `key`: see Blake2b.
  Bytes seal(const PayloadHeader& header, ByteSpan key = {});

 private:
  struct Streams;
  std::unique_ptr<Streams> streams_;
};

// What the reader knows of a tensor, from its own table and never from the payload.
struct TensorSpec {
  std::uint64_t words = 0;
  std::uint8_t width = 1;
  bool overwrite_only = false;  // xor and add are refused
};

struct PayloadLimits {
  std::uint64_t stored_bytes_max;
  std::uint64_t raw_bytes_max;  // sum over the streams, and over the items' entries
};

// A validated item: its header and where its bytes lie in the payload's decompressed streams.
struct ItemView {
  ItemHeader header;
  ByteSpan locations, gap_low, symbols, escapes, extra;
  ByteSpan planes[8];
};

class Payload {
 public:
  // Verifies and validates `stored` whole. `schema` and the specs are the reader's own. Errors
  // (exact messages are tested): kCorrupt, kTooLarge, kUnsupported (version, coding, encoding by
  // number), kMismatch (another schema). On an error nothing was allocated above the limits. The
  // result owns its memory; `stored` may go away.
  static Result<Payload> read(ByteSpan stored, const Digest& schema,
                              std::span<const TensorSpec> tensors, const PayloadLimits& limits,
                              ByteSpan key = {});

  const PayloadHeader& header() const { return header_; }
  std::span<const StreamEntry> streams() const { return entries_; }
  // In ascending (tensor, offset) order; boxes of one tensor do not overlap.
  std::span<const ItemView> items() const { return items_; }
  std::uint64_t raw_bytes() const;
  // What it takes as long as it is kept: the streams, the views of its items, their boxes.
  std::uint64_t memory_bytes() const;

 private:
  Status check_streams(ByteSpan body);
  Status decompress(ByteSpan body, std::uint64_t raw_bytes);

  PayloadHeader header_;
  std::vector<StreamEntry> entries_;
  std::unique_ptr<std::uint8_t[]> raw_;  // the decompressed streams, back to back
  std::vector<ItemView> items_;
};

// The header of a payload alone, unverified: for tools that list. Error kCorrupt.
Result<PayloadHeader> peek_payload_header(ByteSpan stored);

}  // namespace dcr
