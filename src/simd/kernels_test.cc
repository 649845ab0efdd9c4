// The comparison: every kernel set against the scalar reference, and that against what the header
// says.
#include "simd/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "base/prng.h"
#include "simd/test_guarded_memory.h"
#include "simd/words.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

constexpr unsigned kWidths[] = {1, 2, 4, 8};
constexpr std::uint8_t kGuard = 0xa7;

Encoding encoding_of(std::uint64_t number) {
  constexpr Encoding kAll[] = {Encoding::kOverwrite, Encoding::kXor, Encoding::kAdd};
  return kAll[number % 3];
}

// What a scan gives, and whether it stayed within its outputs.
class ScanOutputs {
 public:
  explicit ScanOutputs(std::size_t words_max)
      : gaps_(words_max + kScanSlackWords + kGuardBytes),
        values_(words_max + kScanSlackWords + kGuardBytes) {}

  // Runs a scan of `box` and keeps what it gives. Guard bytes lie behind the room that the contract
  // asks for.
  void scan(const Kernels& set, unsigned width, Encoding encoding, const ScanBox& box,
            std::uint64_t unchanged_before) {
    const std::size_t room = static_cast<std::size_t>(box.rows * box.row_words) + kScanSlackWords;
    std::uint8_t* const gap_guard = reinterpret_cast<std::uint8_t*>(gaps_.data() + room);
    std::uint8_t* const value_guard = bytes() + room * width;
    std::memset(gap_guard, kGuard, kGuardBytes);
    std::memset(value_guard, kGuard, kGuardBytes);
    unchanged = unchanged_before;
    width_ = width;
    count = set.scan_changes(width, encoding, box, &unchanged, gaps_.data(), values_.data());
    stayed_within = guard_is_whole(gap_guard) && guard_is_whole(value_guard);
  }

  bool operator==(const ScanOutputs& other) const {
    return count == other.count && unchanged == other.unchanged && stayed_within &&
           std::memcmp(gaps_.data(), other.gaps_.data(), count * sizeof(std::uint32_t)) == 0 &&
           std::memcmp(values_.data(), other.values_.data(), count * width_) == 0;
  }

  std::uint32_t gap(std::size_t i) const { return gaps_[i]; }
  std::uint64_t value(std::size_t i) const {
    std::uint64_t word = 0;
    std::memcpy(&word, reinterpret_cast<const std::uint8_t*>(values_.data()) + i * width_, width_);
    return word;
  }

  std::size_t count = 0;
  std::uint64_t unchanged = 0;
  bool stayed_within = false;

 private:
  static constexpr std::size_t kGuardBytes = 16;

  static bool guard_is_whole(const std::uint8_t* guard) {
    std::uint8_t whole[kGuardBytes];
    std::memset(whole, kGuard, kGuardBytes);
    return std::memcmp(guard, whole, kGuardBytes) == 0;
  }
  std::uint8_t* bytes() { return reinterpret_cast<std::uint8_t*>(values_.data()); }

  unsigned width_ = 1;
  std::vector<std::uint32_t> gaps_;
  std::vector<std::uint64_t> values_;
};

std::string describe(const Kernels& set, unsigned width, const ScanBox& box) {
  return std::string(set.name) + ", width " + std::to_string(width) + ", " +
         std::to_string(box.rows) + " rows of " + std::to_string(box.row_words);
}

ScanBox one_row(const std::uint8_t* old_words, const std::uint8_t* new_words, std::uint64_t words) {
  return {old_words, new_words, 1, words, 0, 0};
}

Bytes random_bytes(std::size_t count, Prng* random) {
  Bytes bytes(count);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random->next() >> 56);
  return bytes;
}

// Changes one word, in one of its bits or in all of them.
void change_word(std::uint8_t* word, unsigned width, std::uint64_t how) {
  const unsigned bit = static_cast<unsigned>(how % (8 * width + 1));
  if (bit == 8 * width) {
    for (unsigned i = 0; i < width; ++i) word[i] = static_cast<std::uint8_t>(~word[i]);
  } else {
    word[bit / 8] = static_cast<std::uint8_t>(word[bit / 8] ^ 1u << (bit % 8));
  }
}

