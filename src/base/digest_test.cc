#include "base/digest.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace dcr {
namespace {

ByteSpan text(std::string_view value) {
  return {reinterpret_cast<const std::uint8_t*>(value.data()), value.size()};
}

// Vectors of the algorithms' own reference implementations.
TEST(Digest, MatchesTheReferenceVectors) {
  EXPECT_EQ(digest_text(blake2b({})), "cae66941d9efbd404e4d88758ea67670");
  EXPECT_EQ(digest_text(blake2b(text("abc"))), "cf4ab791c62b8d2b2109c90275287816");
  EXPECT_EQ(digest_text(xxh3({})), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(xxh3_64({}), 0x2d06800538d394c2u);
}

TEST(Digest, InPartsIsTheSameAsAtOnce) {
  Bytes bytes(1000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 7);
  for (const std::size_t cut : {0u, 1u, 127u, 128u, 129u, 999u, 1000u}) {
    Blake2b hash;
    hash.update(ByteSpan(bytes).first(cut));
    hash.update(ByteSpan(bytes).subspan(cut));
    EXPECT_EQ(hash.finish(), blake2b(bytes)) << cut;
  }
}

TEST(Digest, KeyChangesIt) {
  const Bytes key(32, 1);
  const Bytes other(32, 2);
  EXPECT_NE(blake2b(text("abc"), key), blake2b(text("abc")));
  EXPECT_NE(blake2b(text("abc"), key), blake2b(text("abc"), other));
  EXPECT_EQ(blake2b(text("abc"), key), blake2b(text("abc"), key));
}

TEST(Digest, EqualComparesEveryByte) {
  const Digest digest = blake2b(text("abc"));
  EXPECT_TRUE(digest_equal(digest, digest));
  for (std::size_t i = 0; i < digest.size(); ++i) {
    Digest changed = digest;
    changed[i] ^= 1;
    EXPECT_FALSE(digest_equal(digest, changed)) << i;
  }
}

TEST(Digest, OfATensorIsThatOfItsLeaves) {
  EXPECT_EQ(tensor_digest({}), xxh3({}));
  for (const std::size_t size : {std::size_t{1}, kDigestLeafBytes - 1, kDigestLeafBytes,
                                 kDigestLeafBytes + 1, 3 * kDigestLeafBytes}) {
    Bytes bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::uint8_t>(i % 251);
    std::vector<Digest> leaves;
    for (std::size_t at = 0; at < size; at += kDigestLeafBytes) {
      leaves.push_back(xxh3(ByteSpan(bytes).subspan(at, std::min(kDigestLeafBytes, size - at))));
    }
    Bytes joined;
    for (const Digest& leaf : leaves) joined.insert(joined.end(), leaf.begin(), leaf.end());
    EXPECT_EQ(tensor_digest(bytes), xxh3(joined)) << size;
    EXPECT_EQ(combine_leaves(leaves), xxh3(joined)) << size;
    bytes[size - 1] ^= 0x80;
    EXPECT_NE(tensor_digest(bytes), xxh3(joined)) << size;
  }
}

}  // namespace
}  // namespace dcr
