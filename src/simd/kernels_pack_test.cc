// Packing and unpacking what the streams hold: every kernel set against the scalar reference, and
// that against what the header says.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "base/prng.h"
#include "simd/kernels.h"
#include "simd/test_guarded_memory.h"
#include "simd/words.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

constexpr unsigned kPackWidths[] = {1, 2, 4, 8};
constexpr unsigned kSymbolBits[] = {2, 4, 8};
constexpr std::uint8_t kPackGuard = 0xa7;
constexpr std::size_t kGuardBytes = 64;

// All lengths up to 300, and those around the blocks of 1,024 that kernels may work in.
std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i <= 300; ++i) all.push_back(i);
  for (const std::size_t block : {1024u, 2048u, 3072u, 8192u}) {
    for (std::size_t i = block - 5; i <= block + 5; ++i) all.push_back(i);
  }
  return all;
}

// Small ones, those around each power of two, all ones: what symbols and escapes distinguish.
std::uint64_t random_value(Prng* random) {
  switch (random->below(4)) {
    case 0:
      return random->below(4);
    case 1:
      return random->below(20);
    case 2:
      return (std::uint64_t{1} << random->below(64)) + random->below(3) - 1;
    default:
      return random->next() | (random->below(8) == 0 ? ~std::uint64_t{0} : 0);
  }
}

// `count` words of `width` bytes that end where memory does, so that reading on ends the test.
class Words {
 public:
  Words() : memory_(kBytesMax) {}

  const std::uint8_t* fill(unsigned width, std::size_t count, Prng* random) {
    std::uint8_t* const begin = memory_.end() - count * width;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t value = random_value(random);
      std::memcpy(begin + i * width, &value, width);
    }
    return begin;
  }

  std::uint8_t* bytes(std::size_t count) { return memory_.end() - count; }

 private:
  static constexpr std::size_t kBytesMax = 8 * 8300;
  GuardedMemory memory_;
};

// Room for `bytes` of output with a guard behind, all set to the guard.
Bytes guarded(std::size_t bytes) { return Bytes(bytes + kGuardBytes, kPackGuard); }

bool guard_is_whole(const Bytes& output) {
  return std::all_of(output.end() - kGuardBytes, output.end(),
                     [](std::uint8_t byte) { return byte == kPackGuard; });
}

std::string describe(const Kernels& set, unsigned width, unsigned bits, std::size_t count) {
  return std::string(set.name) + ", width " + std::to_string(width) + ", " + std::to_string(bits) +
         " bits, " + std::to_string(count) + " values";
}

