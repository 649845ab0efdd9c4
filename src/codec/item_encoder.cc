#include "codec/item_encoder.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/assert.h"
#include "base/limits.h"
#include "codec/choose.h"
#include "codec/symbols.h"
#include "simd/words.h"

namespace dcr {

struct ItemEncoder::Scratch {
  ItemHeader header;
  EncodingChoice choice = EncodingChoice::kAdd;
  std::uint64_t box_words = 0;
  std::uint64_t scanned_words = 0;
  std::uint64_t unchanged = 0;
  std::size_t count = 0;
  const std::uint32_t* gaps = nullptr;  // own_gaps, or the caller's
  const void* values = nullptr;
  // Not initialised: pages that no change touches cost nothing.
  std::unique_ptr<std::uint32_t[]> own_gaps;
  std::unique_ptr<std::uint64_t[]> own_values;
  std::size_t capacity = 0;        // entries of own_gaps
  std::size_t capacity_bytes = 0;  // of own_values
  Bytes high;                      // values that escape, as words

  void reserve(std::uint64_t words, unsigned width) {
    const std::size_t entries = static_cast<std::size_t>(words) + kScanSlackWords;
    if (entries > capacity) {
      own_gaps = std::make_unique_for_overwrite<std::uint32_t[]>(entries);
      capacity = entries;
    }
    if (entries * width > capacity_bytes) {
      own_values = std::make_unique_for_overwrite<std::uint64_t[]>((entries * width + 7) / 8);
      capacity_bytes = entries * width;
    }
  }

  std::uint8_t* value_at(std::size_t index) {
    return reinterpret_cast<std::uint8_t*>(own_values.get()) + index * header.width;
  }

  void restart(Encoding encoding) {
    header.encoding = encoding;
    unchanged = 0;
    count = 0;
    scanned_words = 0;
    gaps = own_gaps.get();
    values = own_values.get();
  }

