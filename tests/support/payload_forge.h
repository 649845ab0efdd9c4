// A writer of payloads that can lie in every field, and seals what it wrote with a right digest.
// The layout is docs/FORMAT.md "Payload", written here a second time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "codec/payload.h"

namespace dcr {

struct ForgedStream {
  std::uint8_t kind = 0;
  std::uint8_t coding = 0;
  std::uint8_t width = 0;
  Bytes stored;
  std::optional<std::uint64_t> raw_bytes = {};     // absent: the stored bytes'
  std::optional<std::uint64_t> stored_bytes = {};  // absent: what is stored
};

struct PayloadForge {
  std::string magic = "DCRPAYLD";
  std::uint32_t version = 0;
  std::optional<std::uint32_t> header_bytes = {};
  std::optional<std::uint64_t> total_bytes = {};
  std::optional<std::uint64_t> raw_bytes = {};
  PayloadHeader header;
  std::uint8_t digest_algorithm = kDigestBlake2b128;
  std::uint8_t schema_algorithm = kDigestBlake2b128;
  std::optional<std::uint16_t> stream_count = {};
  std::uint32_t reserved = 0;
  std::vector<ForgedStream> streams;
  Bytes after_table;
  Bytes after_body;

  // Adds a stream stored as it is. Streams must be added in ascending (kind, width) order to be
  // right.
  PayloadForge& stream(StreamKind kind, unsigned width, Bytes bytes);
  Bytes seal() const;
};

// Puts a right digest over what is there now. REQUIRES: at least a whole fixed header.
void reseal(Bytes* stored);

// The records of the item stream, field by field.
class RecordForge {
 public:
  // Flags: encoding, location coding and value coding; a range of `size` words, `skip` words after
  // the end of the range before it.
  RecordForge& range(std::uint64_t tensor_step, std::uint8_t flags, std::uint64_t skip,
                     std::uint64_t size);
  RecordForge& strided(std::uint64_t tensor_step, std::uint8_t flags, std::uint64_t offset,
                       const std::vector<std::pair<std::uint64_t, std::uint64_t>>& dims);
  RecordForge& varint(std::uint64_t value);
  RecordForge& byte(unsigned value);
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

// The flag byte; any numbers.
constexpr std::uint8_t item_flags(unsigned encoding, unsigned location, unsigned value) {
  return static_cast<std::uint8_t>(encoding | location << 2 | value << 4);
}

}  // namespace dcr
