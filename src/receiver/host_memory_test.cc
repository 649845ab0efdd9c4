#include "receiver/host_memory.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "codec/test_items.h"
#include "receiver/grid.h"
#include "receiver/views.h"
#include "simd/words.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

// A grid whose windows lie in a storage, with gaps between rows.
TargetChanges random_target(Prng& random, std::uint64_t* words) {
  TargetChanges target;
  const std::uint64_t rank = random.below(4);
  std::uint64_t stride = 1 + random.below(2);
  std::uint64_t last = 0;
  for (std::uint64_t i = 0; i < rank; ++i) {
    TargetChanges::Dimension dim;
    dim.size = 1 + random.below(random.below(4) == 0 ? 300 : 12);
    dim.begin = random.below(dim.size + 1);
    dim.end = dim.begin + random.below(dim.size - dim.begin + 1);
    dim.stride = stride;
    const std::uint64_t extent = dim.end - dim.begin;
    stride *= extent + random.below(3) + (extent == 0 ? 1 : 0);
    if (extent > 0) last += (extent - 1) * dim.stride;
    target.dims.insert(target.dims.begin(), dim);
  }
  target.first = random.below(20);
  target.offset = random.below(10);
  *words = target.offset + last + 1 + random.below(5);
  return target;
}

// The word of a position, by its digits.
std::optional<std::uint64_t> word_of(const TargetChanges& target, std::uint64_t position) {
  std::uint64_t index = position + target.first;
  std::uint64_t word = target.offset;
  for (std::size_t i = target.dims.size(); i-- > 0;) {
    const TargetChanges::Dimension& dim = target.dims[i];
    const std::uint64_t digit = i == 0 ? index : index % dim.size;
    index /= dim.size;
    if (digit < dim.begin || digit >= dim.end) return std::nullopt;
    word += (digit - dim.begin) * dim.stride;
  }
  if (target.dims.empty() && index != 0) return std::nullopt;
  return word;
}

std::vector<std::uint32_t> random_positions(Prng& random, std::uint64_t words) {
  std::vector<std::uint32_t> positions;
  const std::uint64_t one_in = 1 + random.below(1 + random.below(12));
  for (std::uint32_t i = 0; i < words; ++i) {
    if (random.below(one_in) == 0) positions.push_back(i);
  }
  return positions;
}

TEST(HostMemoryTest, AppliesAsTheDigitsSay) {
  for (std::uint64_t seed = 0; seed < campaign_cases(20'000); ++seed) {
    Prng random(seed);
    std::uint64_t words = 0;
    TargetChanges target = random_target(random, &words);
    target.width = static_cast<std::uint8_t>(kTestWidths[random.below(4)]);
    target.encoding = kTestEncodings[random.below(3)];
    const ApplyMode mode = random.below(3) == 0 ? ApplyMode::kVerify : ApplyMode::kWrite;
    if (mode == ApplyMode::kVerify) target.encoding = Encoding::kOverwrite;
    std::uint64_t grid = 1;
    for (const TargetChanges::Dimension& dim : target.dims) grid *= dim.size;
    const std::vector<std::uint32_t> positions =
        random_positions(random, std::min<std::uint64_t>(grid + 5, 5000));
    Bytes values(positions.size() * target.width);
    for (std::uint8_t& byte : values) byte = static_cast<std::uint8_t>(random.below(3));
    HostMemory memory(0);
    // Around it lie others' bytes.
    Bytes wanted(words * target.width + 16);
    for (std::uint8_t& byte : wanted) byte = static_cast<std::uint8_t>(random.below(3));
    Bytes resident = wanted;
    memory.add(MutableByteSpan(resident).subspan(8, words * target.width));
    ApplyCounts counts, expected;
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const auto word = word_of(target, positions[i]);
      if (!word) continue;
      ++expected.words;
      for_width(target.width, [&]<typename Word>(Word) {
        std::uint8_t* at = wanted.data() + 8;
        const Word old_word = load_word<Word>(at, *word);
        const Word value = load_word<Word>(values.data(), i);
        if (mode == ApplyMode::kVerify) {
          expected.different += old_word != value ? 1u : 0u;
        } else {
          store_word(at, *word, decode_word(target.encoding, old_word, value));
        }
      });
    }
    const Status status = memory.apply(target, positions, values.data(), mode, &counts);
    ASSERT_TRUE(status.ok()) << status.message() << " seed " << seed;
    ASSERT_EQ(resident, wanted) << "seed " << seed;
    ASSERT_EQ(counts.words, expected.words) << "seed " << seed;
    ASSERT_EQ(counts.different, expected.different) << "seed " << seed;
  }
}

