#include "codec/item_parser.h"

#include <array>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/checked.h"
#include "base/limits.h"
#include "codec/container.h"
#include "codec/item_check.h"
#include "codec/symbols.h"

namespace dcr {
namespace {

// The streams of a payload, consumed from the front as items take their share.
class StreamCursors {
 public:
  StreamCursors(std::span<const StreamEntry> entries, const std::uint8_t* raw) {
    for (const StreamEntry& entry : entries) {
      const ByteSpan stream(raw, static_cast<std::size_t>(entry.raw_bytes));
      left_[stream_slot(entry.kind, entry.width)] = stream;
      raw += stream.size();
    }
  }

  // All of the items stream.
  ByteSpan take_records() {
    return std::exchange(left_[stream_slot(StreamKind::kItems, 0)], ByteSpan());
  }

  // The next `count` bytes of a stream. Error kCorrupt naming the stream when it has fewer.
  Status take(StreamKind kind, unsigned word_width, std::uint64_t count, ByteSpan* part) {
    ByteSpan& left = left_[stream_slot(kind, stream_width(kind, word_width))];
    if (count > left.size()) {
      return Status(Code::kCorrupt, "stream " + stream_name(kind) + " ends before " +
                                        std::to_string(count) + " bytes of it");
    }
    *part = left.first(static_cast<std::size_t>(count));
    left = left.subspan(part->size());
    return {};
  }

  Status check_consumed() const {
    for (unsigned slot = 0; slot < kStreamSlots; ++slot) {
      if (left_[slot].empty()) continue;
      const StreamKind kind = static_cast<StreamKind>(slot / 9);
      return Status(Code::kCorrupt, "payload: " + std::to_string(left_[slot].size()) +
                                        " bytes of stream " + stream_name(kind) +
                                        " belong to no item");
    }
    return {};
  }

 private:
  std::array<ByteSpan, kStreamSlots> left_{};
};

// What an item's record is relative to.
struct Previous {
  bool any = false;
  std::uint32_t tensor = 0;
  std::uint64_t range_end = 0;
  std::uint64_t offset = 0;
};

// The flag byte into the header's codings.
Status parse_flags(std::uint8_t flags, ItemHeader* item) {
  if ((flags & kFlagReserved) != 0) return corrupt("reserved flag is set");
  const unsigned encoding = flags >> kFlagEncodingShift & 3;
  const unsigned location = flags >> kFlagLocationShift & 3;
  if (encoding > static_cast<unsigned>(Encoding::kAdd)) {
    return Status(Code::kUnsupported, "encoding " + std::to_string(encoding));
  }
  if (location > static_cast<unsigned>(LocationCoding::kBitmap)) {
    return Status(Code::kUnsupported, "location coding " + std::to_string(location));
  }
  item->encoding = static_cast<Encoding>(encoding);
  item->location = static_cast<LocationCoding>(location);
  item->value = static_cast<ValueCoding>(flags >> kFlagValueShift & 3);
  return {};
}

Status parse_range(ByteReader* in, std::uint64_t range_end, ItemBox* box) {
  const auto offset = checked_add(range_end, in->varint());
  if (!offset) return corrupt("item offset overflows");
  *box = ItemBox::range(*offset, in->varint());
  return {};
}

Status parse_strided(ByteReader* in, ItemBox* box) {
  const std::uint64_t rank = in->varint();
  if (rank == 0 || rank > kRankMax) return corrupt_rank(rank);
  box->offset = in->varint();
  box->dims.resize(static_cast<std::size_t>(rank));
  for (ItemDimension& dim : box->dims) {
    dim.size = in->varint();
    dim.stride = in->varint();
  }
  if (box->is_range()) return corrupt("a range is spelled as a strided box");
  return {};
}

class ItemParser {
 public:
  ItemParser(std::span<const StreamEntry> entries, const std::uint8_t* raw,
             std::span<const TensorSpec> tensors, std::uint64_t entry_bytes_max)
      : cursors_(entries, raw), tensors_(tensors), entry_bytes_left_(entry_bytes_max) {}

  Status parse(ByteReader* in, ItemView* view) {
    ItemHeader& item = view->header;
    DCR_TRY(parse_tensor(in, &item));
    DCR_TRY(parse_box(in, &item));
    DCR_TRY(parse_counts(in, &item));
    DCR_TRY(take_streams(view));
    DCR_TRY(check_locations(*view));
    return check_values(*view);
  }

  std::uint32_t tensor() const { return previous_.tensor; }
  ByteSpan take_records() { return cursors_.take_records(); }
  Status check_consumed() const { return cursors_.check_consumed(); }

 private:
  Status parse_tensor(ByteReader* in, ItemHeader* item) {
    const auto tensor = checked_add(previous_.tensor, in->varint());
    const std::uint8_t flags = in->u8();
    if (!in->ok()) return corrupt("truncated item");
    if (!tensor || *tensor >= tensors_.size()) {
      return corrupt("tensor index out of range of " + std::to_string(tensors_.size()));
    }
    item->tensor = static_cast<std::uint32_t>(*tensor);
    same_tensor_ = previous_.any && item->tensor == previous_.tensor;
    if (!same_tensor_) previous_.range_end = 0;
    previous_.tensor = item->tensor;
    item->width = tensors_[item->tensor].width;
    DCR_TRY(parse_flags(flags, item));
    strided_ = (flags & kFlagStrided) != 0;
    if (item->encoding != Encoding::kOverwrite && tensors_[item->tensor].overwrite_only) {
      return corrupt(std::string(encoding_name(item->encoding)) +
                     " on a tensor that takes overwrite only");
    }
    return {};
  }