  void scan(const ScanBox& part) {
    scanned_words += part.rows * part.row_words;
    DCR_ASSERT(scanned_words <= box_words);
    count += kernels().scan_changes(header.width, header.encoding, part, &unchanged,
                                    own_gaps.get() + count, value_at(count));
  }
};

namespace {

// Bits by which `add` values may cost, per byte of the word, before `overwrite` is tried too.
constexpr std::uint64_t kPoorBitsPerByte = 6;

// Gaps as bytes, 255 meaning "255 and more". Returns how many bytes of 255 there are.
std::uint64_t pack_byte_gaps(const std::uint32_t* gaps, std::size_t count, Bytes* out) {
  constexpr std::size_t kBlock = 64;
  constexpr std::uint32_t kFull = 255;
  const std::size_t before = out->size();
  std::size_t written = before;
  // Whether every gap of the block before fitted one byte, as those of the next then probably do.
  bool narrow = true;
  for (std::size_t taken = 0; taken < count;) {
    const std::size_t end = std::min(count, taken + kBlock);
    const std::size_t one_each = written + (end - taken);
    const std::size_t room = written + 2 * kBlock;  // no more than two bytes for most gaps
    if (out->size() < room) out->resize(room + (count - taken));
    if (narrow) {
      const std::size_t fitted =
          kernels().narrow_gaps(gaps + taken, end - taken, out->data() + written);
      taken += fitted;
      written += fitted;
    }
    std::uint8_t* to = out->data() + written;
    for (; taken < end; ++taken) {
      std::uint32_t gap = gaps[taken];
      if (gap >= 2 * kFull) {
        const std::size_t more = gap / kFull - 1;
        written = static_cast<std::size_t>(to - out->data()) + more;
        if (out->size() < written + 2 * kBlock) out->resize(written + 2 * kBlock + (count - taken));
        to = out->data() + written;
        std::memset(to - more, kFull, more);
        gap -= static_cast<std::uint32_t>(kFull * more);
      }
      // One continuation or none, which is hard to predict: without a branch.
      const std::uint32_t continued = gap >= kFull ? 1 : 0;
      *to = kFull;
      to += continued;
      *to++ = static_cast<std::uint8_t>(gap - kFull * continued);
    }
    written = static_cast<std::size_t>(to - out->data());
    narrow = written == one_each;
  }
  out->resize(written);
  return written - before - count;
}

void pack_gaps(const std::uint32_t* gaps, std::size_t count, EncodedItem* item) {
  const unsigned shift = item->header.gap_shift;
  item->header.continuations = 0;
  if (shift == 0) {
    item->header.continuations = pack_byte_gaps(gaps, count, &item->locations);
    return;
  }
  const std::uint32_t low_mask = (std::uint32_t{1} << shift) - 1;
  item->gap_low.reserve(count * shift / 8 + sizeof(std::uint64_t));
  BitWriter low(&item->gap_low);
  std::array<std::uint32_t, 1024> quotients;
  for (std::size_t done = 0; done < count; done += quotients.size()) {
    const std::size_t part = std::min(quotients.size(), count - done);
    for (std::size_t i = 0; i < part; ++i) {
      quotients[i] = gaps[done + i] >> shift;
      low.put(gaps[done + i] & low_mask, shift);
    }
    item->header.continuations += pack_byte_gaps(quotients.data(), part, &item->locations);
  }
  low.finish();
}

void pack_bitmap(const std::uint32_t* gaps, std::size_t count, std::uint64_t words, Bytes* out) {
  out->assign(static_cast<std::size_t>((words + 7) / 8), 0);
  std::uint64_t position = 0;
  for (std::size_t i = 0; i < count; ++i) {
    position += gaps[i];
    std::uint8_t& byte = (*out)[static_cast<std::size_t>(position / 8)];
    byte = static_cast<std::uint8_t>(byte | 1u << (position % 8));
    ++position;
  }
}

// Byte symbols of `count` words, less `base`, and their extra bits.
template <typename Word>
void pack_byte_symbols(const Word* values, std::size_t count, std::uint64_t base, Bytes* symbols,
                       Bytes* extra) {
  symbols->resize(count);
  extra->clear();
  BitWriter bits(extra);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t value = values[i] - base;
    const std::uint8_t symbol = byte_symbol(value);
    (*symbols)[i] = symbol;
    if (symbol < kDirectSymbols) continue;
    const unsigned raw = symbol_extra_bits(symbol);
    bits.put(value & ((std::uint64_t{1} << raw) - 1), raw);
  }
  bits.finish();
}

// The words whose packed symbols are escapes; returns how many. `high` has room for them.
template <typename Word>
std::size_t gather_escapes(unsigned bits, const std::uint8_t* symbols, const Word* values,
                           std::size_t count, Word* high) {
  constexpr std::size_t kBlock = 4096;  // whole bytes of symbols
  std::array<std::uint16_t, kBlock + kEscapeSlack> indices;
  std::size_t found = 0;
  for (std::size_t done = 0; done < count; done += kBlock) {
    const std::size_t part = std::min(kBlock, count - done);
    const std::size_t escapes =
        kernels().find_escapes(bits, symbols + done * bits / 8, part, indices.data());
    for (std::size_t i = 0; i < escapes; ++i) high[found + i] = values[done + indices[i]];
    found += escapes;
  }
  return found;
}

void pack_planes(unsigned width, const void* values, std::size_t count, EncodedItem* item) {
  item->header.value = ValueCoding::kPlanes;
  item->header.escapes = 0;
  item->header.extra_bytes = 0;
  item->escapes.clear();
  item->extra.clear();
  item->symbols.resize(count * width);
  std::uint8_t* planes[8];
  for (unsigned plane = 0; plane < width; ++plane)
    planes[plane] = item->symbols.data() + plane * count;
  kernels().split_planes(width, values, count, planes);
}

template <typename Word>
void pack_values(const Word* values, std::size_t count, Bytes* scratch, EncodedItem* item) {
  const ValueCoding coding = item->header.value;
  item->escapes.clear();
  item->extra.clear();
  item->header.escapes = 0;
  if (coding == ValueCoding::kPlanes) {
    pack_planes(sizeof(Word), values, count, item);
    return;
  }
  if (coding == ValueCoding::kSymbol8) {
    pack_byte_symbols(values, count, 0, &item->symbols, &item->extra);
  } else {
    const unsigned bits = coding == ValueCoding::kSymbol2 ? 2 : 4;
    item->symbols.resize((count * bits + 7) / 8);
    const std::size_t escapes =
        kernels().pack_symbols(sizeof(Word), bits, values, count, item->symbols.data());
    if (escapes > 0) {
      scratch->resize(escapes * sizeof(Word));
      Word* high = reinterpret_cast<Word*>(scratch->data());
      const std::size_t found = gather_escapes(bits, item->symbols.data(), values, count, high);
      DCR_ASSERT(found == escapes);
      pack_byte_symbols(high, escapes, escape_value(bits), &item->escapes, &item->extra);
    }
    item->header.escapes = escapes;
  }
  item->header.extra_bytes = item->extra.size();
  // A sample can be wrong; raw planes bound what it costs.
  if (item->symbols.size() + item->escapes.size() + item->extra.size() > count * sizeof(Word)) {
    pack_planes(sizeof(Word), values, count, item);
  }
}

Encoding first_encoding(EncodingChoice choice) {
  switch (choice) {
    case EncodingChoice::kOverwrite:
      return Encoding::kOverwrite;
    case EncodingChoice::kXor:
      return Encoding::kXor;
    case EncodingChoice::kAdd:
    case EncodingChoice::kSmallest:
      break;
  }
  return Encoding::kAdd;
}

}  // namespace