// Rows with many changes, where windows are sought.
TEST(HostMemoryTest, WindowsOfLongRows) {
  for (std::uint64_t seed = 0; seed < campaign_cases(300); ++seed) {
    Prng random(seed);
    TargetChanges target;
    target.width = 4;
    const std::uint64_t rows = 1 + random.below(40);
    const std::uint64_t columns = 1 + random.below(2000);
    const std::uint64_t begin = random.below(columns);
    const std::uint64_t end = begin + 1 + random.below(columns - begin);
    target.first = random.below(2) == 0 ? 0 : random.below(columns);
    target.dims = {{rows, end - begin, 0, rows}, {columns, 1, begin, end}};
    std::vector<std::uint32_t> positions;
    std::uint64_t one_in = 1;
    for (std::uint32_t i = 0; i + target.first < rows * columns; ++i) {
      if (i % 3000 == 0) one_in = 1 + random.below(40);
      if (random.below(one_in) == 0) positions.push_back(i);
    }
    std::vector<std::uint32_t> values(positions.size());
    for (std::uint32_t& value : values) value = static_cast<std::uint32_t>(random.next());
    std::vector<std::uint32_t> wanted(rows * (end - begin), 7);
    std::uint64_t hits = 0;
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const auto word = word_of(target, positions[i]);
      if (word) wanted[*word] = values[i];
      hits += word ? 1u : 0u;
    }
    std::vector<std::uint32_t> resident(wanted.size(), 7);
    HostMemory memory(0);
    memory.add({reinterpret_cast<std::uint8_t*>(resident.data()), resident.size() * 4});
    ApplyCounts counts;
    ASSERT_TRUE(memory.apply(target, positions, values.data(), ApplyMode::kWrite, &counts).ok());
    ASSERT_EQ(resident, wanted) << "seed " << seed;
    ASSERT_EQ(counts.words, hits) << "seed " << seed;
  }
}

TEST(HostMemoryTest, RefusesTargetsThatLeaveTheirStorage) {
  HostMemory memory(0);
  memory.add(64);
  const std::uint32_t position = 0;
  const std::uint64_t value = 0;
  const auto message = [&](const TargetChanges& target) {
    ApplyCounts counts;
    return memory.apply(target, {&position, 1}, &value, ApplyMode::kWrite, &counts).message();
  };
  TargetChanges target;
  target.width = 2;
  target.dims = {{33, 1, 0, 33}};
  EXPECT_EQ(message(target), "target of changes: a word past the end of storage 0 of 64 bytes");
  target.dims[0].end = 32;
  EXPECT_EQ(message(target), "");
  target.offset = ~std::uint64_t{0};
  EXPECT_EQ(message(target), "target of changes: a word past the end of storage 0 of 64 bytes");
  target.offset = 0;
  target.dims[0].stride = ~std::uint64_t{0} / 2;
  EXPECT_EQ(message(target), "target of changes: a word past the end of storage 0 of 64 bytes");
  target.dims = {{4, 1, 2, 5}};
  EXPECT_EQ(message(target), "target of changes: a window leaves its dimension");
  target.dims = {{kGridSizeMax, 1, 0, 1}};
  EXPECT_EQ(message(target), "target of changes: the grid is empty or above 2147483648");
  target.dims = {{0, 1, 0, 0}};
  EXPECT_EQ(message(target), "target of changes: the grid is empty or above 2147483648");
  target.dims = {{4, 1, 0, 4}};
  target.first = kGridSizeMax;
  EXPECT_EQ(message(target), "target of changes: the first grid index is out of range");
  target.first = kGridSizeMax - 1;
  EXPECT_EQ(message(target), "");
  target.first = 0;
  target.width = 3;
  EXPECT_EQ(message(target), "target of changes: words of 3 bytes");
  target.width = 2;
  target.storage = 9;
  EXPECT_EQ(message(target), "there is no storage 9");
  target.storage = 0;
  ApplyCounts counts;
  const std::uint32_t far = 0x80000000;
  EXPECT_EQ(memory.apply(target, {&far, 1}, &value, ApplyMode::kWrite, &counts).message(),
            "target of changes: a position is out of range");
  target.encoding = Encoding::kXor;
  EXPECT_EQ(memory.apply(target, {&position, 1}, &value, ApplyMode::kVerify, &counts).message(),
            "only overwrites can be verified");
  EXPECT_EQ(memory.bytes(0)[0], 0);
}

