#include "receiver/base_check.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/test_memory.h"

namespace dcr {
namespace {

class BaseCheck : public testing::Test {
 public:
  BaseCheck() {
    for (std::size_t t = 0; t < base.tensors.size(); ++t) {
      for (std::size_t i = 0; i < base.tensors[t].size(); ++i) {
        base.tensors[t][i] = static_cast<std::uint8_t>(i * 7 + i / 251 + t);
      }
    }
    for (std::size_t owner = 0; owner < boxes.size(); ++owner) {
      for (const OwnerBox& box : boxes[owner]) digests[owner].push_back(naive(box));
    }
  }

  // Word by word.
  Digest naive(const OwnerBox& box) {
    const std::size_t width = word_bytes(catalogue[box.tensor].dtype);
    Bytes words(static_cast<std::size_t>(box.box.words()) * width);
    for (std::uint64_t i = 0; i < box.box.words(); ++i) {
      std::uint64_t at = box.box.offset;
      std::uint64_t rest = i;
      for (std::size_t d = box.box.dims.size(); d-- > 0;) {
        at += rest % box.box.dims[d].size * box.box.dims[d].stride;
        rest /= box.box.dims[d].size;
      }
      std::memcpy(words.data() + i * width, base.tensors[box.tensor].data() + at * width, width);
    }
    return tensor_digest(words);
  }

  Status check() {
    return check_base(catalogue, boxes, digests,
                      [this](std::uint32_t tensor, std::uint64_t first, MutableByteSpan out) {
                        largest = std::max<std::uint64_t>(largest, out.size());
                        ++reads;
                        return base.read(tensor, first, out);
                      });
  }

  const Catalogue catalogue = test_catalogue({{"columns", Dtype::kBF16, {300, 3000}, 0},
                                              {"range", Dtype::kF32, {1'000'000}, 0},
                                              {"scalar", Dtype::kF64, {}, 0}});
  TestCanonical base{catalogue};
  // Short rows, long rows, single words, more than a leaf in one run, and one word.
  std::vector<std::vector<OwnerBox>> boxes = {
      {{0, {0, {{300, 3000}, {20, 1}}}}, {1, ItemBox::range(0, 700'000)}, {2, {0, {}}}},
      {{0, {20, {{300, 3000}, {2700, 1}}}},
       {0, {2720, {{300, 3000}, {140, 2}}}},
       {0, {2721, {{300, 3000}, {140, 2}}}},
       {1, ItemBox::range(700'000, 300'000)}}};
  std::vector<std::vector<Digest>> digests{2};
  std::uint64_t largest = 0;
  std::uint64_t reads = 0;
};

TEST_F(BaseCheck, TheDigestIsThatOfTheWordsInTheBoxesOrder) {
  const Status same = check();
  EXPECT_TRUE(same.ok()) << same.message();
  EXPECT_LE(largest, kDigestLeafBytes);
  // Strided words are read with what lies between them.
  EXPECT_LE(reads, 300u + 70u);
}

TEST_F(BaseCheck, ABitThatDiffersIsNamed) {
  base.tensors[1][4 * 700'000 + 2] ^= 1;
  const Status differs = check();
  EXPECT_EQ(differs.code(), Code::kMismatch);
  EXPECT_EQ(differs.tensor(), "range");
  EXPECT_EQ(differs.message(),
            "tensor \"range\": the base that was loaded here differs from owner 1's in its box "
            "from word 700000 on; restore, or load the same base");
}

TEST_F(BaseCheck, OwnersAndBoxesAreCounted) {
  digests[0].pop_back();
  EXPECT_EQ(check().message(),
            "owner 0 has digests of 2 boxes of the base, not 3: it was set up from another "
            "catalogue or layout");
  digests.pop_back();
  EXPECT_EQ(check().message(), "digests of the base come from 1 owners, and there are 2");
}

TEST_F(BaseCheck, AnErrorOfTheReaderIsReturned) {
  base.tensors[0].resize(100);
  EXPECT_EQ(check().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace dcr
