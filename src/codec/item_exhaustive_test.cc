// Every pattern of changes of up to 16 words, there and back through a payload.
#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "codec/test_items.h"

namespace dcr {
namespace {

constexpr unsigned kWordsMax = 16;
// Patterns in one payload; each is an item of its own.
constexpr std::size_t kBatch = 4096;

// A box of n words with holes: two-dimensional where n has a factor of four, else every third word.
ItemBox strided_box(std::uint64_t n) {
  if (n % 4 == 0) return {2, {{n / 4, 7}, {4, 1}}};
  return {1, {{n, 3}}};
}

// The locations of `pattern` in a coding of our choice, written from the format's text.
void force_location(std::uint32_t pattern, LocationCoding coding, unsigned shift,
                    EncodedItem* item) {
  item->header.location = coding;
  item->header.gap_shift = 0;
  item->header.continuations = 0;
  item->locations.clear();
  item->gap_low.clear();
  if (coding == LocationCoding::kBitmap) {
    const std::uint64_t words = item->header.box.words();
    for (std::uint64_t byte = 0; byte < (words + 7) / 8; ++byte) {
      item->locations.push_back(static_cast<std::uint8_t>(pattern >> (8 * byte)));
    }
    return;
  }
  item->header.gap_shift = static_cast<std::uint8_t>(shift);
  std::uint64_t low = 0;
  unsigned low_bits = 0;
  unsigned gap = 0;
  for (unsigned i = 0; i < kWordsMax; ++i) {
    if ((pattern >> i & 1) == 0) {
      ++gap;
      continue;
    }
    item->locations.push_back(static_cast<std::uint8_t>(gap >> shift));
    low |= (gap & ((std::uint64_t{1} << shift) - 1)) << low_bits;
    low_bits += shift;
    gap = 0;
  }
  for (unsigned bit = 0; bit < low_bits; bit += 8) {
    item->gap_low.push_back(static_cast<std::uint8_t>(low >> bit));
  }
}

// All patterns over one kind of word, one encoding and one box, in payloads of kBatch items: in the
// codings that the encoder chooses, and with the locations in another coding.
class PatternSweep {
 public:
  PatternSweep(const WordKind& kind, Encoding encoding, const ItemBox& box)
      : kind_(kind), encoding_(encoding), indices_(box_indices(box)) {
    test_.width = kind.width;
    test_.box = box;
    test_.old_tensor.assign(static_cast<std::size_t>(box.end() + 1) * kind.width, 0xd5);
    for (std::size_t i = 0; i < indices_.size(); ++i) {
      set_word(&test_.old_tensor, kind.width, indices_[i], kind.words[i % kind.words.size()]);
    }
    test_.new_tensor = test_.old_tensor;
  }

  // Returns the number of round trips.
  std::uint64_t run() {
    const std::uint32_t all = (std::uint32_t{1} << indices_.size()) - 1;
    // Thinned, every DCR_CAMPAIGN-th pattern, and always the last: all changed.
    for (std::uint32_t pattern = 1; pattern < all; pattern += DCR_CAMPAIGN) add(pattern);
    add(all);
    flush();
    return round_trips_;
  }

 private:
  std::uint64_t new_word(std::uint32_t pattern, std::size_t i) const {
    const std::uint64_t old_word = get_word(test_.old_tensor, kind_.width, indices_[i]);
    const std::size_t kinds = kind_.words.size();
    const std::uint64_t word = kind_.words[(i + 1 + pattern) % kinds];
    return word != old_word ? word : kind_.words[(i + 2 + pattern) % kinds];
  }

  void make_new(std::uint32_t pattern, Bytes* tensor) const {
    for (std::size_t i = 0; i < indices_.size(); ++i) {
      if ((pattern >> i & 1) != 0) {
        set_word(tensor, kind_.width, indices_[i], new_word(pattern, i));
      }
    }
  }

  void add(std::uint32_t pattern) {
    test_.new_tensor = test_.old_tensor;
    make_new(pattern, &test_.new_tensor);
    const std::uint32_t tensor = static_cast<std::uint32_t>(patterns_.size());
    ASSERT_TRUE(encode_case(&encoder_, test_, tensor, choice_of(encoding_), &item_));
    chosen_.append(item_);
    const bool gaps = item_.header.location != LocationCoding::kGaps;
    force_location(pattern, gaps ? LocationCoding::kGaps : LocationCoding::kBitmap, pattern % 3,
                   &item_);
    forced_.append(item_);
    patterns_.push_back(pattern);
    if (patterns_.size() == kBatch) flush();
  }

  void flush() {
    check(chosen_.seal(PayloadHeader{}), "chosen");
    check(forced_.seal(PayloadHeader{}), "forced");
    chosen_ = PayloadWriter();
    forced_ = PayloadWriter();
    patterns_.clear();
  }

  void check(const Bytes& stored, const char* codings) {
    const std::vector<TensorSpec> specs(
        patterns_.size(), {test_.tensor_words(), static_cast<std::uint8_t>(kind_.width), false});
    const Result<Payload> payload = Payload::read(stored, Digest{}, specs, kTestLimits);
    ASSERT_TRUE(payload.ok()) << payload.status().message();
    ASSERT_EQ(payload->items().size(), patterns_.size());
    Bytes tensor;
    Bytes expected;
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      tensor = test_.old_tensor;
      apply_to_tensor(payload->items()[i], &tensor);
      expected = test_.old_tensor;
      make_new(patterns_[i], &expected);
      ASSERT_EQ(payload->items()[i].header.encoding, encoding_);
      ASSERT_EQ(tensor, expected) << kind_.name << " " << encoding_name(encoding_) << " " << codings
                                  << " of " << indices_.size() << " words, pattern "
                                  << patterns_[i];
      ++round_trips_;
    }
  }

  const WordKind& kind_;
  Encoding encoding_;
  std::vector<std::uint64_t> indices_;
  ItemCase test_;
  ItemEncoder encoder_;
  EncodedItem item_;
  PayloadWriter chosen_;
  PayloadWriter forced_;
  std::vector<std::uint32_t> patterns_;
  std::uint64_t round_trips_ = 0;
};

void sweep_all(bool strided) {
  std::uint64_t round_trips = 0;
  for (const WordKind& kind : word_kinds()) {
    for (const Encoding encoding : kTestEncodings) {
      for (std::uint64_t n = 1; n <= kWordsMax; ++n) {
        const ItemBox box = strided ? strided_box(n) : ItemBox::range(n % 3, n);
        round_trips += PatternSweep(kind, encoding, box).run();
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
  std::printf("%llu round trips\n", static_cast<unsigned long long>(round_trips));
}

TEST(ItemExhaustive, EveryPatternOfARange) { sweep_all(false); }

TEST(ItemExhaustive, EveryPatternOfAStridedBox) { sweep_all(true); }

}  // namespace
}  // namespace dcr
