// Items there and back: random ones of every kind, and those that sit on the codec's own edges.
#include "codec/item.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "codec/symbols.h"
#include "codec/test_items.h"
#include "simd/words.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

std::string describe(const ItemHeader& item) {
  return "width " + std::to_string(item.width) + ", " + encoding_name(item.encoding) +
         ", location coding " + std::to_string(static_cast<unsigned>(item.location)) +
         ", gap shift " + std::to_string(item.gap_shift) + ", value coding " +
         std::to_string(static_cast<unsigned>(item.value)) + ", " + std::to_string(item.changes) +
         " of " + std::to_string(item.box.words()) + " words";
}

TEST(ItemBox, WordsAndEnd) {
  EXPECT_EQ(ItemBox::range(7, 5).words(), 5u);
  EXPECT_EQ(ItemBox::range(7, 5).end(), 12u);
  EXPECT_TRUE(ItemBox::range(7, 5).is_range());
  const ItemBox box = {10, {{3, 100}, {4, 2}}};
  EXPECT_EQ(box.words(), 12u);
  EXPECT_EQ(box.end(), 10u + 200 + 6 + 1);
  EXPECT_FALSE(box.is_range());
  EXPECT_FALSE((ItemBox{0, {{4, 2}}}).is_range());
}

TEST(Symbols, ByteSymbolsAndTheirExtraBits) {
  // The value, its symbol, and how many bits follow.
  constexpr struct {
    std::uint64_t value;
    unsigned symbol, extra;
  } kKnown[] = {{0, 0, 0},        {191, 191, 0},
                {192, 192, 7},    {255, 192, 7},
                {256, 193, 8},    {511, 193, 8},
                {512, 194, 9},    {65535, 200, 15},
                {65536, 201, 16}, {~std::uint64_t{0}, 248, 63}};
  for (const auto& known : kKnown) {
    EXPECT_EQ(byte_symbol(known.value), known.symbol) << known.value;
    EXPECT_EQ(symbol_extra_bits(byte_symbol(known.value)), known.extra) << known.value;
  }
  EXPECT_EQ(kSymbolMax, 248);
  Prng random(1);
  for (unsigned i = 0; i < 100'000; ++i) {
    const std::uint64_t value = random.next() >> random.below(64);
    const unsigned extra = symbol_extra_bits(byte_symbol(value));
    const std::uint64_t low = value & ((std::uint64_t{1} << extra) - 1);
    ASSERT_EQ(symbol_value(byte_symbol(value), low), value);
  }
}

TEST(Symbols, BitsReadBackAsWritten) {
  Prng random(2);
  for (unsigned round = 0; round < 300; ++round) {
    Bytes bytes;
    BitWriter writer(&bytes);
    std::vector<std::pair<std::uint64_t, unsigned>> written;
    std::uint64_t bits = 0;
    for (unsigned i = 0; i < 100; ++i) {
      const unsigned count = static_cast<unsigned>(random.below(64));
      const std::uint64_t value = random.next() & ((std::uint64_t{1} << count) - 1);
      writer.put(value, count);
      written.emplace_back(value, count);
      bits += count;
    }
    writer.finish();
    ASSERT_EQ(bytes.size(), (bits + 7) / 8);
    std::uint64_t position = 0;
    for (const auto& [value, count] : written) {
      ASSERT_EQ(read_bits(bytes, position, count), value);
      position += count;
    }
  }
}

// --- Random items.

std::uint64_t log_uniform(Prng* random, unsigned bits_max) {
  return random->next() >> (64 - 1 - random->below(bits_max));
}

// A box of nested dimensions, holes between, of at most about `words_max` words.
ItemBox random_box(Prng* random, std::uint64_t words_max) {
  const std::uint64_t words = 1 + random->below(1 + log_uniform(random, 20) % words_max);
  if (random->below(3) != 0) return ItemBox::range(random->below(50), words);
  ItemBox box = {random->below(50), {}};
  std::uint64_t left = words;
  std::uint64_t inner = 1;
  const std::uint64_t rank = 1 + random->below(4);
  for (std::uint64_t i = 0; i < rank; ++i) {
    const std::uint64_t size =
        i + 1 == rank ? left : 1 + random->below(std::min(left, std::uint64_t{9}));
    const std::uint64_t stride = inner + (random->below(2) == 0 ? 0 : random->below(3));
    box.dims.insert(box.dims.begin(), {size, stride});
    inner = (size - 1) * stride + inner;
    left = std::max<std::uint64_t>(1, left / size);
  }
  return box;
}

