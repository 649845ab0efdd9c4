#include "channel/allow_handler.h"

#include <gtest/gtest.h>

namespace dcr {
namespace {

Bytes bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

class AllowHandlerTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(peers_.add("owner-0", key_).ok()); }

  std::vector<Bytes> question(const PublicKey& key) const {
    return {bytes_of("1.0"),
            bytes_of("7"),
            bytes_of("dcr"),
            bytes_of("10.0.0.1"),
            Bytes(),
            bytes_of("CURVE"),
            Bytes(key.begin(), key.end())};
  }
  void expect_denied(const std::vector<Bytes>& asked) const {
    const KeyAnswer answer = answer_key_question(asked, peers_);
    EXPECT_FALSE(answer.allowed);
    ASSERT_EQ(answer.frames.size(), 6U);
    EXPECT_EQ(answer.frames[0], bytes_of("1.0"));
    EXPECT_EQ(answer.frames[2], bytes_of("400"));
    EXPECT_EQ(answer.frames[4], Bytes());
  }

  const PublicKey key_ = make_key_pair().public_key;
  AllowList peers_;
};

TEST_F(AllowHandlerTest, AKnownKeyGetsItsName) {
  const KeyAnswer answer = answer_key_question(question(key_), peers_);
  EXPECT_TRUE(answer.allowed);
  EXPECT_EQ(answer.frames, (std::vector<Bytes>{bytes_of("1.0"), bytes_of("7"), bytes_of("200"),
                                               bytes_of("OK"), bytes_of("owner-0"), Bytes()}));
}

TEST_F(AllowHandlerTest, AnUnknownKeyIsDeniedAndShown) {
  const PublicKey other = make_key_pair().public_key;
  expect_denied(question(other));
  const KeyAnswer answer = answer_key_question(question(other), peers_);
  EXPECT_EQ(answer.frames[1], bytes_of("7"));
  EXPECT_EQ(answer.key, key_text(other));
  EXPECT_EQ(answer.address, "10.0.0.1");
  expect_denied(question({}));
}

TEST_F(AllowHandlerTest, AnyOtherQuestionIsDenied) {
  const std::vector<Bytes> good = question(key_);
  for (std::size_t size = 0; size < good.size(); ++size) {
    expect_denied({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)});
  }
  std::vector<Bytes> asked = good;
  asked.emplace_back();
  expect_denied(asked);
  for (const std::size_t at : {0U, 2U, 5U, 6U}) {
    asked = good;
    asked[at].pop_back();
    expect_denied(asked);
    asked[at] = good[at];
    asked[at].push_back(0);
    expect_denied(asked);
    asked[at] = good[at];
    asked[at][0] ^= 1;
    expect_denied(asked);
  }
  for (const char* mechanism : {"NULL", "PLAIN", "GSSAPI"}) {
    asked = good;
    asked[5] = bytes_of(mechanism);
    expect_denied(asked);
  }
}

TEST_F(AllowHandlerTest, AnAddressCannotWriteToATerminal) {
  std::vector<Bytes> asked = question(key_);
  asked[3] = bytes_of("10.0.0.1\x1b[2J\n");
  EXPECT_EQ(answer_key_question(asked, peers_).address, "10.0.0.1??2??");
  asked[3] = Bytes(1000, '1');
  EXPECT_EQ(answer_key_question(asked, peers_).address, std::string(64, '1'));
}

}  // namespace
}  // namespace dcr
