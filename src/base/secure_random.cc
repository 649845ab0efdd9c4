#include "base/secure_random.h"

#include <sodium.h>

#include "base/assert.h"

namespace dcr {

void fill_random(MutableByteSpan out) {
  DCR_ASSERT(sodium_init() >= 0);
  if (out.empty()) return;  // libsodium declares its buffer never null
  randombytes_buf(out.data(), out.size());
}

std::uint64_t random_number(std::uint64_t most) {
  DCR_ASSERT(most != 0 && (most & (most - 1)) == 0);
  std::uint8_t bytes[sizeof(std::uint64_t)];
  fill_random(bytes);
  return load_little<std::uint64_t>(bytes) % most + 1;
}

}  // namespace dcr
