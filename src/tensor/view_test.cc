#include "tensor/view.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "tests/support/campaign.h"
#include "tests/support/test_memory.h"

namespace dcr {
namespace {

TEST(View, Contiguous) {
  EXPECT_EQ(contiguous_strides({}), Shape{});
  EXPECT_EQ(contiguous_strides({5}), Shape{1});
  EXPECT_EQ(contiguous_strides({2, 3, 4}), (Shape{12, 4, 1}));
  EXPECT_EQ(contiguous_view(7, Dtype::kF32, {2, 3}),
            (TensorView{7, Dtype::kF32, 0, {2, 3}, {3, 1}}));
  EXPECT_EQ(view_words(contiguous_view(0, Dtype::kF32, {})), 1u);
  EXPECT_EQ(view_words(contiguous_view(0, Dtype::kF32, {3, 0})), 0u);
}

TEST(View, RangesAreTheWordsInOrder) {
  Prng prng(11);
  for (std::uint64_t round = 0; round < campaign_cases(2000); ++round) {
    TensorView view{0, Dtype::kU16, prng.below(5), {}, {}};
    std::uint64_t stride = 1;
    for (std::uint64_t d = prng.below(5); d > 0; --d) {
      view.sizes.insert(view.sizes.begin(), 1 + prng.below(5));
      view.strides.insert(view.strides.begin(), stride);
      stride *= view.sizes.front() + prng.below(3);
    }
    if (view.sizes.size() > 1 && prng.below(2) == 0) {
      std::swap(view.sizes.front(), view.sizes.back());
      std::swap(view.strides.front(), view.strides.back());
    }
    const std::uint64_t words = view_words(view);
    TestMemory memory({2 * (view.offset + stride)});
    for (std::uint8_t& byte : memory.storage(0)) byte = static_cast<std::uint8_t>(prng.next());
    Bytes whole(2 * words);
    ASSERT_TRUE(memory.read(view, whole).ok());
    const std::uint64_t first = prng.below(words + 1);
    const std::uint64_t count = prng.below(words - first + 1);
    Bytes part(2 * count);
    const Status status = read_range(static_cast<SourceMemory&>(memory), view, first, part);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(std::equal(part.begin(), part.end(),
                           whole.begin() + static_cast<std::ptrdiff_t>(2 * first)));
    std::size_t pieces = 0;
    ASSERT_TRUE(for_each_range(view, first, count, [&](const TensorView&) {
                  ++pieces;
                  return Status();
                }).ok());
    EXPECT_LE(pieces, std::max<std::size_t>(1, 2 * view.sizes.size()));
  }
}

TEST(View, RangesStopAtAnError) {
  const TensorView view = contiguous_view(0, Dtype::kU8, {4, 4});
  int calls = 0;
  const Status status = for_each_range(view, 1, 14, [&](const TensorView&) {
    ++calls;
    return Status(Code::kIo, "stop");
  });
  EXPECT_EQ(status.message(), "stop");
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace dcr