// How the words of one item differ from the resident ones.
class Changer {
 public:
  Changer(const WordKind& kind, Prng* random)
      : kind_(kind),
        random_(random),
        style_(random->below(6)),
        bits_(1 + random->below(8 * kind.width)) {}

  std::uint64_t change(std::uint64_t word) const {
    const std::uint64_t mask = width_mask(kind_.width);
    switch (style_) {
      case 0:  // a step of one, as in training
        return (random_->below(2) == 0 ? word + 1 : word - 1) & mask;
      case 1:  // of a certain magnitude
        return (word + (random_->next() >> (64 - bits_))) & mask;
      case 2:  // of every magnitude
        return (word - (random_->next() >> random_->below(64))) & mask;
      case 3:  // what the dtype makes awkward
        return kind_.words[random_->below(kind_.words.size())];
      case 4:  // replaced
        return random_->next() & mask;
      default:  // zeroed
        return 0;
    }
  }

 private:
  const WordKind& kind_;
  Prng* random_;
  std::uint64_t style_;
  std::uint64_t bits_;
};

// Steps from one changed word to the next: uniform at every density, or clustered.
class Stepper {
 public:
  explicit Stepper(Prng* random)
      : random_(random), mean_(1 + log_uniform(random, 12)), clustered_(random->below(3) == 0) {}

  std::uint64_t step() const {
    if (clustered_ && random_->below(20) != 0) return 1 + random_->below(2);
    const std::uint64_t far = clustered_ ? 20 * mean_ : 2 * mean_ - 1;
    return 1 + random_->below(far);
  }

 private:
  Prng* random_;
  std::uint64_t mean_;
  bool clustered_;
};

ItemCase random_case(const WordKind& kind, Prng* random, std::uint64_t words_max) {
  ItemCase test;
  test.width = kind.width;
  test.box = random_box(random, words_max);
  const std::uint64_t tensor_words = test.box.end() + random->below(10);
  test.old_tensor.resize(static_cast<std::size_t>(tensor_words) * kind.width);
  for (std::uint64_t i = 0; i < tensor_words; ++i) {
    const bool awkward = random->below(4) == 0 || kind.words.size() == 2;
    const std::uint64_t word = awkward ? kind.words[random->below(kind.words.size())]
                                       : random->next() & width_mask(kind.width);
    set_word(&test.old_tensor, kind.width, i, word);
  }
  test.new_tensor = test.old_tensor;
  const Changer changer(kind, random);
  const Stepper stepper(random);
  const std::vector<std::uint64_t> indices = box_indices(test.box);
  for (std::uint64_t at = stepper.step() - 1; at < indices.size(); at += stepper.step()) {
    const std::uint64_t index = indices[static_cast<std::size_t>(at)];
    const std::uint64_t word = get_word(test.old_tensor, kind.width, index);
    set_word(&test.new_tensor, kind.width, index, changer.change(word));
  }
  return test;
}

// The same item from changes that are known already.
void check_take(const ItemCase& test, EncodingChoice choice, const EncodedItem& scanned) {
  std::vector<std::uint32_t> gaps;
  std::vector<std::uint64_t> storage(static_cast<std::size_t>(test.box.words()));
  Bytes values(storage.size() * 8);
  std::uint32_t gap = 0;
  for (const std::uint64_t index : box_indices(test.box)) {
    const std::uint64_t old_word = get_word(test.old_tensor, test.width, index);
    const std::uint64_t new_word = get_word(test.new_tensor, test.width, index);
    if (old_word == new_word) {
      ++gap;
      continue;
    }
    for_width(test.width, [&]<typename Word>(Word) {
      store_word(values.data(), gaps.size(),
                 encode_word(scanned.header.encoding, static_cast<Word>(old_word),
                             static_cast<Word>(new_word)));
    });
    gaps.push_back(gap);
    gap = 0;
  }
  std::memcpy(storage.data(), values.data(), gaps.size() * test.width);
  ItemEncoder encoder;
  EncodedItem taken;
  encoder.begin(0, test.width, test.box, choice);
  encoder.take(gaps, storage.data());
  ASSERT_TRUE(encoder.finish({}, &taken));
  ASSERT_TRUE(same_item(taken, scanned)) << describe(taken.header) << "\n"
                                         << describe(scanned.header);
}

