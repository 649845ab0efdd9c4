#include "bench/vector_passes.h"

#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/vector_passes.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.h, as Highway asks.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace dcr::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kLineBytes = 64;
// Hardware prefetchers stop at the end of a page.
constexpr std::size_t kPrefetchBytes = 8192;

std::uint64_t read_both_bytes(const std::uint8_t* a, const std::uint8_t* b, std::size_t size) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t step = hn::Lanes(d);
  const auto difference = [&](std::size_t at) {
    return hn::Xor(hn::LoadU(d, a + at), hn::LoadU(d, b + at));
  };
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  auto sum2 = hn::Zero(d);
  auto sum3 = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 4 * step <= size; i += 4 * step) {
    for (std::size_t line = 0; line < 4 * step; line += kLineBytes) {
      __builtin_prefetch(a + i + line + kPrefetchBytes);
      __builtin_prefetch(b + i + line + kPrefetchBytes);
    }
    sum0 = hn::Or(sum0, difference(i));
    sum1 = hn::Or(sum1, difference(i + step));
    sum2 = hn::Or(sum2, difference(i + 2 * step));
    sum3 = hn::Or(sum3, difference(i + 3 * step));
  }
  std::uint8_t lanes[HWY_MAX_BYTES] = {};
  hn::StoreU(hn::Or(hn::Or(sum0, sum1), hn::Or(sum2, sum3)), d, lanes);
  unsigned result = 0;
  for (std::size_t lane = 0; lane < step; ++lane) result |= lanes[lane];
  for (; i < size; ++i) result |= static_cast<unsigned>(a[i] ^ b[i]);
  return result;
}

void xor_words(std::uint16_t* target, const std::uint16_t* masks, std::size_t count) {
  const hn::ScalableTag<std::uint16_t> d;
  const std::size_t step = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + step <= count; i += step) {
    hn::StoreU(hn::Xor(hn::LoadU(d, target + i), hn::LoadU(d, masks + i)), d, target + i);
  }
  for (; i < count; ++i) target[i] = static_cast<std::uint16_t>(target[i] ^ masks[i]);
}

}  // namespace dcr::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dcr {

HWY_EXPORT(read_both_bytes);

std::uint64_t read_both(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  return HWY_DYNAMIC_DISPATCH(read_both_bytes)(a.data(), b.data(), a.size());
}

HWY_EXPORT(xor_words);

void xor_into(std::span<std::uint16_t> target, std::span<const std::uint16_t> masks) {
  HWY_DYNAMIC_DISPATCH(xor_words)(target.data(), masks.data(), target.size());
}

}  // namespace dcr
#endif
