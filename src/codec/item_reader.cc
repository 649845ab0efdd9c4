#include "codec/item_reader.h"

#include <algorithm>
#include <bit>

#include "base/assert.h"
#include "codec/symbols.h"
#include "simd/kernels.h"
#include "simd/words.h"

namespace dcr {

ItemReader::ItemReader(const ItemView& item) : item_(item), remaining_(item.header.changes) {}

bool ItemReader::next(ChangeBlock* block) {
  block->count = static_cast<std::size_t>(std::min<std::uint64_t>(remaining_, kBlockChanges));
  if (block->count == 0) return false;
  read_positions(block);
  read_values(block);
  taken_ += block->count;
  remaining_ -= block->count;
  return true;
}

void ItemReader::read_positions(ChangeBlock* block) {
  switch (item_.header.location) {
    case LocationCoding::kAll:
      for (std::size_t i = 0; i < block->count; ++i) {
        block->positions[i] = static_cast<std::uint32_t>(taken_ + i);
      }
      return;
    case LocationCoding::kGaps:
      return item_.header.gap_shift == 0 ? read_byte_gaps(block) : read_split_gaps(block);
    case LocationCoding::kBitmap:
      return read_bitmap(block);
  }
}

void ItemReader::read_byte_gaps(ChangeBlock* block) {
  std::uint32_t next = static_cast<std::uint32_t>(position_);
  location_byte_ += kernels().expand_gaps(item_.locations.data() + location_byte_,
                                          item_.locations.size() - location_byte_, block->count,
                                          &next, block->positions);
  position_ = next;
}

void ItemReader::read_split_gaps(ChangeBlock* block) {
  const unsigned shift = item_.header.gap_shift;
  const std::uint8_t* gap = item_.locations.data() + location_byte_;
  std::uint64_t position = position_;
  for (std::size_t i = 0; i < block->count; ++i) {
    std::uint64_t quotient = 0;
    while (*gap == 255) {
      quotient += 255;
      ++gap;
    }
    quotient += *gap++;
    position += quotient << shift | read_bits(item_.gap_low, low_bit_, shift);
    low_bit_ += shift;
    block->positions[i] = static_cast<std::uint32_t>(position++);
  }
  position_ = position;
  location_byte_ = static_cast<std::size_t>(gap - item_.locations.data());
}

// Position_ is the first bit not looked at; whole words of 64 bits are taken where the bitmap has
// them.
void ItemReader::read_bitmap(ChangeBlock* block) {
  const ByteSpan map = item_.locations;
  std::size_t found = 0;
  while (found < block->count) {
    const std::size_t byte = static_cast<std::size_t>(position_ / 8);
    std::uint64_t bits = load_packed(map.data() + byte, map.size() - byte);
    const std::uint64_t base = position_ - position_ % 8;
    bits = bits >> (position_ % 8) << (position_ % 8);
    position_ = base + 64;
    while (bits != 0) {
      const std::uint64_t position = base + static_cast<std::uint64_t>(std::countr_zero(bits));
      if (found == block->count) {
        position_ = position;
        return;
      }
      block->positions[found++] = static_cast<std::uint32_t>(position);
      bits &= bits - 1;
    }
  }
}

std::uint64_t ItemReader::read_byte_symbol(ByteSpan symbols) {
  const std::uint8_t symbol = symbols[symbol_byte_++];
  if (symbol < kDirectSymbols) return symbol;
  const unsigned bits = symbol_extra_bits(symbol);
  const std::uint64_t value = symbol_value(symbol, read_bits(item_.extra, extra_bit_, bits));
  extra_bit_ += bits;
  return value;
}

void ItemReader::read_values(ChangeBlock* block) {
  const ItemHeader& header = item_.header;
  const std::size_t first = static_cast<std::size_t>(taken_);
  if (header.value == ValueCoding::kPlanes) {
    const std::uint8_t* planes[8];
    for (unsigned plane = 0; plane < header.width; ++plane)
      planes[plane] = item_.planes[plane].data() + first;
    kernels().join_planes(header.width, planes, block->count, block->values);
    return;
  }
  for_width(header.width, [&]<typename Word>(Word) {
    Word* values = reinterpret_cast<Word*>(block->values);
    if (header.value == ValueCoding::kSymbol8) {
      for (std::size_t i = 0; i < block->count; ++i) {
        values[i] = static_cast<Word>(read_byte_symbol(item_.symbols));
      }
      return;
    }
    // Blocks but the last have a multiple of four changes, so each starts on a byte.
    const unsigned bits = header.value == ValueCoding::kSymbol2 ? 2 : 4;
    kernels().unpack_symbols(sizeof(Word), bits, item_.symbols.data() + first * bits / 8,
                             block->count, values);
    if (symbol_byte_ == item_.escapes.size()) return;
    std::uint16_t escapes[kBlockChanges + kEscapeSlack];
    const std::size_t count = kernels().find_escapes(bits, item_.symbols.data() + first * bits / 8,
                                                     block->count, escapes);
    const Word escape = static_cast<Word>(escape_value(bits));
    if (item_.extra.empty()) {
      const std::uint8_t* symbols = item_.escapes.data() + symbol_byte_;
      for (std::size_t i = 0; i < count; ++i)
        values[escapes[i]] = static_cast<Word>(escape + symbols[i]);
      symbol_byte_ += count;
      return;
    }
    for (std::size_t i = 0; i < count; ++i) {
      values[escapes[i]] = static_cast<Word>(escape + read_byte_symbol(item_.escapes));
    }
  });
}

namespace {

// Offsets, from the box's first word, of ascending positions in the box's order.
class BoxWalk {
 public:
  explicit BoxWalk(const ItemBox& box) : dims_(box.dims), index_(box.dims.size(), 0) {}

