// What the codec's tests share: words of every kind, boxes over buffers, items there and back.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/limits.h"
#include "base/prng.h"
#include "codec/item.h"
#include "codec/item_encoder.h"
#include "codec/item_reader.h"
#include "codec/payload.h"

namespace dcr {

inline constexpr unsigned kTestWidths[] = {1, 2, 4, 8};
inline constexpr Encoding kTestEncodings[] = {Encoding::kOverwrite, Encoding::kXor, Encoding::kAdd};
inline constexpr PayloadLimits kTestLimits = {kPayloadStoredBytesMax, kPayloadRawBytesMax};

constexpr EncodingChoice choice_of(Encoding encoding) {
  switch (encoding) {
    case Encoding::kXor:
      return EncodingChoice::kXor;
    case Encoding::kAdd:
      return EncodingChoice::kAdd;
    case Encoding::kOverwrite:
      break;
  }
  return EncodingChoice::kOverwrite;
}

// A dtype as the codec sees it: a width, and the words that its values make awkward.
struct WordKind {
  const char* name;
  unsigned width;
  std::vector<std::uint64_t> words;
};

// Zeros and infinities of both signs, NaNs with payloads, subnormals, neighbours, extremes.
inline std::vector<WordKind> word_kinds() {
  return {
      {"F8_E4M3", 1, {0x00, 0x80, 0x7f, 0xff, 0x01, 0x07, 0x7e, 0x38, 0x39, 0xb8}},
      {"BOOL", 1, {0, 1}},
      {"BF16",
       2,
       {0x0000, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0x7f81, 0xffff, 0x0001, 0x3f80, 0x3f81, 0x3f7f}},
      {"I16", 2, {0, 1, 0xffff, 0x7fff, 0x8000, 0x8001, 2, 0xfffe, 300}},
      {"F32",
       4,
       {0, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffc0dead, 1, 0x007fffff,
        0x3f800000, 0x3f800001}},
      {"I64",
       8,
       {0, 1, ~std::uint64_t{0}, std::uint64_t{1} << 63, ~std::uint64_t{0} >> 1, 0x100000000, 2,
        191, 192, 255, 0x7ff8000000000001}},
  };
}

inline std::uint64_t get_word(const Bytes& bytes, unsigned width, std::uint64_t index) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data() + index * width, width);
  return word;
}

inline void set_word(Bytes* bytes, unsigned width, std::uint64_t index, std::uint64_t word) {
  std::memcpy(bytes->data() + index * width, &word, width);
}

// All ones of `width` bytes.
constexpr std::uint64_t width_mask(unsigned width) { return ~std::uint64_t{0} >> (64 - 8 * width); }

// The tensor index of each word of a box, in the box's order.
inline std::vector<std::uint64_t> box_indices(const ItemBox& box) {
  std::vector<std::uint64_t> indices = {box.offset};
  for (const ItemDimension& dim : box.dims) {
    std::vector<std::uint64_t> next;
    for (const std::uint64_t index : indices) {
      for (std::uint64_t i = 0; i < dim.size; ++i) next.push_back(index + i * dim.stride);
    }
    indices = std::move(next);
  }
  return indices;
}

// The scans of a box over two versions of its tensor: one per row of its two innermost dimensions.
inline std::vector<ScanBox> scan_parts(const ItemBox& box, unsigned width, const Bytes& old_tensor,
                                       const Bytes& new_tensor) {
  const ItemDimension inner = box.dims.back();
  const bool rows_of_words = inner.stride != 1;
  ItemBox outer = {box.offset, {box.dims.begin(), box.dims.end() - 1}};
  ItemDimension rows;
  if (rows_of_words) {
    rows = inner;
  } else if (!outer.dims.empty()) {
    rows = outer.dims.back();
    outer.dims.pop_back();
  }
  std::vector<ScanBox> parts;
  for (const std::uint64_t index : box_indices(outer)) {
    const std::uint64_t stride = rows.stride * width;
    parts.push_back({old_tensor.data() + index * width, new_tensor.data() + index * width,
                     rows.size, rows_of_words ? 1 : inner.size, stride, stride});
  }
  return parts;
}

// One item of a test, with its tensor before and after.
struct ItemCase {
  unsigned width = 2;
  ItemBox box;
  Bytes old_tensor, new_tensor;

  std::uint64_t tensor_words() const { return old_tensor.size() / width; }
};

// False if nothing changed.
inline bool encode_case(ItemEncoder* encoder, const ItemCase& test, std::uint32_t tensor,
                        EncodingChoice choice, EncodedItem* item) {
  encoder->begin(tensor, test.width, test.box, choice);
  const std::vector<ScanBox> parts =
      scan_parts(test.box, test.width, test.old_tensor, test.new_tensor);
  for (const ScanBox& part : parts) encoder->scan(part);
  return encoder->finish(parts, item);
}

// Whether an item holds the same bytes as another.
inline bool same_item(const EncodedItem& a, const EncodedItem& b) {
  const ItemHeader& x = a.header;
  const ItemHeader& y = b.header;
  return x.tensor == y.tensor && x.width == y.width && x.encoding == y.encoding &&
         x.location == y.location && x.value == y.value && x.gap_shift == y.gap_shift &&
         x.box == y.box && x.changes == y.changes && x.continuations == y.continuations &&
         x.escapes == y.escapes && x.extra_bytes == y.extra_bytes && a.locations == b.locations &&
         a.gap_low == b.gap_low && a.symbols == b.symbols && a.escapes == b.escapes &&
         a.extra == b.extra;
}

inline Bytes seal_items(std::span<const EncodedItem> items, std::uint64_t* raw_bytes = nullptr) {
  PayloadWriter writer;
  for (const EncodedItem& item : items) writer.append(item);
  if (raw_bytes != nullptr) *raw_bytes = writer.raw_bytes();
  return writer.seal(PayloadHeader{});
}

// Applies an item to its whole tensor.
inline std::uint64_t apply_to_tensor(const ItemView& item, Bytes* tensor) {
  const std::size_t begin = static_cast<std::size_t>(item.header.box.offset) * item.header.width;
  const std::size_t end = static_cast<std::size_t>(item.header.box.end()) * item.header.width;
  return apply_item(item, MutableByteSpan(*tensor).subspan(begin, end - begin));
}

// Encodes one case alone, sends it through a payload and applies it. Returns what went wrong, or
// nothing. `item` becomes what was encoded; nothing changed counts as done.
inline std::string round_trip(ItemEncoder* encoder, const ItemCase& test, EncodingChoice choice,
                              EncodedItem* item) {
  if (!encode_case(encoder, test, 0, choice, item)) {
    return test.old_tensor == test.new_tensor ? "" : "a change was not found";
  }
  const Bytes stored = seal_items({item, 1});
  const TensorSpec spec = {test.tensor_words(), static_cast<std::uint8_t>(test.width), false};
  const Result<Payload> payload = Payload::read(stored, Digest{}, {&spec, 1}, kTestLimits);
  if (!payload.ok()) return payload.status().message();
  if (payload->items().size() != 1) return "not one item";
  Bytes tensor = test.old_tensor;
  const std::uint64_t written = apply_to_tensor(payload->items()[0], &tensor);
  if (written != item->header.changes) return "another number of words was written";
  return tensor == test.new_tensor ? "" : "the tensor differs";
}

}  // namespace dcr
