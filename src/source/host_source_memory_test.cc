#include "source/host_source_memory.h"

#include <gtest/gtest.h>

#include "base/limits.h"
#include "base/prng.h"
#include "source/test_owner_refit.h"
#include "tests/support/campaign.h"
#include "tests/support/memory_file_system.h"

namespace dcr {
namespace {

// The view's words one by one, by the definition.
Bytes words_of(const Bytes& storage, const TensorView& view) {
  Bytes out;
  const std::size_t width = word_bytes(view.dtype);
  for (const std::uint64_t size : view.sizes) {
    if (size == 0) return out;
  }
  Shape index(view.sizes.size(), 0);
  while (true) {
    std::uint64_t word = view.offset;
    for (std::size_t i = 0; i < index.size(); ++i) word += index[i] * view.strides[i];
    const auto first = storage.begin() + static_cast<std::ptrdiff_t>(word * width);
    out.insert(out.end(), first, first + static_cast<std::ptrdiff_t>(width));
    std::size_t at = index.size();
    while (at > 0 && ++index[at - 1] == view.sizes[at - 1]) index[--at] = 0;
    if (at == 0) return out;
  }
}

class HostSourceMemoryTest : public testing::Test {
 protected:
  // The same bytes in a buffer and in the middle of a file.
  void make(Bytes bytes) {
    bytes_ = std::move(bytes);
    Bytes whole(77, 0xee);
    whole.insert(whole.end(), bytes_.begin(), bytes_.end());
    whole.insert(whole.end(), 33, 0xee);
    Result<std::unique_ptr<File>> created = files_.create("weights", 0666);
    ASSERT_TRUE(created.ok());
    file_ = std::move(created).value();
    ASSERT_TRUE(file_->write(0, whole).ok());
    EXPECT_EQ(memory_.add(bytes_), 0u);
    EXPECT_EQ(memory_.add_file(*file_, 77, bytes_.size()), 1u);
  }

  void expect_equal(TensorView view) {
    const Bytes expected = words_of(bytes_, view);
    for (const std::uint64_t storage : {0u, 1u}) {
      view.storage = storage;
      Bytes out(expected.size(), 0xa5);
      const Status status = memory_.read(view, out);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(out == expected) << "storage " << storage;
    }
  }

  void expect_error(const TensorView& view, std::size_t out_bytes, const std::string& message) {
    Bytes out(out_bytes);
    const Status status = memory_.read(view, out);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.message(), message);
  }

  Bytes bytes_;
  MemoryFileSystem files_;
  std::unique_ptr<File> file_;
  HostSourceMemory memory_;
};

TEST_F(HostSourceMemoryTest, RandomViews) {
  Prng prng(3);
  make(random_bytes(&prng, 100'000));
  for (std::uint64_t i = 0; i < campaign_cases(3000); ++i) {
    TensorView view;
    view.dtype = std::array{Dtype::kU8, Dtype::kBF16, Dtype::kF32, Dtype::kF64}[prng.below(4)];
    const std::uint64_t words = bytes_.size() / word_bytes(view.dtype);
    std::uint64_t left = words - 1;
    view.offset = prng.below(left / 2);
    left -= view.offset;
    std::uint64_t count = 1;
    for (std::uint64_t rank = prng.below(5); rank > 0; --rank) {
      const std::uint64_t size = prng.below(30);
      const std::uint64_t most = size < 2 ? 1000 : left / (size - 1);
      const std::uint64_t stride =
          prng.below(2) == 0 ? std::min<std::uint64_t>(most, 1) : prng.below(most + 1);
      if (count * std::max<std::uint64_t>(size, 1) > 20'000) break;
      count *= std::max<std::uint64_t>(size, 1);
      if (size > 0) left -= (size - 1) * stride;
      view.sizes.push_back(size);
      view.strides.push_back(stride);
    }
    expect_equal(view);
  }
}

// Rows as tensor-parallel shards have them: long and short, near and far apart, transposed.
TEST_F(HostSourceMemoryTest, Rows) {
  Prng prng(4);
  make(random_bytes(&prng, 3 << 20));
  const std::uint64_t words = bytes_.size() / 2;
  expect_equal({0, Dtype::kBF16, 0, {words}, {1}});
  expect_equal({0, Dtype::kBF16, 5, {100, 4000}, {8000, 1}});
  expect_equal({0, Dtype::kBF16, 5, {700, 100}, {2000, 1}});
  expect_equal({0, Dtype::kBF16, 0, {1024, 1024}, {1, 1024}});
  expect_equal({0, Dtype::kBF16, 0, {5, 3}, {300'000, 100'000}});
  expect_equal({0, Dtype::kBF16, 7, {4, 100, 10}, {300'000, 1000, 1}});
  expect_equal({0, Dtype::kBF16, words - 1, {}, {}});
  expect_equal({0, Dtype::kBF16, words, {0, 4}, {1, 1}});
  expect_equal({0, Dtype::kBF16, 3, {4, 5}, {0, 1}});
}

TEST_F(HostSourceMemoryTest, Errors) {
  make(Bytes(100));
  expect_error({2, Dtype::kU8, 0, {1}, {1}}, 1, "source memory: there is no storage 2");
  expect_error({0, Dtype::kF4, 0, {1}, {1}}, 1, "source memory: F4 is viewed as U8");
  expect_error({0, Dtype::kU8, 0, {1}, {}}, 1, "source memory: a view of 1 sizes and 0 strides");
  expect_error({0, Dtype::kU8, 0, Shape(9, 1), Shape(9, 1)}, 1,
               "source memory: a view of 9 sizes and 9 strides");
  expect_error({1, Dtype::kF32, 1, {25}, {1}}, 100,
               "source memory: a view reaches word 25 of storage 1, which has 25");
  expect_error({0, Dtype::kBF16, 0, {3}, {1}}, 5,
               "source memory: a view of 3 words of 2 bytes into 5 bytes");
  const std::uint64_t huge = std::uint64_t{1} << 63;
  expect_error(
      {0, Dtype::kU8, 0, {3, 2}, {1, huge}}, 6,
      "source memory: a view reaches word 9223372036854775810 of storage 0, which has 100");
  expect_error({0, Dtype::kU8, 0, {3}, {huge}}, 3, "source memory: a view that overflows");
  expect_error({0, Dtype::kU8, 0, {huge, 4}, {0, 0}}, 3, "source memory: a view that overflows");
}

}  // namespace
}  // namespace dcr