TEST(Pack, ReferenceOnKnownValues) {
  const std::uint32_t values[] = {0, 1, 2, 3, 4, 15, 16, 254, 255, 0xffffffff};
  std::uint8_t out[10];
  EXPECT_EQ(scalar_kernels().pack_symbols(4, 2, values, 10, out), 7u);
  EXPECT_EQ(out[0], 0b11'10'01'00);
  EXPECT_EQ(out[1], 0xff);
  EXPECT_EQ(out[2], 0x0f);
  EXPECT_EQ(scalar_kernels().pack_symbols(4, 4, values, 10, out), 5u);
  EXPECT_EQ(out[0], 0x10);
  EXPECT_EQ(out[1], 0x32);
  EXPECT_EQ(out[2], 0xf4);
  EXPECT_EQ(out[4], 0xff);
  EXPECT_EQ(scalar_kernels().pack_symbols(4, 8, values, 10, out), 2u);
  EXPECT_EQ(out[7], 254);
  EXPECT_EQ(out[9], 255);
  EXPECT_EQ(scalar_kernels().count_escapes(8, out, 10), 2u);
}

// find_escapes of `set`, against the reference.
void expect_found_escapes(const Kernels& set, unsigned bits, const std::uint8_t* in,
                          std::size_t count, std::size_t escapes) {
  std::vector<std::uint16_t> expected(count + kEscapeSlack);
  std::vector<std::uint16_t> indices(count + kEscapeSlack);
  ASSERT_EQ(scalar_kernels().find_escapes(bits, in, count, expected.data()), escapes);
  ASSERT_EQ(set.find_escapes(bits, in, count, indices.data()), escapes)
      << describe(set, 0, bits, count);
  expected.resize(escapes);
  indices.resize(escapes);
  ASSERT_EQ(indices, expected) << describe(set, 0, bits, count);
}

TEST(Pack, EverySetPacksAndUnpacksAsTheReference) {
  Words words;
  Prng random(11);
  for (const unsigned width : kPackWidths) {
    for (const unsigned bits : kSymbolBits) {
      for (const std::size_t count : lengths()) {
        const std::uint8_t* const values = words.fill(width, count, &random);
        const std::size_t packed_bytes = (count * bits + 7) / 8;
        Bytes expected = guarded(packed_bytes);
        const std::size_t escapes =
            scalar_kernels().pack_symbols(width, bits, values, count, expected.data());
        ASSERT_TRUE(guard_is_whole(expected));
        for (const Kernels* set : supported_kernels()) {
          Bytes out = guarded(packed_bytes);
          ASSERT_EQ(set->pack_symbols(width, bits, values, count, out.data()), escapes)
              << describe(*set, width, bits, count);
          ASSERT_EQ(out, expected) << describe(*set, width, bits, count);
        }
      }
    }
  }
}

TEST(Pack, EverySetUnpacksAndCountsAnyBytes) {
  Words words;
  Prng random(12);
  for (const unsigned bits : kSymbolBits) {
    for (const std::size_t count : lengths()) {
      const std::size_t packed_bytes = (count * bits + 7) / 8;
      const std::uint8_t* const in = words.fill(1, packed_bytes, &random);
      const std::size_t escapes = scalar_kernels().count_escapes(bits, in, count);
      for (const Kernels* set : supported_kernels()) {
        ASSERT_EQ(set->count_escapes(bits, in, count), escapes) << describe(*set, 0, bits, count);
        if (bits != 8) expect_found_escapes(*set, bits, in, count, escapes);
        for (const unsigned width : kPackWidths) {
          Bytes expected = guarded(count * width);
          Bytes out = guarded(count * width);
          scalar_kernels().unpack_symbols(width, bits, in, count, expected.data());
          set->unpack_symbols(width, bits, in, count, out.data());
          ASSERT_EQ(out, expected) << describe(*set, width, bits, count);
          ASSERT_TRUE(guard_is_whole(out));
        }
      }
    }
  }
}

// Unpacking gives back what packing clamped.
TEST(Pack, UnpackInvertsPack) {
  Words words;
  Prng random(13);
  for (const Kernels* set : supported_kernels()) {
    for (const unsigned width : kPackWidths) {
      for (const unsigned bits : kSymbolBits) {
        constexpr std::size_t kCount = 2500;
        const std::uint8_t* const values = words.fill(width, kCount, &random);
        Bytes packed(kCount);
        Bytes back(kCount * width);
        const std::size_t escapes = set->pack_symbols(width, bits, values, kCount, packed.data());
        EXPECT_EQ(set->count_escapes(bits, packed.data(), kCount), escapes);
        set->unpack_symbols(width, bits, packed.data(), kCount, back.data());
        for (std::size_t i = 0; i < kCount; ++i) {
          std::uint64_t value = 0;
          std::uint64_t symbol = 0;
          std::memcpy(&value, values + i * width, width);
          std::memcpy(&symbol, back.data() + i * width, width);
          ASSERT_EQ(symbol, std::min<std::uint64_t>(value, (1u << bits) - 1))
              << describe(*set, width, bits, i);
        }
      }
    }
  }
}

TEST(Planes, EverySetSplitsAndJoins) {
  Words words;
  Prng random(14);
  for (const unsigned width : kPackWidths) {
    for (const std::size_t count : lengths()) {
      const std::uint8_t* const values = words.fill(width, count, &random);
      for (const Kernels* set : supported_kernels()) {
        std::array<Bytes, 8> out;
        std::uint8_t* planes[8] = {};
        for (unsigned plane = 0; plane < width; ++plane) {
          out[plane] = guarded(count);
          planes[plane] = out[plane].data();
        }
        set->split_planes(width, values, count, planes);
        for (unsigned plane = 0; plane < width; ++plane) {
          ASSERT_TRUE(guard_is_whole(out[plane])) << describe(*set, width, 8, count);
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_EQ(out[plane][i], values[i * width + plane]) << describe(*set, width, 8, count);
          }
        }
        Bytes joined = guarded(count * width);
        set->join_planes(width, planes, count, joined.data());
        ASSERT_TRUE(guard_is_whole(joined)) << describe(*set, width, 8, count);
        ASSERT_TRUE(std::equal(values, values + count * width, joined.begin()))
            << describe(*set, width, 8, count);
      }
    }
  }
}