// The same item from scans that are cut elsewhere.
void check_cuts(const ItemCase& test, EncodingChoice choice, const EncodedItem& scanned,
                Prng* random) {
  std::vector<ScanBox> parts;
  for (const ScanBox& part : scan_parts(test.box, test.width, test.old_tensor, test.new_tensor)) {
    for (std::uint64_t row = 0; row < part.rows; ++row) {
      for (std::uint64_t done = 0; done < part.row_words;) {
        const std::uint64_t words = std::min(part.row_words - done, 1 + log_uniform(random, 12));
        parts.push_back({part.old_words + row * part.old_row_stride_bytes + done * test.width,
                         part.new_words + row * part.new_row_stride_bytes + done * test.width, 1,
                         words, 0, 0});
        done += words;
      }
    }
  }
  ItemEncoder encoder;
  EncodedItem cut;
  encoder.begin(0, test.width, test.box, choice);
  for (const ScanBox& part : parts) encoder.scan(part);
  ASSERT_TRUE(encoder.finish(parts, &cut));
  ASSERT_TRUE(same_item(cut, scanned)) << describe(scanned.header);
}

TEST(Item, RandomItemsRoundTrip) {
  constexpr EncodingChoice kChoices[] = {EncodingChoice::kOverwrite, EncodingChoice::kXor,
                                         EncodingChoice::kAdd, EncodingChoice::kSmallest};
  const std::vector<WordKind> kinds = word_kinds();
  ItemEncoder encoder;  // one for all, so that what it keeps from item to item would show
  EncodedItem item;
  std::array<std::uint64_t, 3> locations{};
  std::array<std::uint64_t, 4> values{};
  const std::uint64_t cases = campaign_cases(6000);
  for (std::uint64_t seed = 0; seed < cases; ++seed) {
    Prng random(seed);
    const WordKind& kind = kinds[seed % kinds.size()];
    const EncodingChoice choice = kChoices[random.below(4)];
    const ItemCase test = random_case(kind, &random, seed % 50 == 0 ? 300'000 : 6000);
    ASSERT_EQ(round_trip(&encoder, test, choice, &item), "")
        << "seed " << seed << ": " << kind.name << ", " << describe(item.header);
    if (test.old_tensor == test.new_tensor) continue;
    ++locations[static_cast<std::size_t>(item.header.location)];
    ++values[static_cast<std::size_t>(item.header.value)];
    ASSERT_NO_FATAL_FAILURE(check_cuts(test, choice, item, &random)) << "seed " << seed;
    if (choice == EncodingChoice::kSmallest) continue;  // take() cannot turn to overwrite
    ASSERT_NO_FATAL_FAILURE(check_take(test, choice, item)) << "seed " << seed;
  }
  std::printf("%llu cases\n", static_cast<unsigned long long>(cases));
  for (const std::uint64_t count : locations) EXPECT_GT(count, 0u);
  for (const std::uint64_t count : values) EXPECT_GT(count, 0u);
}

// --- Edges.

// A range of one width in which the words at ascending `positions` change by `steps`.
ItemCase case_of(unsigned width, std::uint64_t words, const std::vector<std::uint64_t>& positions,
                 const std::function<std::uint64_t(std::size_t)>& step) {
  ItemCase test;
  test.width = width;
  test.box = ItemBox::range(0, words);
  test.old_tensor.resize(static_cast<std::size_t>(words) * width);
  Prng random(words);
  for (std::uint8_t& byte : test.old_tensor) byte = static_cast<std::uint8_t>(random.next());
  test.new_tensor = test.old_tensor;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const std::uint64_t word = get_word(test.old_tensor, width, positions[i]);
    set_word(&test.new_tensor, width, positions[i], (word + step(i)) & width_mask(width));
  }
  return test;
}

