// Reads the fields of messages and checks each; MessageWriter has the same functions and writes
// them. After the first field that does not hold nothing is read any more. Nothing is allocated
// for more than the bytes that are there, but the needs of at most kMessageTensorsMax tensors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/endpoint_name.h"
#include "dcr/control.h"
#include "dcr/status.h"
#include "protocol/message_text.h"
#include "protocol/messages.h"
#include "source/geometry.h"

namespace dcr {

class MessageReader {
 public:
  template <typename T>
  using Of = T;

  explicit MessageReader(ByteSpan bytes) : in_(bytes) {}

  // The first error, with the field's name; nothing may be left over.
  Status finish() {
    require("end", in_.remaining() == 0);
    return status_;
  }

  void require(const char* field, bool holds, Code code = Code::kCorrupt) {
    if (!status_.ok()) return;
    if (!in_.ok()) {
      status_ = Status(Code::kCorrupt, std::string(field) + " is cut short or badly spelt");
    } else if (!holds) {
      status_ = Status(
          code, std::string(field) + (code == Code::kTooLarge ? " exceeds its limit"
                                                              : " has a value that cannot be"));
    }
  }

  template <typename T>
  void number(const char* field, T& value, std::uint64_t least = 0,
              std::uint64_t most = kCounterMax) {
    const std::uint64_t read = in_.varint();
    require(field, read >= least && read <= most);
    value = ok() ? static_cast<T>(read) : T{};
  }
  void flag(const char* field, bool& value) {
    const std::uint8_t read = in_.u8();
    require(field, read <= 1);
    value = ok() && read == 1;
  }
  template <typename Enum>
  void choice(const char* field, Enum& value, Enum first, Enum last) {
    const std::uint8_t read = in_.u8();
    require(field,
            read >= static_cast<std::uint8_t>(first) && read <= static_cast<std::uint8_t>(last));
    value = ok() ? static_cast<Enum>(read) : first;
  }
  void digest(const char* field, Digest& value) {
    const ByteSpan read = in_.bytes(value.size());
    require(field, true);
    if (ok()) std::copy(read.begin(), read.end(), value.begin());
  }
  void text(const char* field, std::string& value, std::uint64_t bytes_max) {
    raw_text(field, value, bytes_max);
    require(field, clean_text(value));
  }
  void name(const char* field, std::string& value) {
    raw_text(field, value, kEndpointNameBytesMax);
    require(field, check_endpoint_name(value).ok());
  }
  void label(const char* field, std::string& value) {
    raw_text(field, value, kLabelBytesMax);
    require(field, check_label(value).ok());
  }
  void bytes(const char* field, Bytes& value, std::uint64_t bytes_max) {
    const std::uint64_t size = in_.varint();
    require(field, size <= bytes_max, Code::kTooLarge);
    if (!ok()) return;
    const ByteSpan read = in_.bytes(static_cast<std::size_t>(size));
    require(field, true);
    if (ok()) value.assign(read.begin(), read.end());
  }
  template <typename Entry, typename Fields>
  void list(const char* field, std::vector<Entry>& value, std::uint64_t count_max, Fields fields) {
    const std::uint64_t count = in_.varint();
    require(field, count <= count_max, Code::kTooLarge);
    // Every entry has a byte at least, so the list ends with the bytes.
    for (std::uint64_t i = 0; ok() && i < count; ++i) {
      value.emplace_back();
      fields(*this, value.back());
    }
  }
  template <typename T, typename Fields>
  void optional(const char* field, std::optional<T>& value, Fields fields) {
    bool there = false;
    flag(field, there);
    if (there) fields(*this, value.emplace());
  }
  void needs(const char* field, std::vector<Need>& value) {
    const std::uint64_t runs = in_.varint();
    require(field, runs <= kMessageTensorsMax, Code::kTooLarge);
    for (std::uint64_t i = 0; ok() && i < runs; ++i) {
      const std::uint64_t run = in_.varint();
      const auto need = static_cast<Need>(run % 4);
      require(field, run >= 4 && (value.empty() || value.back() != need));
      require(field, run / 4 <= kMessageTensorsMax - value.size(), Code::kTooLarge);
      if (ok()) value.insert(value.end(), static_cast<std::size_t>(run / 4), need);
    }
  }

 private:
  bool ok() const { return status_.ok(); }
  void raw_text(const char* field, std::string& value, std::uint64_t bytes_max) {
    const std::uint64_t size = in_.varint();
    require(field, size <= bytes_max, Code::kTooLarge);
    if (!ok()) return;
    value = in_.text(size);
    require(field, true);
  }

  ByteReader in_;
  Status status_;
};

}  // namespace dcr