TEST(HostMemoryTest, ReadsAndWritesViews) {
  for (std::uint64_t seed = 0; seed < campaign_cases(2000); ++seed) {
    Prng random(seed);
    TensorView view{0, Dtype::kU8, random.below(5), {}, {}};
    static constexpr Dtype kDtypes[] = {Dtype::kU8, Dtype::kBF16, Dtype::kF32, Dtype::kF64};
    view.dtype = kDtypes[random.below(4)];
    const unsigned width = word_bytes(view.dtype);
    std::uint64_t stride = 1;
    std::uint64_t last = view.offset;
    for (std::uint64_t rank = random.below(4); rank > 0; --rank) {
      const std::uint64_t size = 1 + random.below(5);
      view.sizes.push_back(size);
      view.strides.push_back(stride);
      last += (size - 1) * stride;
      stride *= size + random.below(2);
    }
    HostMemory memory(0);
    memory.add((last + 1) * width);
    Bytes in(view_words(view) * width);
    for (std::uint8_t& byte : in) byte = static_cast<std::uint8_t>(random.next() | 1);
    ASSERT_TRUE(memory.write(view, in).ok());
    Bytes out(in.size());
    ASSERT_TRUE(memory.read(view, out).ok());
    ASSERT_EQ(in, out);
    // Block by block too, and nothing else was written.
    std::uint64_t nonzero = 0;
    for (const std::uint8_t byte : memory.bytes(0)) nonzero += byte != 0 ? 1u : 0u;
    ASSERT_EQ(nonzero, in.size());
    view.offset += 1;
    ASSERT_EQ(memory.read(view, out).message(), "a view of storage 0 leaves it");
  }
  HostMemory memory(0);
  memory.add(8);
  Bytes buffer(8);
  EXPECT_EQ(memory.read({0, Dtype::kU8, 0, {4}, {1}}, buffer).message(),
            "a view of storage 0 has another size than its buffer");
  EXPECT_EQ(memory.read({0, Dtype::kU8, 0, {8}, {}}, buffer).message(),
            "a view of storage 0 leaves it");
  EXPECT_EQ(memory.write({1, Dtype::kU8, 0, {8}, {1}}, buffer).message(), "there is no storage 1");
}

TEST(HostMemoryTest, CountsScratch) {
  HostMemory memory(100);
  memory.add(1000);
  const std::uint64_t first = memory.allocate(60).value();
  EXPECT_EQ(memory.bytes(first)[59], 0);
  EXPECT_EQ(memory.allocate(41).status().message(),
            "scratch of 41 bytes beside the 60 in use is above the limit of 100");
  EXPECT_EQ(memory.allocate(~std::uint64_t{0}).status().code(), Code::kTooLarge);
  const std::uint64_t second = memory.allocate(40).value();
  EXPECT_TRUE(memory.release(first).ok());
  EXPECT_EQ(memory.scratch_bytes(), 40u);
  EXPECT_EQ(memory.scratch_bytes_peak(), 100u);
  EXPECT_EQ(memory.release(first).message(), "there is no scratch storage 1");
  EXPECT_EQ(memory.release(0).message(), "there is no scratch storage 0");
  EXPECT_TRUE(memory.release(second).ok());
}

}  // namespace
}  // namespace dcr