TEST(Gaps, NarrowingStopsAtTheFirstFarOne) {
  GuardedMemory memory(8300 * sizeof(std::uint32_t));
  Prng random(15);
  for (const std::size_t count : lengths()) {
    std::uint32_t* const gaps =
        reinterpret_cast<std::uint32_t*>(memory.end() - count * sizeof(std::uint32_t));
    // Without a far gap, and with one at a random place, at the first and at the last.
    for (unsigned round = 0; round < 5; ++round) {
      for (std::size_t i = 0; i < count; ++i) {
        gaps[i] = static_cast<std::uint32_t>(random.below(255));
      }
      std::size_t far = count;
      if (round > 0 && count > 0) {
        constexpr std::uint32_t kFar[] = {255, 256, 0x1000000, 0xffffffff};
        far = round == 1 ? 0 : round == 2 ? count - 1 : random.below(count);
        gaps[far] = kFar[round - 1];
      }
      for (const Kernels* set : supported_kernels()) {
        Bytes out = guarded(count);
        ASSERT_EQ(set->narrow_gaps(gaps, count, out.data()), far) << set->name << " " << count;
        ASSERT_TRUE(guard_is_whole(out));
        for (std::size_t i = 0; i < far; ++i) ASSERT_EQ(out[i], gaps[i]) << set->name;
      }
    }
  }
}

TEST(ExpandGaps, EverySetTakesTheSameGapsToTheSamePositions) {
  Words words;
  Prng random(17);
  for (const std::size_t count : lengths()) {
    // Of each hundred bytes, how many continue a gap; the last one never does.
    for (const unsigned continued : {0U, 1U, 30U, 95U}) {
      std::uint8_t* const gaps = words.bytes(count);
      std::vector<std::uint32_t> gap_values;
      std::uint32_t gap = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const bool last = i + 1 == count || random.below(100) >= continued;
        gaps[i] = static_cast<std::uint8_t>(last ? random.below(255) : 255);
        gap += gaps[i];
        if (!last) continue;
        gap_values.push_back(gap);
        gap = 0;
      }
      // All of them, and fewer, so that bytes are left over.
      const std::size_t some = gap_values.empty() ? 0 : random.below(gap_values.size());
      for (const std::size_t wanted : {gap_values.size(), some}) {
        Bytes reference = guarded(wanted * sizeof(std::uint32_t));
        std::uint32_t reference_next = 0xff000000;
        const std::size_t bytes =
            scalar_kernels().expand_gaps(gaps, count, wanted, &reference_next,
                                         reinterpret_cast<std::uint32_t*>(reference.data()));
        std::uint32_t expected = 0xff000000;
        for (std::size_t i = 0; i < wanted; ++i) {
          expected += gap_values[i];
          ASSERT_EQ(reinterpret_cast<std::uint32_t*>(reference.data())[i], expected++) << i;
        }
        ASSERT_EQ(reference_next, expected);
        if (wanted == gap_values.size()) {
          ASSERT_EQ(bytes, count);
        }
        for (const Kernels* set : supported_kernels()) {
          Bytes out = guarded(wanted * sizeof(std::uint32_t));
          std::uint32_t next = 0xff000000;
          ASSERT_EQ(set->expand_gaps(gaps, count, wanted, &next,
                                     reinterpret_cast<std::uint32_t*>(out.data())),
                    bytes)
              << set->name << " " << count;
          ASSERT_EQ(out, reference) << set->name << " " << count;
          ASSERT_EQ(next, reference_next) << set->name << " " << count;
        }
      }
    }
  }
}

