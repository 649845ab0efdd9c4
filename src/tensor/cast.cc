#include "tensor/cast.h"

#include <bit>
#include <cstring>
#include <string>
#include <type_traits>

#include "base/assert.h"

namespace dcr {
namespace {

constexpr unsigned kF32Mantissa = 23;
constexpr std::uint32_t kF32Bias = 127;
constexpr std::uint32_t kF32Sign = 0x80000000;
constexpr std::uint32_t kF32Infinity = 0x7f800000;
constexpr std::uint32_t kF32Quiet = 0x00400000;

// A type of 8 or 16 bits: sign, exponent, `mantissa` bits. No branches below: the compiler makes
// vectors of them.
template <typename WordType, unsigned mantissa, std::uint32_t bias, bool infinity>
struct SmallFloat {
  using Word = WordType;
  static constexpr unsigned kShift = kF32Mantissa - mantissa;
  static constexpr std::uint32_t kRebias = (kF32Bias - bias) << kF32Mantissa;
  // F32's bits of the smallest normal number, and of a number whose last bit is worth as much as
  // the last bit of the subnormal numbers.
  static constexpr std::uint32_t kNormalMin = (kF32Bias + 1 - bias) << kF32Mantissa;
  static constexpr std::uint32_t kMagic = (kF32Bias + 1 - bias + kShift) << kF32Mantissa;
  static constexpr unsigned kSignShift = 32 - 8 * sizeof(Word);
  static constexpr std::uint32_t kMagnitudeMask = (std::uint32_t{1} << (8 * sizeof(Word) - 1)) - 1;
  static constexpr std::uint32_t kExponentMask = kMagnitudeMask >> mantissa << mantissa;
  // What stands for NaN, and from which F32 on a number is too large even before it is rounded.
  static constexpr std::uint32_t kNan = sizeof(Word) == 2 ? 0x7e00 : 0x7f;
  static constexpr std::uint32_t kOverflow = infinity ? kExponentMask : kMagnitudeMask;
  static constexpr std::uint32_t kTooLarge = kRebias + (kOverflow << kShift);

  static Word from_f32(std::uint32_t bits) {
    const std::uint32_t sign = (bits & kF32Sign) >> kSignShift;
    const std::uint32_t magnitude = bits & ~kF32Sign;
    // A subnormal result is the number of its last bits, which the addition rounds.
    const float sum = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kMagic);
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(sum) - kMagic;
    const std::uint32_t odd = (magnitude >> kShift) & 1;
    const std::uint32_t half = (std::uint32_t{1} << (kShift - 1)) - 1;
    const std::uint32_t normal = (magnitude - kRebias + half + odd) >> kShift;
    std::uint32_t result = magnitude < kNormalMin ? subnormal : normal;
    result = magnitude >= kTooLarge ? kOverflow : result;
    result = magnitude > kF32Infinity ? kNan : result;
    return static_cast<Word>(result | sign);
  }

  static std::uint32_t to_f32(Word word) {
    const std::uint32_t sign = static_cast<std::uint32_t>(word & ~kMagnitudeMask) << kSignShift;
    const std::uint32_t magnitude = word & kMagnitudeMask;
    const float difference =
        std::bit_cast<float>(kMagic + magnitude) - std::bit_cast<float>(kMagic);
    const std::uint32_t normal = (magnitude << kShift) + kRebias;
    const std::uint32_t special =
        kF32Infinity | (magnitude << kShift) | (magnitude > kOverflow ? kF32Quiet : 0);
    std::uint32_t result =
        magnitude < (1u << mantissa) ? std::bit_cast<std::uint32_t>(difference) : normal;
    result = magnitude >= kOverflow ? special : result;
    return result | sign;
  }
};

using F16 = SmallFloat<std::uint16_t, 10, 15, true>;
using F8E5M2 = SmallFloat<std::uint8_t, 2, 15, true>;
using F8E4M3 = SmallFloat<std::uint8_t, 3, 7, false>;

struct BF16 {
  using Word = std::uint16_t;
  static Word from_f32(std::uint32_t bits) {
    const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return static_cast<Word>((bits & ~kF32Sign) > kF32Infinity ? 0x7fc0 : rounded);
  }
  static std::uint32_t to_f32(Word word) { return static_cast<std::uint32_t>(word) << 16; }
};

struct F32 {
  using Word = std::uint32_t;
  static Word from_f32(std::uint32_t bits) { return bits; }
  static std::uint32_t to_f32(Word word) { return word; }
};

struct F64 {
  using Word = std::uint64_t;
  static Word from_f32(std::uint32_t bits) {
    return std::bit_cast<std::uint64_t>(static_cast<double>(std::bit_cast<float>(bits)));
  }
  static std::uint32_t to_f32(Word word) {
    return std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(word)));
  }
};

template <typename From, typename To>
void cast_all(const std::uint8_t* __restrict in, std::uint8_t* __restrict out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto word = load_little<typename From::Word>(in + i * sizeof(typename From::Word));
    store_little(out + i * sizeof(typename To::Word), To::from_f32(From::to_f32(word)));
  }
}

// Calls `body` with the type of a dtype; false if there is none.
template <typename Body>
bool for_float(Dtype dtype, const Body& body) {
  switch (dtype) {
    case Dtype::kF64:
      body(F64{});
      return true;
    case Dtype::kF32:
      body(F32{});
      return true;
    case Dtype::kF16:
      body(F16{});
      return true;
    case Dtype::kBF16:
      body(BF16{});
      return true;
    case Dtype::kF8E4M3:
      body(F8E4M3{});
      return true;
    case Dtype::kF8E5M2:
      body(F8E5M2{});
      return true;
    default:
      return false;
  }
}

}  // namespace

Status cast_supported(Dtype from, Dtype to) {
  const auto ignore = [](auto) {};
  if (from == to || (for_float(from, ignore) && for_float(to, ignore))) return {};
  return {Code::kUnsupported, "no cast from " + std::string(dtype_name(from)) + " to " +
                                  std::string(dtype_name(to)) +
                                  ": casts are between F64, F32, F16, BF16, F8_E4M3 and F8_E5M2"};
}

void cast_words(Dtype from, Dtype to, ByteSpan in, MutableByteSpan out) {
  const std::size_t count = in.size() / word_bytes(from);
  DCR_ASSERT(count * word_bytes(from) == in.size() && count * word_bytes(to) == out.size());
  if (from == to) {
    if (count > 0) std::memcpy(out.data(), in.data(), in.size());
    return;
  }
  const bool known = for_float(from, [&]<typename From>(From) {
    const bool both = for_float(to, [&]<typename To>(To) {
      if constexpr (!std::is_same_v<From, To>) cast_all<From, To>(in.data(), out.data(), count);
    });
    DCR_ASSERT(both);
  });
  DCR_ASSERT(known);
}

}  // namespace dcr