ItemEncoder::ItemEncoder() : scratch_(std::make_unique<Scratch>()) {}
ItemEncoder::~ItemEncoder() = default;

void ItemEncoder::begin(std::uint32_t tensor, unsigned width, const ItemBox& box,
                        EncodingChoice choice) {
  Scratch& s = *scratch_;
  s.header = ItemHeader{};
  s.header.tensor = tensor;
  s.header.width = static_cast<std::uint8_t>(width);
  s.header.box = box;
  s.choice = choice;
  s.box_words = box.words();
  DCR_ASSERT(s.box_words > 0 && s.box_words <= kItemElementsMax);
  s.restart(first_encoding(choice));
}

void ItemEncoder::scan(const ScanBox& part) {
  if (scratch_->scanned_words == 0) {
    scratch_->reserve(scratch_->box_words, scratch_->header.width);
    scratch_->restart(scratch_->header.encoding);
  }
  scratch_->scan(part);
}

void ItemEncoder::take(std::span<const std::uint32_t> gaps, const void* values) {
  Scratch& s = *scratch_;
  DCR_ASSERT(s.scanned_words == 0);
  s.gaps = gaps.data();
  s.values = values;
  s.count = gaps.size();
  s.scanned_words = s.box_words;
}

std::uint64_t ItemEncoder::value_bits() const {
  const Scratch& s = *scratch_;
  return s.count == 0 ? 0 : choose_value(s.header.width, s.values, s.count).bits_per_4096;
}

bool ItemEncoder::add_is_poor() const {
  return value_bits() > kPoorBitsPerByte * scratch_->header.width * 4096;
}

bool ItemEncoder::finish(std::span<const ScanBox> parts, EncodedItem* item) {
  Scratch& s = *scratch_;
  DCR_ASSERT(s.scanned_words == s.box_words);
  if (s.count == 0) return false;
  ValueChoice value = choose_value(s.header.width, s.values, s.count);
  if (s.choice == EncodingChoice::kSmallest && !parts.empty() &&
      value.bits_per_4096 > kPoorBitsPerByte * s.header.width * 4096) {
    const auto scan_as = [&](Encoding encoding) {
      s.restart(encoding);
      for (const ScanBox& part : parts) s.scan(part);
      return choose_value(s.header.width, s.values, s.count);
    };
    const ValueChoice overwrite = scan_as(Encoding::kOverwrite);
    const bool smaller = overwrite.bits_per_4096 < value.bits_per_4096;
    value = smaller ? overwrite : scan_as(Encoding::kAdd);
  }
  const LocationChoice location = choose_location({s.gaps, s.count}, s.box_words);
  s.header.location = location.coding;
  s.header.gap_shift = location.gap_shift;
  s.header.value = value.coding;
  s.header.changes = s.count;
  item->header = s.header;
  item->locations.clear();
  item->gap_low.clear();
  if (location.coding == LocationCoding::kGaps) pack_gaps(s.gaps, s.count, item);
  if (location.coding == LocationCoding::kBitmap) {
    pack_bitmap(s.gaps, s.count, s.box_words, &item->locations);
  }
  for_width(s.header.width, [&]<typename Word>(Word) {
    pack_values(static_cast<const Word*>(s.values), s.count, &s.high, item);
  });
  return true;
}

void ItemEncoder::encode_whole(std::uint32_t tensor, unsigned width, const ItemBox& box,
                               std::span<const ScanBox> parts, EncodedItem* item) {
  Scratch& s = *scratch_;
  begin(tensor, width, box, EncodingChoice::kOverwrite);
  s.reserve(s.box_words, width);
  for (const ScanBox& part : parts) {
    for (std::uint64_t row = 0; row < part.rows; ++row) {
      std::memcpy(s.value_at(s.count), part.new_words + row * part.new_row_stride_bytes,
                  static_cast<std::size_t>(part.row_words) * width);
      s.count += static_cast<std::size_t>(part.row_words);
    }
  }
  DCR_ASSERT(s.count == s.box_words);
  s.values = s.own_values.get();
  s.header.location = LocationCoding::kAll;
  s.header.value = choose_value(width, s.values, s.count).coding;
  s.header.changes = s.count;
  item->header = s.header;
  item->locations.clear();
  item->gap_low.clear();
  for_width(width, [&]<typename Word>(Word) {
    pack_values(static_cast<const Word*>(s.values), s.count, &s.high, item);
  });
}

}  // namespace dcr
