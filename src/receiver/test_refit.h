// A random refit for tests: tensors, owners' boxes, a loader that places them, two versions.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "codec/test_items.h"
#include "receiver/receiver.h"
#include "receiver/test_loader.h"

namespace dcr {

// One serving rank that can be built twice: for the refit, and for the dense load that it must
// equal.
struct TestRank {
  HostMemory memory{std::uint64_t{1} << 26};
  TestLoader loader{memory};

  std::vector<Bytes> parameters() { return loader.parameters(); }
};

inline Shape row_major(const Shape& sizes) {
  Shape strides(sizes.size());
  std::uint64_t stride = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= sizes[i];
  }
  return strides;
}

// Part [begin, begin + size) of a tensor along a dimension, as an item's box.
inline ItemBox part_box(const Shape& shape, std::size_t dim, std::uint64_t begin,
                        std::uint64_t size) {
  const Shape strides = row_major(shape);
  Box box{begin * strides[dim], 0, {}};
  for (std::size_t i = 0; i < shape.size(); ++i) {
    box.dims.push_back({i == dim ? size : shape[i], strides[i], strides[i]});
  }
  box.dst_offset = box.src_offset;
  box = normalize(box);
  ItemBox item{box.src_offset, {}};
  for (const BoxDimension& along : box.dims) item.dims.push_back({along.size, along.src_stride});
  if (item.dims.empty()) item.dims.push_back({1, 1});
  return item;
}

// Cuts an item's box into items of at most `words`.
inline std::vector<ItemBox> cut_box(const ItemBox& whole, std::uint64_t words) {
  std::vector<ItemBox> items;
  for (const Box& piece : split(position_box(whole), words)) {
    ItemBox item{piece.dst_offset, {}};
    for (const BoxDimension& dim : piece.dims) item.dims.push_back({dim.size, dim.dst_stride});
    if (item.dims.empty()) item.dims.push_back({1, 1});
    items.push_back(std::move(item));
  }
  return items;
}

// An item of every word's new bits.
inline EncodedItem whole_item(std::uint32_t tensor, unsigned width, const ItemBox& box,
                              const Bytes& words) {
  Bytes others = words;
  for (std::uint8_t& byte : others) byte = static_cast<std::uint8_t>(~byte);
  ItemEncoder encoder;
  EncodedItem item;
  encode_case(&encoder, {width, box, others, words}, tensor, EncodingChoice::kOverwrite, &item);
  return item;
}

// What an owner sends: its items in payloads of a few each.
struct SentPayload {
  PayloadHeader header;
  Bytes bytes;
};

inline SentPayload seal_payload(PayloadHeader header, std::vector<EncodedItem> items) {
  std::sort(items.begin(), items.end(), [](const EncodedItem& a, const EncodedItem& b) {
    return std::pair(a.header.tensor, a.header.box.offset) <
           std::pair(b.header.tensor, b.header.box.offset);
  });
  PayloadWriter writer;
  for (const EncodedItem& item : items) writer.append(item);
  return {header, writer.seal(header)};
}

class TestRefit {
 public:
  explicit TestRefit(std::uint64_t seed) : random_(seed) {
    owners_ = static_cast<std::uint32_t>(1 + random_.below(3));
    boxes.resize(owners_);
    std::vector<CanonicalTensor> tensors;
    const std::uint64_t count = 1 + random_.below(4);
    for (std::uint64_t i = 0; i < count; ++i) tensors.push_back(make_tensor(i));
    catalogue = make_catalogue(tensors);
    for (std::uint32_t tensor = 0; tensor < catalogue.size(); ++tensor) {
      make_words(tensor);
      make_boxes(tensor);
      styles_.push_back(static_cast<Style>(random_.below(kStyles)));
      if (styles_.back() == kCast && catalogue[tensor].dtype != Dtype::kBF16)
        styles_.back() = kCopy;
      if (styles_.back() == kDouble && catalogue[tensor].dtype != Dtype::kF32) {
        styles_.back() = kTranspose;
      }
    }
    place_seed_ = random_.next();
  }

  Catalogue catalogue;
  std::vector<std::vector<OwnerBox>> boxes;
  std::vector<Bytes> old_words, new_words;
  Prng& random() { return random_; }
  std::uint32_t owners() const { return owners_; }

