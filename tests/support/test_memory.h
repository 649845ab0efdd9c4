// The two memories on vectors, for tests of this folder: word by word, checked, nothing clever.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "dcr/ports.h"
#include "layout/canonical_reader.h"
#include "tensor/catalogue.h"
#include "tensor/view.h"

namespace dcr {

class TestMemory final : public SourceMemory, public TargetMemory {
 public:
  TestMemory() = default;
  explicit TestMemory(const std::vector<std::uint64_t>& storage_bytes) {
    for (const std::uint64_t bytes : storage_bytes) storages_[next_++].resize(bytes);
  }

  Bytes& storage(std::uint64_t id) { return storages_.at(id); }
  std::size_t count() const { return storages_.size(); }
  std::uint64_t largest_access() const { return largest_; }

  Status read(const TensorView& view, std::span<std::uint8_t> out) override {
    return each_word(view, out.size(), [&](std::uint8_t* word, std::size_t at, std::size_t width) {
      std::copy_n(word, width, out.data() + at);
    });
  }
  Status write(const TensorView& view, std::span<const std::uint8_t> in) override {
    return each_word(view, in.size(), [&](std::uint8_t* word, std::size_t at, std::size_t width) {
      std::copy_n(in.data() + at, width, word);
    });
  }
  Result<std::uint64_t> storage_bytes(std::uint64_t id) const override {
    if (!storages_.contains(id)) return Status(Code::kNotFound, "no such storage");
    return std::uint64_t{storages_.at(id).size()};
  }
  Status apply(const TargetChanges&, std::span<const std::uint32_t>, const void*, ApplyMode,
               ApplyCounts*) override {
    return Status(Code::kUnsupported, "not in these tests");
  }
  Result<std::uint64_t> allocate(std::uint64_t bytes) override {
    storages_[next_].resize(bytes);
    return next_++;
  }
  Status release(std::uint64_t id) override {
    return storages_.erase(id) == 1 ? Status() : Status(Code::kNotFound, "no such storage");
  }
  Status synchronize() override { return {}; }

 private:
  template <typename Visit>
  Status each_word(const TensorView& view, std::size_t bytes, Visit visit) {
    const auto found = storages_.find(view.storage);
    if (found == storages_.end()) return Status(Code::kNotFound, "no such storage");
    const std::size_t width = word_bytes(view.dtype);
    const std::uint64_t words = view_words(view);
    if (words * width != bytes || view.sizes.size() != view.strides.size()) {
      return Status(Code::kInvalidArgument, "a buffer of another size");
    }
    largest_ = std::max<std::uint64_t>(largest_, bytes);
    for (std::uint64_t i = 0; i < words; ++i) {
      std::uint64_t rest = i;
      std::uint64_t at = view.offset;
      for (std::size_t d = view.sizes.size(); d-- > 0;) {
        at += rest % view.sizes[d] * view.strides[d];
        rest /= view.sizes[d];
      }
      if ((at + 1) * width > found->second.size()) {
        return Status(Code::kInvalidArgument, "the view leaves its storage");
      }
      visit(found->second.data() + at * width, i * width, width);
    }
    return {};
  }

  std::map<std::uint64_t, Bytes> storages_;
  std::uint64_t next_ = 0;
  std::uint64_t largest_ = 0;
};

// Canonical tensors in memory.
class TestCanonical final : public CanonicalReader {
 public:
  explicit TestCanonical(const Catalogue& catalogue) {
    for (const CanonicalTensor& tensor : catalogue.tensors()) {
      widths_.push_back(word_bytes(tensor.dtype));
      tensors.emplace_back(tensor.words * widths_.back());
    }
  }

  Status read(std::uint32_t tensor, std::uint64_t first, std::span<std::uint8_t> out) override {
    const std::uint64_t begin = first * widths_[tensor];
    if (begin + out.size() > tensors[tensor].size()) {
      return Status(Code::kInvalidArgument, "past the tensor's end");
    }
    std::copy_n(tensors[tensor].begin() + static_cast<std::ptrdiff_t>(begin), out.size(),
                out.begin());
    return {};
  }

  std::vector<Bytes> tensors;  // index: in the catalogue

 private:
  std::vector<std::uint64_t> widths_;
};

inline Catalogue test_catalogue(std::vector<CanonicalTensor> tensors) {
  Result<Catalogue> made = Catalogue::make(std::move(tensors));
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? std::move(made).value() : Catalogue();
}

}  // namespace dcr
