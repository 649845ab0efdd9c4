// The safetensors file format: 8 bytes of little-endian header length, a JSON header, tensor data.
// Everything is untrusted: a header is validated whole, within a memory bound, before any of it is
// used.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "dcr/status.h"
#include "dcr/tensor.h"
#include "runtime/file.h"

namespace dcr {

struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kU8;
  Shape shape;
  std::uint64_t offset = 0;  // of its first byte from the start of the file
  std::uint64_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // ascending by offset; they tile the data part exactly
  std::map<std::string, std::string> metadata;  // "__metadata__"
  std::uint64_t data_offset = 0;                // 8 + header length
  std::uint64_t file_bytes = 0;
};

// Parses `header` (the JSON alone, without the length), of a file of `file_bytes`, with the JSON
// library's SAX interface: memory stays within a small multiple of the entries kept. White space
// after the JSON is padding. Errors, each naming the field and the tensor: kCorrupt (not JSON, not
// UTF-8, not an object from its first byte on, an unknown, missing or repeated field, a value of
// wrong type, a number that is not an unsigned integer, offsets that end before they begin,
// overlap, leave a hole, end before or past the end of the data or disagree with dtype × shape, a
// repeated tensor name or metadata key, a sub-byte tensor that does not end on a byte), kTooLarge
// (limits.h), kUnsupported (dtype).
Result<SafetensorsHeader> parse_safetensors_header(ByteSpan header, std::uint64_t file_bytes);

// Reads and parses the header of an open file. `path` is for messages. Also returns the raw header
// bytes (length prefix, JSON, padding: everything before the data) for callers that must reproduce
// the file byte by byte. Errors: those above, kCorrupt or kTooLarge for the length prefix, kIo.
struct SafetensorsFile {
  SafetensorsHeader header;
  Bytes prefix;
};
Result<SafetensorsFile> read_safetensors(const File& file, const std::string& path);

// Serialises a header in the format's own way (keys in the order given, padded with spaces to 8
// bytes), length prefix included. Offsets are assigned in the order given; the entries' `offset`
// and `bytes` are not read. Used by tests, tools and benchmarks to make files. Errors:
// kInvalidArgument (a name that is not UTF-8 or is reserved), and those that reading it back would
// give.
Result<Bytes> make_safetensors_prefix(const std::vector<TensorEntry>& tensors,
                                      const std::map<std::string, std::string>& metadata);

}  // namespace dcr