std::vector<std::uint64_t> every(std::uint64_t distance, std::size_t count) {
  std::vector<std::uint64_t> positions;
  for (std::size_t i = 0; i < count; ++i) positions.push_back(i * distance);
  return positions;
}

// The step by which a word changes so that its `add` value is `value`.
std::uint64_t step_of(std::uint64_t value) { return unzigzag<std::uint64_t>(value + 1); }

struct ForcedValues {
  ValueCoding coding;
  unsigned width_min;
  std::function<std::uint64_t(std::size_t)> value;
};

// Changes whose values make the encoder choose each coding.
std::vector<ForcedValues> forced_values() {
  const auto mixed = [](std::size_t i) { return (i + 1) * 0x9e3779b97f4a7c15 >> 32; };
  return {
      // 0 and 1; one in fifty an escape, some of them far.
      {ValueCoding::kSymbol2, 1,
       [=](std::size_t i) { return i % 50 == 49 ? 3 + mixed(i) % 250 : mixed(i) % 2; }},
      // Mostly 5, which takes less than a bit if two share a byte; now and then an escape.
      {ValueCoding::kSymbol4, 2,
       [=](std::size_t i) {
         return i % 70 == 69 ? 15 + mixed(i) % 400 : i % 6 == 0 ? mixed(i) % 15 : 5;
       }},
      // 0, 1, 2 and 20, which would take a whole bit among escapes; a few far ones with extra bits.
      {ValueCoding::kSymbol8, 2,
       [=](std::size_t i) {
         return i % 50 == 49 ? mixed(i) : mixed(i) % 100 < 56 ? mixed(i) % 3 : 20;
       }},
      {ValueCoding::kPlanes, 2,
       [=](std::size_t i) { return mixed(i) << 32 | (mixed(i) * mixed(i) & 0xffffffff); }},
  };
}

// Numbers of changes around the blocks in which items are read, in each coding of locations and
// values.
TEST(Item, CountsAroundTheBlockInEveryCoding) {
  ItemEncoder encoder;
  EncodedItem item;
  constexpr struct {
    LocationCoding coding;
    std::uint64_t distance;
  } kLocations[] = {{LocationCoding::kAll, 1},
                    {LocationCoding::kBitmap, 3},
                    {LocationCoding::kGaps, 20},
                    {LocationCoding::kGaps, 300}};
  for (const unsigned width : kTestWidths) {
    for (const ForcedValues& values : forced_values()) {
      if (width < values.width_min) continue;
      for (const auto& location : kLocations) {
        for (const std::size_t blocks : {1u, 2u, 3u}) {
          for (const std::size_t count :
               {blocks * kBlockChanges - 1, blocks * kBlockChanges, blocks * kBlockChanges + 1}) {
            // Bitmaps are for positions that are near chance.
            std::vector<std::uint64_t> positions = every(location.distance, count);
            if (location.coding == LocationCoding::kBitmap) {
              for (std::uint64_t& position : positions) position -= position % 2;
            }
            const ItemCase test = case_of(width, positions.back() + 1, positions,
                                          [&](std::size_t i) { return step_of(values.value(i)); });
            ASSERT_EQ(round_trip(&encoder, test, EncodingChoice::kAdd, &item), "")
                << describe(item.header);
            EXPECT_EQ(item.header.changes, count);
            EXPECT_EQ(item.header.value, values.coding) << describe(item.header);
            if (location.coding != LocationCoding::kBitmap) {
              EXPECT_EQ(item.header.location, location.coding) << describe(item.header);
            }
          }
        }
      }
    }
  }
}