std::uint64_t expected_value(Encoding encoding, unsigned width, const std::uint8_t* old_word,
                             const std::uint8_t* new_word) {
  return for_width(width, [&]<typename Word>(Word) {
    return static_cast<std::uint64_t>(
        encode_word(encoding, load_word<Word>(old_word, 0), load_word<Word>(new_word, 0)));
  });
}

TEST(Scan, ReferenceOnAKnownBox) {
  // Two rows of three 16-bit words, 8 and 10 bytes apart.
  const std::uint16_t old_words[] = {10, 20, 30, 0xeeee, 40, 50, 60};
  const std::uint16_t new_words[] = {10, 21, 30, 0xdddd, 0xcccc, 39, 50, 0};
  const ScanBox box = {reinterpret_cast<const std::uint8_t*>(old_words),
                       reinterpret_cast<const std::uint8_t*>(new_words),
                       2,
                       3,
                       8,
                       10};
  ScanOutputs out(6);
  out.scan(scalar_kernels(), 2, Encoding::kAdd, box, 7);
  ASSERT_EQ(out.count, 3u);
  EXPECT_EQ(out.gap(0), 8u);  // 7 before the box and one in it
  EXPECT_EQ(out.gap(1), 1u);
  EXPECT_EQ(out.gap(2), 1u);
  EXPECT_EQ(out.value(0), 1u);    // +1
  EXPECT_EQ(out.value(1), 0u);    // −1
  EXPECT_EQ(out.value(2), 118u);  // −60
  EXPECT_EQ(out.unchanged, 0u);
  out.scan(scalar_kernels(), 2, Encoding::kXor, box, 0);
  EXPECT_EQ(out.value(1), (40u ^ 39u) - 1);
  out.scan(scalar_kernels(), 2, Encoding::kOverwrite, box, 0);
  EXPECT_EQ(out.value(2), 0u);
  EXPECT_EQ(scalar_kernels().count_changes(2, box), 3u);
}

// Every length with every single changed position, each at one alignment of 0 to 63. Among all
// lengths and positions, each alignment meets every length from 64 on and every position up to 960.
void check_single_changes(const Kernels& set, unsigned width) {
  constexpr std::size_t kLengthMax = 1024;
  Prng random(width);
  const Bytes old_pool = random_bytes(kLengthMax * width + 64, &random);
  Bytes new_pool = old_pool;
  ScanOutputs out(kLengthMax);
  constexpr std::size_t kThin = DCR_CAMPAIGN;
  for (std::size_t length = 0; length <= kLengthMax; ++length) {
    for (std::size_t at = length % kThin; at < length; at += kThin) {
      const std::size_t alignment = (length + at) % 64;
      const std::uint8_t* const old_words = old_pool.data() + alignment;
      std::uint8_t* const new_words = new_pool.data() + alignment;
      const Encoding encoding = encoding_of(length / 64 + at);
      change_word(new_words + at * width, width, length * 7 + at);
      out.scan(set, width, encoding, one_row(old_words, new_words, length), 0);
      ASSERT_TRUE(out.stayed_within && out.count == 1 && out.gap(0) == at &&
                  out.unchanged == length - at - 1)
          << set.name << " width " << width << " length " << length << " position " << at;
      ASSERT_EQ(out.value(0),
                expected_value(encoding, width, old_words + at * width, new_words + at * width))
          << set.name << " width " << width << " length " << length << " position " << at;
      std::memcpy(new_words + at * width, old_words + at * width, width);
    }
    out.scan(set, width, Encoding::kAdd, one_row(old_pool.data(), new_pool.data(), length), 5);
    ASSERT_TRUE(out.stayed_within && out.count == 0 && out.unchanged == length + 5);
  }
}

