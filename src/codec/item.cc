#include "codec/item.h"

namespace dcr {

std::uint64_t ItemBox::words() const {
  std::uint64_t product = 1;
  for (const ItemDimension& dim : dims) product *= dim.size;
  return product;
}

std::uint64_t ItemBox::end() const {
  std::uint64_t last = offset;
  for (const ItemDimension& dim : dims) last += (dim.size - 1) * dim.stride;
  return last + 1;
}

}  // namespace dcr