  std::uint64_t offset_of(std::uint64_t position) {
    advance(position - position_);
    position_ = position;
    std::uint64_t offset = 0;
    for (std::size_t i = 0; i < dims_.size(); ++i) offset += index_[i] * dims_[i].stride;
    return offset;
  }

 private:
  void advance(std::uint64_t steps) {
    for (std::size_t i = dims_.size(); steps > 0 && i > 0; --i) {
      const std::uint64_t next = index_[i - 1] + steps;
      steps = next / dims_[i - 1].size;
      index_[i - 1] = next % dims_[i - 1].size;
    }
  }

  const std::vector<ItemDimension>& dims_;
  std::vector<std::uint64_t> index_;
  std::uint64_t position_ = 0;
};

template <Encoding kEncoding, typename Word>
void apply_block(const ChangeBlock& block, std::uint8_t* words) {
  const Word* values = reinterpret_cast<const Word*>(block.values);
  for (std::size_t i = 0; i < block.count; ++i) {
    const std::uint32_t position = block.positions[i];
    const Word resident =
        kEncoding == Encoding::kOverwrite ? Word{0} : load_word<Word>(words, position);
    store_word(words, position, decode_word(kEncoding, resident, values[i]));
  }
}

template <typename Word>
void apply_sparse(Encoding encoding, const ChangeBlock& block, std::uint8_t* words) {
  switch (encoding) {
    case Encoding::kOverwrite:
      return apply_block<Encoding::kOverwrite, Word>(block, words);
    case Encoding::kXor:
      return apply_block<Encoding::kXor, Word>(block, words);
    case Encoding::kAdd:
      return apply_block<Encoding::kAdd, Word>(block, words);
  }
}

template <typename Word>
void apply_strided(Encoding encoding, const ChangeBlock& block, BoxWalk* walk,
                   std::uint8_t* words) {
  const Word* values = reinterpret_cast<const Word*>(block.values);
  for (std::size_t i = 0; i < block.count; ++i) {
    const std::uint64_t offset = walk->offset_of(block.positions[i]);
    store_word(words, offset, decode_word(encoding, load_word<Word>(words, offset), values[i]));
  }
}

}  // namespace

std::uint64_t apply_item(const ItemView& item, MutableByteSpan words) {
  const ItemHeader& header = item.header;
  DCR_ASSERT(words.size() >= (header.box.end() - header.box.offset) * header.width);
  ItemReader reader(item);
  BoxWalk walk(header.box);
  ChangeBlock block;
  while (reader.next(&block)) {
    if (header.box.is_range() && header.location == LocationCoding::kAll) {
      kernels().apply_dense(header.width, header.encoding, block.values, block.count,
                            words.data() + std::size_t{block.positions[0]} * header.width);
      continue;
    }
    for_width(header.width, [&]<typename Word>(Word) {
      if (header.box.is_range()) {
        apply_sparse<Word>(header.encoding, block, words.data());
      } else {
        apply_strided<Word>(header.encoding, block, &walk, words.data());
      }
    });
  }
  return header.changes;
}

}  // namespace dcr
