// From two versions of a box to an encoded item: scan, choose the codings, pack.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "codec/item.h"
#include "simd/kernels.h"

namespace dcr {

// What a caller allows for an item's values (paper §5, Figure D.1).
enum class EncodingChoice : std::uint8_t {
  kOverwrite,  // a retry, or a path that does not preserve representation
  kXor,
  kAdd,
  kSmallest,  // add, or overwrite where a sample says that it is smaller (a tensor that was zeroed
              // or replaced)
};

// Reuses its buffers from item to item; they grow to what the largest item needs: 4 + width bytes
// per change. One per thread; not thread-safe. The result depends on the words alone: not on how
// scans were cut, on earlier items or on the CPU.
class ItemEncoder {
 public:
  ItemEncoder();
  ~ItemEncoder();

  // Starts an item over `box` of tensor `tensor`, words of `width` bytes.
  // REQUIRES: 0 < box.words() <= kItemElementsMax.
  void begin(std::uint32_t tensor, unsigned width, const ItemBox& box, EncodingChoice choice);

  // Compares the next words of the box, in its order. REQUIRES: together the scans cover the box
  // exactly.
  void scan(const ScanBox& part);

  // Takes changes that are already known instead of scanning: gaps and values as scan_changes would
  // give them.
  void take(std::span<const std::uint32_t> gaps, const void* values);

  // What kSmallest looks at, after the last scan: the estimated bits of 4,096 values, and whether
  // they are so many under `add` that overwrite may be smaller. For callers whose parts do not stay
  // valid: they scan again with kOverwrite instead.
  std::uint64_t value_bits() const;
  bool add_is_poor() const;

  // Ends the item. False if nothing changed: then there is no item. `parts` are the boxes that were
  // scanned, still valid; they are read again only if kSmallest turns to overwrite. Where they
  // are empty, as after take(), kSmallest is kAdd.
  bool finish(std::span<const ScanBox> parts, EncodedItem* item);

  // An item that carries every word of the box as it is (an added tensor, a dense refit): kAll,
  // kOverwrite.
  void encode_whole(std::uint32_t tensor, unsigned width, const ItemBox& box,
                    std::span<const ScanBox> parts, EncodedItem* item);

 private:
  struct Scratch;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace dcr