  void add_loads(TestRank* rank) const {
    Prng random(place_seed_);
    for (std::uint32_t tensor = 0; tensor < catalogue.size(); ++tensor) {
      add_load(rank, tensor, random);
    }
  }

  // The payloads of all owners, in no certain order. `needs`: of the receiver.
  std::vector<SentPayload> send(const AttemptHeader& attempt, std::span<const TensorClass> needs,
                                bool everything) {
    std::vector<SentPayload> sent;
    counts_.assign(owners_, 0);
    for (std::uint32_t owner = 0; owner < owners_; ++owner) {
      std::vector<EncodedItem> items;
      for (const OwnerBox& box : boxes[owner]) {
        for (const ItemBox& piece : cut_box(box.box, 1 + random_.below(60))) {
          encode(box.tensor, piece, needs[box.tensor].need, everything, &items);
          if (items.size() > random_.below(6)) flush(attempt, owner, &items, &sent);
        }
      }
      if (!items.empty()) flush(attempt, owner, &items, &sent);
    }
    for (std::size_t i = sent.size(); i > 1; --i) std::swap(sent[i - 1], sent[random_.below(i)]);
    return sent;
  }
  std::uint64_t payloads(std::uint32_t owner) const { return counts_[owner]; }

 private:
  enum Style : std::uint8_t {
    kCopy,       // whole
    kNarrow,     // a part along some dimension
    kTranspose,  // through a temporary, if it has two dimensions
    kReplicate,  // to two parameters
    kPad,        // a part, and a constant after it
    kCast,       // to F32
    kDouble,     // written, then doubled
    kNothing,
  };
  static constexpr std::uint64_t kStyles = 8;

  CanonicalTensor make_tensor(std::uint64_t index) {
    static constexpr Dtype kDtypes[] = {Dtype::kBF16, Dtype::kBF16, Dtype::kF32,
                                        Dtype::kU8,   Dtype::kI64,  Dtype::kF4};
    CanonicalTensor tensor;
    tensor.name = "tensor" + std::to_string(index);
    tensor.dtype = kDtypes[random_.below(std::size(kDtypes))];
    const std::uint64_t rank = random_.below(4);
    for (std::uint64_t i = 0; i < rank; ++i) tensor.shape.push_back(1 + random_.below(9));
    if (tensor.dtype == Dtype::kF4) tensor.shape = {2 * (1 + random_.below(30))};
    return tensor;
  }

  void make_words(std::uint32_t tensor) {
    const unsigned width = word_bytes(catalogue[tensor].dtype);
    const std::vector<WordKind> kinds = word_kinds();
    Bytes before(catalogue[tensor].words * width);
    const std::uint64_t one_in = 1 + random_.below(5);
    const auto word = [&] {
      const WordKind& kind = kinds[random_.below(kinds.size())];
      const bool special = kind.width == width && random_.below(2) == 0;
      return special ? kind.words[random_.below(kind.words.size())] : random_.next();
    };
    for (std::uint64_t i = 0; i < catalogue[tensor].words; ++i) set_word(&before, width, i, word());
    Bytes after = before;
    for (std::uint64_t i = 0; i < catalogue[tensor].words; ++i) {
      if (random_.below(one_in) == 0) set_word(&after, width, i, word());
    }
    old_words.push_back(std::move(before));
    new_words.push_back(std::move(after));
  }

  // Shares of a random dimension; an owner may get nothing.
  void make_boxes(std::uint32_t tensor) {
    Shape shape = contiguous_view(0, catalogue[tensor]).sizes;
    if (shape.empty()) shape = {1};
    const std::size_t dim = random_.below(shape.size());
    std::uint64_t begin = 0;
    for (std::uint32_t owner = 0; owner < owners_; ++owner) {
      const std::uint64_t left = shape[dim] - begin;
      const std::uint64_t size = owner + 1 == owners_ ? left : random_.below(left + 1);
      if (size > 0) boxes[owner].push_back({tensor, part_box(shape, dim, begin, size)});
      begin += size;
    }
  }

