// Digests (docs/FORMAT.md, "Digests"). Two kinds with two jobs:
//  - BLAKE2b-128 over payloads, footers and journals: nothing is parsed before it is verified;
//  keyed when a run
//    key is configured, so that a store need not be trusted.
//  - XXH3-128 over tensors: finds accidents at memory speed; its authenticity comes from the
//  BLAKE2b over the
//    table that holds it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace dcr {

using Digest = std::array<std::uint8_t, 16>;

// Algorithm ids, stored beside every digest.
inline constexpr std::uint8_t kDigestBlake2b128 = 1;
inline constexpr std::uint8_t kDigestBlake2b128Keyed = 2;
inline constexpr std::uint8_t kDigestXxh3Leaves = 3;

// Lower-case hexadecimal, 32 letters.
std::string digest_text(const Digest& digest);

// Constant-time comparison.
bool digest_equal(const Digest& a, const Digest& b);

// BLAKE2b with a 16-byte output, fed in parts. Not thread-safe.
class Blake2b {
 public:
  // `key`: empty, or 16 to 64 bytes.
  explicit Blake2b(ByteSpan key = {});
  ~Blake2b();
  Blake2b(const Blake2b&) = delete;
  Blake2b& operator=(const Blake2b&) = delete;

  void update(ByteSpan bytes);
  // REQUIRES: called once, last.
  Digest finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Digest blake2b(ByteSpan bytes, ByteSpan key = {});

// The leaf size of a tensor digest, in bytes.
inline constexpr std::size_t kDigestLeafBytes = std::size_t{1} << 20;

// XXH3-128 (seed 0) of one leaf, in canonical (big-endian) byte order.
Digest xxh3(ByteSpan bytes);

// A tensor's digest: XXH3-128 over the concatenated XXH3-128s of its 1 MiB leaves (the last may be
// shorter; an empty tensor has none). Leaves may be digested by any thread; they are combined in
// their order.
Digest combine_leaves(const std::vector<Digest>& leaves);

// The digest of a whole buffer.
Digest tensor_digest(ByteSpan bytes);

// XXH3-64 with seed 0.
std::uint64_t xxh3_64(ByteSpan bytes);

}  // namespace dcr