TEST(Scan, EverySingleChangedPositionOfEveryLength) {
  for (const Kernels* set : supported_kernels()) {
    for (const unsigned width : kWidths) ASSERT_NO_FATAL_FAILURE(check_single_changes(*set, width));
  }
}

// Every alignment with every length, changes at random; the second input is aligned alike or not.
void check_alignments(unsigned width, bool alike) {
  constexpr std::size_t kLengthMax = 1024;
  Prng random(100 + width);
  const std::vector<const Kernels*> sets = supported_kernels();
  const Bytes old_pool = random_bytes(kLengthMax * width + 64, &random);
  Bytes new_pool(old_pool.size() + 64);
  ScanOutputs expected(kLengthMax);
  ScanOutputs out(kLengthMax);
  for (std::size_t alignment = 0; alignment < 64; ++alignment) {
    const std::size_t other = alike ? alignment : (alignment * 29 + 13) % 64;
    const std::uint8_t* const old_words = old_pool.data() + alignment;
    std::uint8_t* const new_words = new_pool.data() + other;
    std::memcpy(new_words, old_words, kLengthMax * width);
    for (std::size_t at = random.below(40); at < kLengthMax;
         at += 1 + random.below(alignment + 2)) {
      change_word(new_words + at * width, width, random.next());
    }
    const std::size_t step = DCR_CAMPAIGN == 1 ? 1 : 7;
    for (std::size_t length = alignment % step; length <= kLengthMax; length += step) {
      const ScanBox box = one_row(old_words, new_words, length);
      const Encoding encoding = encoding_of(length + alignment);
      expected.scan(scalar_kernels(), width, encoding, box, alignment);
      for (const Kernels* set : sets) {
        out.scan(*set, width, encoding, box, alignment);
        ASSERT_TRUE(out == expected)
            << describe(*set, width, box) << " at " << alignment << " and " << other;
        ASSERT_EQ(set->count_changes(width, box), expected.count) << describe(*set, width, box);
      }
    }
  }
}

TEST(Scan, EveryAlignmentOfEveryLengthAlike) {
  for (const unsigned width : kWidths) ASSERT_NO_FATAL_FAILURE(check_alignments(width, true));
}

TEST(Scan, EveryAlignmentOfEveryLengthDiffering) {
  for (const unsigned width : kWidths) ASSERT_NO_FATAL_FAILURE(check_alignments(width, false));
}

// Rows in memory: old at its own distance, new at another, equal but for what a case changes.
struct Rows {
  ScanBox box;
  unsigned width;
  std::uint8_t* new_words;

  std::uint8_t* new_word(std::uint64_t row, std::uint64_t i) const {
    return new_words + row * box.new_row_stride_bytes + i * width;
  }
};

Rows make_rows(const std::uint8_t* old_words, std::uint8_t* new_words, unsigned width,
               std::uint64_t rows, std::uint64_t row_words, std::uint64_t old_pad,
               std::uint64_t new_pad) {
  const std::uint64_t row_bytes = row_words * width;
  const ScanBox box = {old_words, new_words,           rows,
                       row_words, row_bytes + old_pad, row_bytes + new_pad};
  for (std::uint64_t row = 0; row < rows; ++row) {
    std::memcpy(new_words + row * box.new_row_stride_bytes,
                old_words + row * box.old_row_stride_bytes, static_cast<std::size_t>(row_bytes));
  }
  return {box, width, new_words};
}