TEST(SumBytes, EverySetSumsAsTheReference) {
  Words words;
  Prng random(16);
  std::vector<std::size_t> counts = lengths();
  counts.push_back(66000);
  for (const std::size_t count : counts) {
    std::uint8_t* const bytes = words.bytes(count);
    for (unsigned round = 0; round < 3; ++round) {
      for (std::size_t i = 0; i < count; ++i) {
        bytes[i] =
            static_cast<std::uint8_t>(round == 0 ? 255 : random.next() | (random.next() & 0xf0));
      }
      std::uint64_t sum = 0;
      std::uint64_t full = 0;
      scalar_kernels().sum_bytes(bytes, count, &sum, &full);
      if (round == 0) {
        ASSERT_EQ(sum, 255 * count);
        ASSERT_EQ(full, count);
      }
      for (const Kernels* set : supported_kernels()) {
        std::uint64_t set_sum = 1;
        std::uint64_t set_full = 1;
        set->sum_bytes(bytes, count, &set_sum, &set_full);
        ASSERT_EQ(set_sum, sum) << set->name << " " << count;
        ASSERT_EQ(set_full, full) << set->name << " " << count;
      }
    }
  }
}

TEST(ApplyDense, EverySetAppliesAsTheReferenceAtAnyAlignment) {
  Words words;
  Prng random(17);
  for (const unsigned width : kPackWidths) {
    for (const std::size_t count : lengths()) {
      const std::uint8_t* const values = words.fill(width, count, &random);
      const std::size_t alignment = count % 16;
      Bytes resident(alignment + count * width);
      for (std::uint8_t& byte : resident) byte = static_cast<std::uint8_t>(random.next());
      resident.insert(resident.end(), kGuardBytes, kPackGuard);
      for (const Encoding encoding : {Encoding::kOverwrite, Encoding::kXor, Encoding::kAdd}) {
        Bytes expected = resident;
        scalar_kernels().apply_dense(width, encoding, values, count, expected.data() + alignment);
        ASSERT_TRUE(guard_is_whole(expected));
        for (const Kernels* set : supported_kernels()) {
          Bytes out = resident;
          set->apply_dense(width, encoding, values, count, out.data() + alignment);
          ASSERT_EQ(out, expected) << set->name << " " << encoding_name(encoding) << ", width "
                                   << width << ", " << count << " words";
        }
      }
    }
  }
}

// A scan's values applied to the old words give the new ones.
TEST(ApplyDense, InvertsAScanOfWordsThatAllChanged) {
  Prng random(18);
  constexpr std::size_t kWords = 1500;
  for (const Kernels* set : supported_kernels()) {
    for (const unsigned width : kPackWidths) {
      for (const Encoding encoding : {Encoding::kOverwrite, Encoding::kXor, Encoding::kAdd}) {
        Bytes old_words(kWords * width);
        for (std::uint8_t& byte : old_words) byte = static_cast<std::uint8_t>(random.next());
        Bytes new_words(kWords * width);
        for (std::size_t i = 0; i < new_words.size(); ++i) {
          const std::uint64_t change = 1 + random.below(255);
          new_words[i] = static_cast<std::uint8_t>(old_words[i] ^ change);
        }
        std::vector<std::uint32_t> gaps(kWords + kScanSlackWords);
        std::vector<std::uint64_t> values(kWords + kScanSlackWords);
        std::uint64_t unchanged = 0;
        const ScanBox box = {old_words.data(), new_words.data(), 1, kWords, 0, 0};
        ASSERT_EQ(set->scan_changes(width, encoding, box, &unchanged, gaps.data(), values.data()),
                  kWords);
        set->apply_dense(width, encoding, values.data(), kWords, old_words.data());
        ASSERT_EQ(old_words, new_words) << set->name << " " << encoding_name(encoding);
      }
    }
  }
}

}  // namespace
}  // namespace dcr