TEST(Item, BitmapsAtTwoThirds) {
  ItemEncoder encoder;
  EncodedItem item;
  for (const unsigned width : kTestWidths) {
    for (const std::uint64_t words : {1000u, 1001u, 1023u, 1024u, 1025u, 4095u, 4097u, 100'001u}) {
      Prng random(words);
      std::vector<std::uint64_t> positions;
      for (std::uint64_t i = 0; i < words; ++i) {
        if (i + 1 == words || random.below(3) != 0) positions.push_back(i);
      }
      const ItemCase test = case_of(width, words, positions, [](std::size_t) { return 1u; });
      ASSERT_EQ(round_trip(&encoder, test, EncodingChoice::kAdd, &item), "");
      EXPECT_EQ(item.header.location, LocationCoding::kBitmap) << describe(item.header);
      EXPECT_EQ(item.locations.size(), (words + 7) / 8);
    }
  }
}

// Gaps at the edge of a continuation byte, and the bytes that they become.
TEST(Item, GapContinuations) {
  constexpr struct {
    std::uint32_t gap;
    Bytes (*bytes)();
  } kKnown[] = {{0, [] { return Bytes{0}; }},
                {254, [] { return Bytes{254}; }},
                {255,
                 [] {
                   return Bytes{255, 0};
                 }},
                {256,
                 [] {
                   return Bytes{255, 1};
                 }},
                {509,
                 [] {
                   return Bytes{255, 254};
                 }},
                {510,
                 [] {
                   return Bytes{255, 255, 0};
                 }},
                {511,
                 [] {
                   return Bytes{255, 255, 1};
                 }},
                {765,
                 [] {
                   return Bytes{255, 255, 255, 0};
                 }},
                {25'500, [] {
                   Bytes bytes(100, 255);
                   bytes.push_back(0);
                   return bytes;
                 }}};
  ItemEncoder encoder;
  for (const auto& known : kKnown) {
    // Enough small gaps around it that the encoder takes bytes without low bits.
    std::vector<std::uint32_t> gaps(30'000, 1);
    gaps[100] = known.gap;
    gaps[20'000] = known.gap;
    Bytes expected(gaps.size() - 2, 1);
    const Bytes bytes = known.bytes();
    expected.insert(expected.begin() + 19'999, bytes.begin(), bytes.end());
    expected.insert(expected.begin() + 100, bytes.begin(), bytes.end());
    const Bytes values(gaps.size(), 0);
    EncodedItem item;
    encoder.begin(0, 1, ItemBox::range(0, 1'000'000), EncodingChoice::kAdd);
    encoder.take(gaps, values.data());
    ASSERT_TRUE(encoder.finish({}, &item));
    ASSERT_EQ(item.header.location, LocationCoding::kGaps);
    ASSERT_EQ(item.header.gap_shift, 0);
    EXPECT_EQ(item.header.continuations, 2 * (bytes.size() - 1)) << known.gap;
    EXPECT_EQ(item.locations, expected) << known.gap;
  }
}

// The same with low bits split off, for every shift that a density brings; gaps also of the largest
// box.
TEST(Item, GapContinuationsWithLowBits) {
  ItemEncoder encoder;
  EncodedItem item;
  std::vector<bool> shifts(25, false);
  for (unsigned log = 6; log <= 22; ++log) {
    const std::uint64_t mean = std::uint64_t{1} << log;
    const std::size_t count =
        static_cast<std::size_t>(std::min<std::uint64_t>(1500, (kItemElementsMax >> 1) / mean)) + 1;
    std::vector<std::uint64_t> positions;
    std::uint64_t at = mean - 1;
    for (std::size_t i = 0; i < count && at < kItemElementsMax - 1; ++i) {
      positions.push_back(at);
      // Around 255 and 510 of what a byte counts, now and then; else near the mean.
      const std::uint64_t unit = std::max<std::uint64_t>(1, mean >> 4);
      const std::uint64_t far = (i % 40 == 20 ? 255 : 510) * unit;
      at += i % 20 == 0 && count > 100 ? far + i % 3 : mean - i % 5;
    }
    if (positions.back() != kItemElementsMax - 1 && log > 20) {
      positions.push_back(kItemElementsMax - 1);
    }
    const ItemCase test =
        case_of(1, positions.back() + 1, positions, [](std::size_t i) { return 1 + i % 2; });
    ASSERT_EQ(round_trip(&encoder, test, EncodingChoice::kXor, &item), "") << describe(item.header);
    ASSERT_EQ(item.header.location, LocationCoding::kGaps);
    shifts[item.header.gap_shift] = true;
  }
  EXPECT_GE(std::count(shifts.begin() + 1, shifts.end(), true), 10);
}

TEST(Item, OneChangeInTheLargestBox) {
  ItemEncoder encoder;
  EncodedItem item;
  for (const std::uint64_t at :
       {std::uint64_t{0}, std::uint64_t{8'000'000}, kItemElementsMax - 1}) {
    const ItemCase test = case_of(1, kItemElementsMax, {at}, [](std::size_t) { return 1u; });
    ASSERT_EQ(round_trip(&encoder, test, EncodingChoice::kSmallest, &item), "");
    EXPECT_LE(item.raw_bytes(), 12u);
  }
}

TEST(Item, NothingChangedIsNoItem) {
  ItemEncoder encoder;
  EncodedItem item;
  const ItemCase test = case_of(4, 1000, {}, [](std::size_t) { return 0u; });
  EXPECT_FALSE(encode_case(&encoder, test, 0, EncodingChoice::kSmallest, &item));
  encoder.begin(0, 4, test.box, EncodingChoice::kAdd);
  encoder.take({}, nullptr);
  EXPECT_FALSE(encoder.finish({}, &item));
}

// A tensor that was replaced costs less as it is than as differences; one that was trained, more.
TEST(Item, SmallestTurnsToOverwriteWhereASampleSaysSo) {
  ItemEncoder encoder;
  EncodedItem item;
  ItemCase zeroed = case_of(4, 20'000, {}, [](std::size_t) { return 0u; });
  std::fill(zeroed.new_tensor.begin(), zeroed.new_tensor.end(), std::uint8_t{0});
  ASSERT_EQ(round_trip(&encoder, zeroed, EncodingChoice::kSmallest, &item), "");
  EXPECT_EQ(item.header.encoding, Encoding::kOverwrite);
  EXPECT_LE(item.raw_bytes(), 20'000u / 4 + 8);
  const ItemCase trained = case_of(4, 20'000, every(3, 5000), [](std::size_t) { return 1u; });
  ASSERT_EQ(round_trip(&encoder, trained, EncodingChoice::kSmallest, &item), "");
  EXPECT_EQ(item.header.encoding, Encoding::kAdd);
}

TEST(Item, WholeItemsCarryEveryWord) {
  ItemEncoder encoder;
  for (const WordKind& kind : word_kinds()) {
    Prng random(kind.width);
    for (unsigned round = 0; round < 30; ++round) {
      const ItemCase test = random_case(kind, &random, 5000);
      std::vector<ScanBox> parts =
          scan_parts(test.box, test.width, test.old_tensor, test.new_tensor);
      for (ScanBox& part : parts) part.old_words = nullptr;
      EncodedItem item;
      encoder.encode_whole(0, test.width, test.box, parts, &item);
      EXPECT_EQ(item.header.location, LocationCoding::kAll);
      EXPECT_EQ(item.header.encoding, Encoding::kOverwrite);
      EXPECT_EQ(item.header.changes, test.box.words());
      const Bytes stored = seal_items({&item, 1});
      const TensorSpec spec = {test.tensor_words(), static_cast<std::uint8_t>(test.width), true};
      const Result<Payload> payload = Payload::read(stored, Digest{}, {&spec, 1}, kTestLimits);
      ASSERT_TRUE(payload.ok()) << payload.status().message();
      Bytes tensor(test.old_tensor.size(), 0x5a);
      Bytes expected = tensor;
      apply_to_tensor(payload->items()[0], &tensor);
      for (const std::uint64_t index : box_indices(test.box)) {
        set_word(&expected, test.width, index, get_word(test.new_tensor, test.width, index));
      }
      ASSERT_EQ(tensor, expected) << kind.name;
    }
  }
}

}  // namespace
}  // namespace dcr
