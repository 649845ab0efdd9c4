#include "receiver/trial.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "receiver/probe.h"
#include "receiver/regions.h"
#include "receiver/views.h"
#include "receiver/words_of.h"
#include "simd/words.h"

namespace dcr {

namespace {

// About so many entries of a tensor are tried, and at most half of it.
constexpr std::uint64_t kTriedEntries = 65'536;

// What an item that is tried is made of.
struct Entries {
  std::vector<std::uint32_t> positions;
  Bytes values;
};

// What stands for a path that may be taken.
Result<std::string> verdict(const Result<bool>& same, const std::string& otherwise) {
  if (same.ok()) return *same ? std::string() : otherwise;
  const Code code = same.status().code();
  if (code == Code::kMismatch) return otherwise + " (" + same.status().message() + ")";
  if (code == Code::kUnsupported) return "it cannot be tried: " + same.status().message();
  if (code == Code::kTooLarge) return "no room to try it: " + same.status().message();
  return same.status();
}

}  // namespace

// The words of a tensor, as a function of their indices.
struct Trial::Words {
  Dtype dtype = Dtype::kU8;
  bool arbitrary = false;
  std::uint64_t one_in = 2;  // of how many elements one changes
  // Which ones change: one of two shares, or those whose indices have a bit that is set or not.
  std::uint64_t share = 0;
  bool changed = false;  // of those that change, the new words

  bool changes(std::uint64_t index) const {
    if (share < 2) return mix(index, 3) % one_in == share;
    return (index >> (share / 2 - 1) & 1) == share % 2;
  }

  std::uint64_t word(std::uint64_t index) const {
    const std::uint64_t bits = mix(index, changed && changes(index) ? 5 : 4);
    const FloatBits fields = float_bits(dtype);
    if (dtype == Dtype::kBool) return bits & 1;
    if (arbitrary && bits % 3 == 0) {
      return probe_word({ProbePattern::Kind::kSpecial, static_cast<unsigned>(bits >> 8 & 7)}, dtype,
                        0);
    }
    if (fields.width == 0 || arbitrary) return bits;
    // Of either sign, between 1/8 and 32.
    const std::uint64_t exponent = (bits >> 56 & 7) << fields.mantissa;
    const std::uint64_t sign = (bits >> 60 & 1) << (8 * fields.width - 1);
    return (ordinary_word(fields, bits) + exponent - (std::uint64_t{3} << fields.mantissa)) | sign;
  }
};

Status Trial::load_whole(std::uint32_t tensor, const LoadTrace& trace, const Words& words) {
  const CanonicalTensor& canonical = catalogue_[tensor];
  const unsigned width = word_bytes(canonical.dtype);
  DCR_ASSIGN(const std::uint64_t storage, memory_.allocate(canonical.words * width));
  const TensorView value = contiguous_view(storage, canonical);
  Bytes buffer;
  const auto visit = [&](const ViewBlock& block) {
    buffer.resize(static_cast<std::size_t>(block.words) * width);
    for_width(width, [&]<typename Word>(Word) {
      for (std::uint64_t i = 0; i < block.words; ++i) {
        store_word(buffer.data(), i, static_cast<Word>(words.word(block.first + i)));
      }
    });
    return memory_.write(block.view, buffer);
  };
  Status status = for_each_block(value, visit);
  ScratchCounts counts;
  if (status.ok()) {
    status = scratch_.apply_whole(tensor, trace, value, ApplyMode::kWrite, &counts);
  }
  DCR_TRY(memory_.release(storage));
  return status;
}

Result<bool> Trial::same_whole(std::uint32_t tensor, const LoadTrace& trace) {
  DCR_ASSIGN(const Regions resident, Regions::save(memory_, trace));
  std::vector<Regions> results;
  for (const std::uint8_t before : {std::uint8_t{0x00}, std::uint8_t{0x55}}) {
    DCR_TRY(resident.fill(memory_, before));
    DCR_TRY(load_whole(tensor, trace, {catalogue_[tensor].dtype}));
    DCR_ASSIGN(Regions result, Regions::save(memory_, trace));
    results.push_back(std::move(result));
  }
  return results[0] == results[1];
}

Result<bool> Trial::same_entries(std::uint32_t tensor, const LoadTrace& trace, bool arbitrary,
                                 std::uint64_t share) {
  const CanonicalTensor& canonical = catalogue_[tensor];
  const unsigned width = word_bytes(canonical.dtype);
  Words words{canonical.dtype, arbitrary};
  words.one_in = std::max<std::uint64_t>(2, canonical.words / kTriedEntries);
  DCR_TRY(load_whole(tensor, trace, words));
  words.share = share;
  words.changed = true;
  std::deque<Entries> entries;
  std::vector<DecodedItem> items;
  for (std::uint64_t first = 0; first < canonical.words; first += kItemElementsMax) {
    const std::uint64_t size = std::min(kItemElementsMax, canonical.words - first);
    Entries& made = entries.emplace_back();
    DecodedItem item;
    item.header.tensor = tensor;
    item.header.width = static_cast<std::uint8_t>(width);
    item.header.box = ItemBox::range(first, size);
    for (std::uint64_t i = 0; i < size; ++i) {
      if (!words.changes(first + i)) continue;
      made.positions.push_back(static_cast<std::uint32_t>(i));
      std::uint8_t word[8];
      store_little(word, words.word(first + i));
      made.values.insert(made.values.end(), word, word + width);
    }
    item.positions = made.positions;
    item.values = made.values;
    items.push_back(std::move(item));
  }
  std::vector<const DecodedItem*> pointers;
  pointers.reserve(items.size());
  for (const DecodedItem& item : items) pointers.push_back(&item);
  ScratchCounts counts;
  DCR_TRY(scratch_.apply(tensor, trace, pointers, ApplyMode::kWrite, &counts));
  DCR_ASSIGN(const Regions sparse, Regions::save(memory_, trace));
  DCR_TRY(load_whole(tensor, trace, words));
  DCR_ASSIGN(const std::uint64_t different, sparse.different(memory_));
  return different == 0;
}

Result<std::string> Trial::whole(std::uint32_t tensor, const LoadTrace& trace) {
  DCR_ASSIGN(const Regions resident, Regions::save(memory_, trace));
  const Result<bool> same = same_whole(tensor, trace);
  DCR_TRY(resident.restore(memory_));
  return verdict(same, "what the loader writes depends on what the parameter held before");
}

Result<std::string> Trial::entries(std::uint32_t tensor, const LoadTrace& trace) {
  DCR_ASSIGN(const Regions resident, Regions::save(memory_, trace));
  // Every element of a small tensor changes once, and once does not; any two do so apart where one
  // might be taken for another's.
  const std::uint64_t elements = catalogue_[tensor].words;
  std::uint64_t shares = elements <= 2 * kTriedEntries ? 2 : 1;
  if (shares == 2 && reads_back(trace)) {
    shares += 2 * static_cast<std::uint64_t>(std::bit_width(elements));
  }
  Result<bool> same = true;
  for (std::uint64_t number = 0; number < 2 * shares && same.ok() && *same; ++number) {
    same = same_entries(tensor, trace, number % 2 == 1, number / 2);
  }
  DCR_TRY(resident.restore(memory_));
  return verdict(same, "entries give other bits than a dense load");
}

}  // namespace dcr
