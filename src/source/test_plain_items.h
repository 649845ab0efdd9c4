// Items as tests compare them.
#pragma once

#include <cstdint>
#include <vector>

#include "codec/item_reader.h"

namespace dcr {

// An item's identity and its changes, whatever payload it is in.
struct PlainItem {
  std::uint32_t tensor;
  Encoding encoding;
  ItemBox box;
  std::vector<std::uint32_t> positions;
  Bytes values;
  bool operator==(const PlainItem&) const = default;
};

inline PlainItem plain_item(const ItemView& view) {
  PlainItem item = {view.header.tensor, view.header.encoding, view.header.box, {}, {}};
  ItemReader reader(view);
  ChangeBlock block;
  while (reader.next(&block)) {
    item.positions.insert(item.positions.end(), block.positions, block.positions + block.count);
    item.values.insert(item.values.end(), block.values,
                       block.values + block.count * view.header.width);
  }
  return item;
}

}  // namespace dcr
