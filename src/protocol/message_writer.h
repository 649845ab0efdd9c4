// Writes the fields of messages; MessageReader has the same functions and reads them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "dcr/control.h"
#include "protocol/message_text.h"
#include "source/geometry.h"

namespace dcr {

class MessageWriter {
 public:
  template <typename T>
  using Of = const T;

  explicit MessageWriter(Bytes* out) : out_(out) {}

  // What a reader requires beyond the fields' own ranges.
  void require(const char* /*field*/, bool /*holds*/) {}

  void number(const char* /*field*/, std::uint64_t value, std::uint64_t /*least*/ = 0,
              std::uint64_t /*most*/ = 0) {
    out_.varint(value);
  }
  void flag(const char* /*field*/, bool value) { out_.u8(value ? 1 : 0); }
  template <typename Enum>
  void choice(const char* /*field*/, Enum value, Enum /*first*/, Enum /*last*/) {
    out_.u8(static_cast<std::uint8_t>(value));
  }
  void digest(const char* /*field*/, const Digest& value) { out_.bytes(value); }
  void text(const char* /*field*/, const std::string& value, std::uint64_t bytes_max) {
    raw_text(cleaned_text(value, bytes_max));
  }
  void name(const char* /*field*/, const std::string& value) { raw_text(value); }
  void label(const char* /*field*/, const std::string& value) { raw_text(value); }
  void bytes(const char* /*field*/, const Bytes& value, std::uint64_t /*bytes_max*/) {
    out_.varint(value.size());
    out_.bytes(value);
  }
  template <typename Entry, typename Fields>
  void list(const char* /*field*/, const std::vector<Entry>& value, std::uint64_t /*count_max*/,
            Fields fields) {
    out_.varint(value.size());
    for (const Entry& entry : value) fields(*this, entry);
  }
  template <typename T, typename Fields>
  void optional(const char* field, const std::optional<T>& value, Fields fields) {
    flag(field, value.has_value());
    if (value) fields(*this, *value);
  }
  // Runs of tensors with the same need, each its length × 4 + the need.
  void needs(const char* /*field*/, const std::vector<Need>& value) {
    std::vector<std::uint64_t> runs;
    for (std::size_t i = 0; i < value.size(); ++i) {
      if (i == 0 || value[i] != value[i - 1]) runs.push_back(static_cast<std::uint8_t>(value[i]));
      runs.back() += 4;
    }
    out_.varint(runs.size());
    for (const std::uint64_t run : runs) out_.varint(run);
  }

 private:
  void raw_text(const std::string& value) {
    out_.varint(value.size());
    out_.text(value);
  }

  ByteWriter out_;
};

}  // namespace dcr
