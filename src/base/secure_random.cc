#include "base/secure_random.h"

#include <sodium.h>

#include "base/assert.h"

namespace dcr {

void fill_random(MutableByteSpan out) {
  DCR_ASSERT(sodium_init() >= 0);
  if (out.empty()) return;  // libsodium declares its buffer never null
  randombytes_buf(out.data(), out.size());
}

}  // namespace dcr
