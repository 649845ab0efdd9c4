// Bounded little-endian cursors. A ByteReader never reads past its span: a read that does not fit
// marks the reader as failed and gives zero, so a parser may read a whole record and test `ok()`
// once.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace dcr {

using Bytes = std::vector<std::uint8_t>;
using ByteSpan = std::span<const std::uint8_t>;
using MutableByteSpan = std::span<std::uint8_t>;

// Hosts are little-endian (x86-64 and arm64); the static_assert keeps a port from going wrong
// silently.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

template <typename T>
T load_little(const std::uint8_t* from) {
  static_assert(std::is_unsigned_v<T>);
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void store_little(std::uint8_t* to, T value) {
  static_assert(std::is_unsigned_v<T>);
  std::memcpy(to, &value, sizeof(T));
}

class ByteReader {
 public:
  explicit ByteReader(ByteSpan bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  std::size_t position() const { return position_; }
  std::size_t remaining() const { return bytes_.size() - position_; }

  std::uint8_t u8() { return fixed<std::uint8_t>(); }
  std::uint16_t u16() { return fixed<std::uint16_t>(); }
  std::uint32_t u32() { return fixed<std::uint32_t>(); }
  std::uint64_t u64() { return fixed<std::uint64_t>(); }

  // Unsigned LEB128, at most ten bytes, no padding: a longer spelling of a value fails the reader.
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const std::uint8_t byte = u8();
      const std::uint64_t bits = byte & 0x7f;
      if (shift == 63 && bits > 1) break;
      value |= bits << shift;
      if ((byte & 0x80) == 0) {
        if (byte == 0 && shift != 0) break;
        return ok_ ? value : 0;
      }
    }
    ok_ = false;
    return 0;
  }

  // The next `size` bytes; empty and failed when there are fewer.
  ByteSpan bytes(std::uint64_t size) {
    if (!ok_ || size > remaining()) {
      ok_ = false;
      return {};
    }
    ByteSpan taken = bytes_.subspan(position_, static_cast<std::size_t>(size));
    position_ += static_cast<std::size_t>(size);
    return taken;
  }

  std::string_view text(std::uint64_t size) {
    ByteSpan taken = bytes(size);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }

 private:
  template <typename T>
  T fixed() {
    ByteSpan taken = bytes(sizeof(T));
    return taken.empty() ? T{0} : load_little<T>(taken.data());
  }

  ByteSpan bytes_;
  std::size_t position_ = 0;
  bool ok_ = true;
};

class ByteWriter {
 public:
  explicit ByteWriter(Bytes* out) : out_(out) {}

  void u8(std::uint8_t value) { out_->push_back(value); }
  void u16(std::uint16_t value) { fixed(value); }
  void u32(std::uint32_t value) { fixed(value); }
  void u64(std::uint64_t value) { fixed(value); }
  void varint(std::uint64_t value) {
    while (value >= 0x80) {
      out_->push_back(static_cast<std::uint8_t>(value | 0x80));
      value >>= 7;
    }
    out_->push_back(static_cast<std::uint8_t>(value));
  }
  void bytes(ByteSpan value) { append(value.data(), value.size()); }
  void text(std::string_view value) { append(value.data(), value.size()); }
  void zeros(std::size_t count) { out_->insert(out_->end(), count, 0); }

 private:
  template <typename T>
  void fixed(T value) {
    std::uint8_t encoded[sizeof(T)];
    store_little(encoded, value);
    bytes(encoded);
  }

  void append(const void* from, std::size_t count) {
    if (count == 0) return;
    const std::size_t before = out_->size();
    out_->resize(before + count);
    std::memcpy(out_->data() + before, from, count);
  }

  Bytes* out_;
};

}  // namespace dcr