  Status parse_box(ByteReader* in, ItemHeader* item) {
    DCR_TRY(strided_ ? parse_strided(in, &item->box)
                     : parse_range(in, previous_.range_end, &item->box));
    if (!in->ok()) return corrupt("truncated item");
    DCR_TRY(check_box(item->box, tensors_[item->tensor].words));
    if (same_tensor_ && item->box.offset <= previous_.offset)
      return corrupt("item offsets descend");
    previous_ = {true, item->tensor, strided_ ? 0 : item->box.end(), item->box.offset};
    return {};
  }

  Status parse_counts(ByteReader* in, ItemHeader* item) {
    const std::uint64_t words = item->box.words();
    item->changes = words;
    if (item->location != LocationCoding::kAll) item->changes = in->varint();
    if (item->location == LocationCoding::kGaps) {
      item->gap_shift = in->u8();
      item->continuations = in->varint();
      if (item->gap_shift > 24) return corrupt("gap shift " + std::to_string(item->gap_shift));
      if (item->continuations > words) return corrupt("gaps are longer than the box");
    }
    const bool packed =
        item->value == ValueCoding::kSymbol2 || item->value == ValueCoding::kSymbol4;
    if (packed) item->escapes = in->varint();
    if (item->value != ValueCoding::kPlanes) item->extra_bytes = in->varint();
    if (!in->ok()) return corrupt("truncated item");
    if (item->changes == 0) return corrupt("item without a change");
    if (item->changes > words) {
      return corrupt(std::to_string(item->changes) + " changes in a box of " +
                     std::to_string(words));
    }
    if (item->escapes > item->changes) return corrupt("more escapes than changes");
    const std::uint64_t entry_bytes = item->changes * item->width;
    if (entry_bytes > entry_bytes_left_) {
      return Status(Code::kTooLarge, "items' values are above the raw limit");
    }
    entry_bytes_left_ -= entry_bytes;
    return {};
  }

  Status take_streams(ItemView* view) {
    const ItemHeader& item = view->header;
    const unsigned width = item.width;
    if (item.location == LocationCoding::kGaps) {
      DCR_TRY(cursors_.take(StreamKind::kGaps, width, item.changes + item.continuations,
                            &view->locations));
      DCR_TRY(cursors_.take(StreamKind::kGapLow, width, divide_up(item.changes * item.gap_shift, 8),
                            &view->gap_low));
    } else if (item.location == LocationCoding::kBitmap) {
      DCR_TRY(cursors_.take(StreamKind::kBitmap, width, divide_up(item.box.words(), 8),
                            &view->locations));
    }
    switch (item.value) {
      case ValueCoding::kPlanes:
        for (unsigned plane = 0; plane < width; ++plane) {
          DCR_TRY(cursors_.take(plane_stream(plane), width, item.changes, &view->planes[plane]));
        }
        return {};
      case ValueCoding::kSymbol2:
        DCR_TRY(
            cursors_.take(StreamKind::kSymbol2, width, divide_up(item.changes, 4), &view->symbols));
        break;
      case ValueCoding::kSymbol4:
        DCR_TRY(
            cursors_.take(StreamKind::kSymbol4, width, divide_up(item.changes, 2), &view->symbols));
        break;
      case ValueCoding::kSymbol8:
        DCR_TRY(cursors_.take(StreamKind::kSymbol8, width, item.changes, &view->symbols));
        break;
    }
    DCR_TRY(cursors_.take(StreamKind::kSymbol8, width, item.escapes, &view->escapes));
    return cursors_.take(StreamKind::kExtra, width, item.extra_bytes, &view->extra);
  }

  StreamCursors cursors_;
  std::span<const TensorSpec> tensors_;
  std::uint64_t entry_bytes_left_;
  Previous previous_;
  bool same_tensor_ = false;
  bool strided_ = false;
};

}  // namespace

Status parse_items(std::span<const StreamEntry> entries, const std::uint8_t* raw,
                   std::span<const TensorSpec> tensors, std::uint64_t entry_bytes_max,
                   std::vector<ItemView>* items) {
  ItemParser parser(entries, raw, tensors, entry_bytes_max);
  ByteReader in(parser.take_records());
  while (in.remaining() > 0) {
    const std::string where = "payload: item " + std::to_string(items->size());
    if (items->size() == kItemsPerPayloadMax) {
      return Status(Code::kTooLarge,
                    where + ": more than " + std::to_string(kItemsPerPayloadMax) + " items");
    }
    ItemView view;
    const Status parsed = parser.parse(&in, &view);
    if (!parsed.ok()) {
      return parsed.with_context(where + " (tensor index " + std::to_string(parser.tensor()) + ")");
    }
    items->push_back(std::move(view));
  }
  DCR_TRY(parser.check_consumed());
  const auto header_at = [&](std::size_t i) -> const ItemHeader& { return (*items)[i].header; };
  return check_overlap(items->size(), header_at, entry_bytes_max).with_context("payload");
}

}  // namespace dcr