  void add_load(TestRank* rank, std::uint32_t tensor, Prng& random) const {
    const TensorView whole = contiguous_view(0, catalogue[tensor]);
    const std::string& name = catalogue[tensor].name;
    TestLoader* const loader = &rank->loader;
    const std::uint64_t choice = random.next();
    const std::uint64_t more = random.next();
    const std::size_t dims = whole.sizes.size();
    const std::size_t dim = dims == 0 ? 0 : choice % dims;
    Shape shape = whole.sizes;
    std::uint64_t begin = 0;
    Style style = styles_[tensor];
    if (dims == 0 && (style == kNarrow || style == kPad)) style = kCopy;
    if (dims < 2 && style == kTranspose) style = kCopy;
    if (style == kNarrow || style == kPad) {
      begin = more % whole.sizes[dim];
      shape[dim] = 1 + (more >> 32) % (whole.sizes[dim] - begin);
    }
    const std::uint64_t part = dims == 0 ? 0 : shape[dim];
    if (style == kPad) shape[dim] += 2;
    if (style == kTranspose) std::swap(shape[0], shape[1]);
    if (style == kNothing) {
      loader->loads[name] = [](const TensorView&, LoaderHook&) -> Result<LoadReport> {
        return LoadReport::kSkipped;
      };
      return;
    }
    const Dtype dtype = style == kCast ? Dtype::kF32 : whole.dtype;
    const TensorView p = loader->add_target(name + ".p", dtype, shape);
    const TensorView q =
        style == kReplicate ? loader->add_target(name + ".q", dtype, shape) : TensorView{};
    loader->loads[name] = [=](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
      switch (style) {
        case kReplicate:
          DCR_TRY(loader->copy(hook, q, value));
          [[fallthrough]];
        case kCopy:
        case kCast:
          DCR_TRY(loader->copy(hook, p, value));
          break;
        case kNarrow:
          DCR_TRY(loader->copy(hook, p, narrow(value, dim, begin, part)));
          break;
        case kPad:
          DCR_TRY(loader->copy(hook, narrow(p, dim, 0, part), narrow(value, dim, begin, part)));
          DCR_TRY(loader->fill(hook, narrow(p, dim, part, 2), 0));
          break;
        case kTranspose: {
          DCR_ASSIGN(const TensorView made, loader->clone(transposed(value)));
          DCR_TRY(loader->copy(hook, p, made));
          break;
        }
        case kDouble: {
          DCR_TRY(loader->copy(hook, p, value));
          DCR_ASSIGN(const TensorView made,
                     loader->temporary(
                         p, [](std::uint64_t word, std::uint64_t) { return doubled_f32(word); }));
          DCR_TRY(loader->copy(hook, p, made));
          break;
        }
        case kNothing:
          break;
      }
      return LoadReport::kLoaded;
    };
  }

  void encode(std::uint32_t tensor, const ItemBox& box, Need need, bool everything,
              std::vector<EncodedItem>* items) {
    const unsigned width = word_bytes(catalogue[tensor].dtype);
    if (everything || need == Need::kDense) {
      items->push_back(whole_item(tensor, width, box, new_words[tensor]));
      return;
    }
    const bool any = need == Need::kAny || need == Need::kSkip;
    const Encoding encoding = any ? kTestEncodings[random_.below(3)] : Encoding::kOverwrite;
    ItemEncoder encoder;
    EncodedItem item;
    if (encode_case(&encoder, {width, box, old_words[tensor], new_words[tensor]}, tensor,
                    choice_of(encoding), &item)) {
      items->push_back(std::move(item));
    }
  }

  void flush(const AttemptHeader& attempt, std::uint32_t owner, std::vector<EncodedItem>* items,
             std::vector<SentPayload>* sent) {
    PayloadHeader header;
    header.run = attempt.run;
    header.attempt = attempt.attempt;
    header.base_version = attempt.base_version;
    header.target_version = attempt.target_version;
    header.owner = owner;
    header.owners = owners_;
    header.number = counts_[owner]++;
    header.schema = catalogue.schema();
    sent->push_back(seal_payload(header, std::move(*items)));
    items->clear();
  }

  Prng random_;
  std::uint32_t owners_ = 1;
  std::uint64_t place_seed_ = 0;
  std::vector<Style> styles_;
  std::vector<std::uint64_t> counts_;
};

}  // namespace dcr
