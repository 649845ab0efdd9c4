#include "base/digest.h"

#define XXH_INLINE_ALL
#include <sodium.h>
#include <xxhash.h>

#include "base/assert.h"
#include "base/hexadecimal.h"

namespace dcr {

std::string digest_text(const Digest& digest) {
  std::string text;
  text.reserve(2 * digest.size());
  append_hexadecimal(digest, &text);
  return text;
}

bool digest_equal(const Digest& a, const Digest& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

struct Blake2b::State {
  crypto_generichash_state sodium;
};

Blake2b::Blake2b(ByteSpan key) : state_(std::make_unique<State>()) {
  // Idempotent and thread-safe; it picks the fastest implementation for this CPU.
  static const int kInitialised = sodium_init();
  DCR_ASSERT(kInitialised >= 0);
  DCR_ASSERT(key.empty() || (key.size() >= crypto_generichash_KEYBYTES_MIN &&
                             key.size() <= crypto_generichash_KEYBYTES_MAX));
  const int failed = crypto_generichash_init(&state_->sodium, key.empty() ? nullptr : key.data(),
                                             key.size(), sizeof(Digest));
  DCR_ASSERT(failed == 0);
}

Blake2b::~Blake2b() = default;

void Blake2b::update(ByteSpan bytes) {
  const int failed = crypto_generichash_update(&state_->sodium, bytes.data(), bytes.size());
  DCR_ASSERT(failed == 0);
}

Digest Blake2b::finish() {
  Digest digest;
  const int failed = crypto_generichash_final(&state_->sodium, digest.data(), digest.size());
  DCR_ASSERT(failed == 0);
  return digest;
}

Digest blake2b(ByteSpan bytes, ByteSpan key) {
  Blake2b hash(key);
  hash.update(bytes);
  return hash.finish();
}

Digest xxh3(ByteSpan bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  Digest digest;
  static_assert(sizeof(canonical.digest) == sizeof(Digest));
  std::memcpy(digest.data(), canonical.digest, digest.size());
  return digest;
}

Digest combine_leaves(const std::vector<Digest>& leaves) {
  static_assert(sizeof(Digest) == 16);
  return xxh3(
      {reinterpret_cast<const std::uint8_t*>(leaves.data()), leaves.size() * sizeof(Digest)});
}

Digest tensor_digest(ByteSpan bytes) {
  std::vector<Digest> leaves;
  for (std::size_t offset = 0; offset < bytes.size(); offset += kDigestLeafBytes) {
    leaves.push_back(
        xxh3(bytes.subspan(offset, std::min(kDigestLeafBytes, bytes.size() - offset))));
  }
  return combine_leaves(leaves);
}

std::uint64_t xxh3_64(ByteSpan bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace dcr