TEST(Scan, StridedBoxesOfAllSmallShapes) {
  Prng random(7);
  const std::vector<const Kernels*> sets = supported_kernels();
  const Bytes old_pool = random_bytes(20000, &random);
  Bytes new_pool(old_pool.size());
  ScanOutputs expected(2000);
  ScanOutputs out(2000);
  for (const unsigned width : kWidths) {
    for (std::uint64_t rows = 0; rows <= 5; ++rows) {
      for (std::uint64_t row_words = 0; row_words <= 140; ++row_words) {
        const Rows made = make_rows(old_pool.data() + rows, new_pool.data() + row_words % 9, width,
                                    rows, row_words, row_words % 13, rows * 3);
        for (std::uint64_t i = 0; i < rows * row_words; i += 1 + random.below(row_words + 1)) {
          change_word(made.new_word(i / row_words, i % row_words), width, random.next());
        }
        const Encoding encoding = encoding_of(row_words);
        expected.scan(scalar_kernels(), width, encoding, made.box, row_words);
        for (const Kernels* set : sets) {
          out.scan(*set, width, encoding, made.box, row_words);
          ASSERT_TRUE(out == expected) << describe(*set, width, made.box);
          ASSERT_EQ(set->count_changes(width, made.box), expected.count);
        }
      }
    }
  }
}

// A row scanned in pieces, each call going on where the last one stopped, gives the row's changes.
TEST(Scan, UnchangedIsCarriedOverCalls) {
  constexpr std::size_t kWords = 3000;
  Prng random(8);
  for (const unsigned width : kWidths) {
    const Bytes old_words = random_bytes(kWords * width, &random);
    Bytes new_words = old_words;
    for (std::size_t at = 0; at < kWords; at += 1 + random.below(300)) {
      change_word(new_words.data() + at * width, width, random.next());
    }
    ScanOutputs whole(kWords);
    whole.scan(scalar_kernels(), width, Encoding::kXor,
               one_row(old_words.data(), new_words.data(), kWords), 0);
    for (const Kernels* set : supported_kernels()) {
      for (unsigned round = 0; round < 20; ++round) {
        std::vector<std::uint32_t> gaps(kWords + kScanSlackWords);
        std::vector<std::uint64_t> values(kWords + kScanSlackWords);
        std::uint64_t unchanged = 0;
        std::size_t count = 0;
        for (std::size_t done = 0; done < kWords;) {
          const std::size_t part = std::min<std::size_t>(random.below(400), kWords - done);
          count += set->scan_changes(
              width, Encoding::kXor,
              one_row(old_words.data() + done * width, new_words.data() + done * width, part),
              &unchanged, gaps.data() + count,
              reinterpret_cast<std::uint8_t*>(values.data()) + count * width);
          done += part;
        }
        ASSERT_EQ(count, whole.count) << set->name;
        ASSERT_EQ(unchanged, whole.unchanged) << set->name;
        for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(gaps[i], whole.gap(i)) << set->name;
      }
    }
  }
}

// Input that ends, or begins, where memory does: rows of the last word before a page that may not
// be read, at every length; the same with the first.
TEST(Scan, ReadsNothingOutsideItsInput) {
  constexpr std::size_t kLengthMax = 600;
  GuardedMemory old_memory(kLengthMax * 8);
  GuardedMemory new_memory(kLengthMax * 8);
  Prng random(9);
  for (std::uint8_t* byte = old_memory.begin(); byte != old_memory.end(); ++byte) {
    *byte = static_cast<std::uint8_t>(random.next());
  }
  ScanOutputs expected(kLengthMax);
  ScanOutputs out(kLengthMax);
  for (const unsigned width : kWidths) {
    for (std::size_t length = 0; length <= kLengthMax; ++length) {
      for (const bool at_end : {false, true}) {
        const std::size_t bytes = length * width;
        const std::uint8_t* old_words = at_end ? old_memory.end() - bytes : old_memory.begin();
        std::uint8_t* new_words = at_end ? new_memory.end() - bytes : new_memory.begin();
        std::copy_n(old_words, bytes, new_words);
        for (std::size_t at = random.below(length + 1); at < length; at += 1 + random.below(50)) {
          change_word(new_words + at * width, width, random.next());
        }
        const ScanBox box = one_row(old_words, new_words, length);
        expected.scan(scalar_kernels(), width, Encoding::kAdd, box, 0);
        for (const Kernels* set : supported_kernels()) {
          out.scan(*set, width, Encoding::kAdd, box, 0);
          ASSERT_TRUE(out == expected) << describe(*set, width, box);
          ASSERT_EQ(set->count_changes(width, box), expected.count) << describe(*set, width, box);
        }
      }
    }
  }
}

