// A random refit as the public header takes it.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "dcr/receiver.h"
#include "receiver/test_refit.h"

namespace dcr {

inline std::vector<std::vector<CanonicalBox>> public_boxes(const TestRefit& refit) {
  std::vector<std::vector<CanonicalBox>> owners;
  for (const std::vector<OwnerBox>& boxes : refit.boxes) {
    std::vector<CanonicalBox>& of = owners.emplace_back();
    for (const OwnerBox& box : boxes) {
      CanonicalBox made{box.tensor, box.box.offset, {}, {}};
      for (const ItemDimension& dim : box.box.dims) {
        made.sizes.push_back(dim.size);
        made.strides.push_back(dim.stride);
      }
      of.push_back(std::move(made));
    }
  }
  return owners;
}

inline ReadCanonical read_from(const std::vector<Bytes>& words, const Catalogue& catalogue) {
  return [&](std::uint32_t tensor, std::uint64_t first, std::span<std::uint8_t> out) {
    const unsigned width = word_bytes(catalogue[tensor].dtype);
    std::copy_n(words[tensor].begin() + static_cast<std::ptrdiff_t>(first * width), out.size(),
                out.begin());
    return Status();
  };
}

}  // namespace dcr