// How many of a case's words change: none, one, few, half, nearly all or all.
std::uint64_t random_step(Prng* random) {
  constexpr std::uint64_t kSteps[] = {0, 1000, 30, 6, 3, 2, 1, 1};
  return kSteps[random->below(8)];
}

// One case: a small box of its own shape, strides, alignments, density and encoding, scanned by the
// reference, by the best kernel set and by one of the others in turn. Seven in eight have one row
// below 64 words, the others up to four rows of up to 200.
class RandomCases {
 public:
  explicit RandomCases(unsigned width)
      : width_(width), random_(1000 + width), old_pool_(random_bytes(kPoolBytes, &random_)) {}

  void run(std::uint64_t cases) {
    for (std::uint64_t i = 0; i < cases; ++i) {
      const Rows made = next_box();
      const Encoding encoding = encoding_of(random_.next());
      const std::uint64_t before = random_.below(2) * random_.below(1 << 20);
      expected_.scan(scalar_kernels(), width_, encoding, made.box, before);
      // The best set every time, of the others one after another.
      check(*vector_sets_[0], encoding, made, before, i);
      if (vector_sets_.size() > 1) {
        check(*vector_sets_[1 + i % (vector_sets_.size() - 1)], encoding, made, before, i);
      }
      const Kernels* const counting = vector_sets_[i % vector_sets_.size()];
      ASSERT_EQ(counting->count_changes(width_, made.box), expected_.count)
          << describe(*counting, width_, made.box) << ", case " << i;
    }
  }

 private:
  void check(const Kernels& set, Encoding encoding, const Rows& made, std::uint64_t before,
             std::uint64_t number) {
    out_.scan(set, width_, encoding, made.box, before);
    ASSERT_TRUE(out_ == expected_) << describe(set, width_, made.box) << ", case " << number;
  }

  static constexpr std::size_t kPoolBytes = 4 * 200 * 8 + 4 * 64 + 128;

  Rows next_box() {
    const bool small = random_.below(8) != 0;
    const std::uint64_t rows = small ? 1 : 1 + random_.below(4);
    const std::uint64_t row_words = random_.below(small ? 64 : 200);
    const Rows made = make_rows(old_pool_.data() + random_.below(64),
                                new_pool_.data() + random_.below(64), width_, rows, row_words,
                                small ? 0 : random_.below(64), small ? 0 : random_.below(64));
    const std::uint64_t step = random_step(&random_);
    if (step == 0) return made;
    for (std::uint64_t row = 0; row < rows; ++row) {
      for (std::uint64_t at = random_.below(step); at < row_words; at += 1 + random_.below(step)) {
        change_word(made.new_word(row, at), width_, random_.next());
      }
    }
    return made;
  }

  unsigned width_;
  Prng random_;
  Bytes old_pool_;
  Bytes new_pool_ = Bytes(kPoolBytes);
  ScanOutputs expected_ = ScanOutputs(800);
  ScanOutputs out_ = ScanOutputs(800);
  std::vector<const Kernels*> vector_sets_ = [] {
    std::vector<const Kernels*> sets = supported_kernels();
    sets.erase(sets.begin());
    return sets;
  }();
};

TEST(Scan, TenMillionRandomCasesPerWidth) {
  for (const unsigned width : kWidths) {
    std::printf("seed %u: %llu random cases of width %u\n", 1000 + width,
                static_cast<unsigned long long>(campaign_cases(10'000'000)), width);
    RandomCases cases(width);
    ASSERT_NO_FATAL_FAILURE(cases.run(campaign_cases(10'000'000)));
  }
}

}  // namespace
}  // namespace dcr
