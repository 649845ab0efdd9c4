#include "channel/keys.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <set>
#include <string>

#include "dcr/control.h"
#include "tests/support/temp_directory.h"

namespace dcr {
namespace {

constexpr const char* kAliceSecret =
    "77076d0a7318a57d3c16c17251b26645c6d4b9c3c2a2d6b4f0f0d1d1ec5b7e2b";
std::string text_of(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

NamedKeys named(const std::string& name) {
  NamedKeys keys;
  keys.name = name;
  keys.keys = make_key_pair();
  return keys;
}

class KeyFileTest : public testing::Test {
 protected:
  FileSystem& files_ = posix_file_system();
  TempDirectory directory_;
  std::string path_ = directory_.at("owner-0.key");

  void put_secret(const std::string& text) {
    directory_.put("owner-0.key", text);
    ASSERT_TRUE(files_.set_permissions(path_, 0600).ok());
  }
};

TEST(Keys, EachIsAnother) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) seen.insert(key_text(make_key_pair().public_key));
  EXPECT_EQ(seen.size(), 100U);
}

TEST(Keys, ComeBackFromTheirText) {
  for (int i = 0; i < 100; ++i) {
    const KeyPair keys = make_key_pair();
    const std::string text = key_text(keys.public_key);
    EXPECT_EQ(text.size(), 64U);
    EXPECT_EQ(*parse_key(text), keys.public_key);
  }
}

TEST(Keys, OtherSpellingsAreRefused) {
  const std::string text = key_text(make_key_pair().public_key);
  const std::string refusal =
      "a public key is 64 lower-case hexadecimal digits, as dcr keygen prints them";
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_EQ(parse_key(text.substr(0, size)).status().message(), refusal) << size;
  }
  EXPECT_EQ(parse_key(text + "0").status().message(), refusal);
  EXPECT_EQ(parse_key(" " + text).status().message(), refusal);
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (const char letter : {'A', 'F', 'g', '/', ':', '`', ' ', '\0', '\x80'}) {
      std::string damaged = text;
      damaged[at] = letter;
      EXPECT_EQ(parse_key(damaged).status().message(), refusal) << at << letter;
    }
  }
}

TEST(Keys, PointsOfLowOrderAreRefused) {
  for (const char* low : {"0000000000000000000000000000000000000000000000000000000000000000",
                          "0100000000000000000000000000000000000000000000000000000000000000",
                          "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
                          "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"}) {
    const Status status = parse_key(low).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.message(), "the public key " + std::string(low) +
                                    " is a point of low order: it keeps nothing secret; make one "
                                    "with dcr keygen");
  }
}

TEST(Keys, AMovedSecretIsNowhereElse) {
  KeyPair keys = make_key_pair();
  const auto bytes = keys.secret.bytes();
  SecretKey moved = std::move(keys.secret);
  EXPECT_EQ(moved.bytes(), bytes);
  EXPECT_EQ(keys.secret.bytes(), (std::array<std::uint8_t, kKeyBytes>{}));
  SecretKey assigned;
  assigned = std::move(moved);
  EXPECT_EQ(assigned.bytes(), bytes);
  // NOLINTNEXTLINE(bugprone-use-after-move): what is left in it is the question
  EXPECT_EQ(moved.bytes(), (std::array<std::uint8_t, kKeyBytes>{}));
}

TEST_F(KeyFileTest, ComesBackAsItWas) {
  const NamedKeys keys = named("owner-0");
  ASSERT_TRUE(write_key_file(files_, path_, keys, false).ok());
  EXPECT_EQ(files_.info(path_, false)->permissions, 0600U);
  EXPECT_EQ(files_.list(directory_.path())->size(), 1U);
  const Result<NamedKeys> read = read_key_file(files_, path_);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->name, "owner-0");
  EXPECT_EQ(read->keys.public_key, keys.keys.public_key);
  EXPECT_EQ(read->keys.secret.bytes(), keys.keys.secret.bytes());
}

TEST_F(KeyFileTest, IsOneLine) {
  put_secret(std::string("dcr-secret-key alice ") + kAliceSecret + "\n");
  const Result<NamedKeys> alice = read_key_file(files_, path_);
  ASSERT_TRUE(alice.ok()) << alice.status().message();
  EXPECT_EQ(alice->name, "alice");
  const std::string again = directory_.at("again.key");
  ASSERT_TRUE(write_key_file(files_, again, *alice, false).ok());
  EXPECT_EQ(text_of(*read_file(files_, again, 1000)),
            std::string("dcr-secret-key alice ") + kAliceSecret + "\n");
}

TEST_F(KeyFileTest, IsReplacedOnDemandOnly) {
  const NamedKeys first = named("a");
  const NamedKeys second = named("b");
  ASSERT_TRUE(write_key_file(files_, path_, first, false).ok());
  const Status refused = write_key_file(files_, path_, second, false);
  EXPECT_EQ(refused.code(), Code::kExists);
  EXPECT_EQ(refused.message(), path_ + " exists and its key would be lost: --force replaces it");
  EXPECT_EQ(read_key_file(files_, path_)->name, "a");
  ASSERT_TRUE(write_key_file(files_, path_, second, true).ok());
  EXPECT_EQ(read_key_file(files_, path_)->name, "b");
  const Status directory = write_key_file(files_, directory_.path(), first, true);
  EXPECT_EQ(directory.code(), Code::kExists);
  EXPECT_EQ(directory.message(),
            directory_.path() + " exists and is no regular file: give another path");
  EXPECT_EQ(write_key_file(files_, path_, named("a/b"), true).code(), Code::kInvalidArgument);
}

TEST_F(KeyFileTest, AKilledWriterIsInNobodysWay) {
  directory_.put("owner-0.key.partial", "half");
  ASSERT_TRUE(write_key_file(files_, path_, named("a"), false).ok());
  EXPECT_EQ(files_.list(directory_.path())->size(), 1U);
  EXPECT_EQ(files_.info(path_, false)->permissions, 0600U);
}

TEST_F(KeyFileTest, ThatOthersMayUseIsRefused) {
  ASSERT_TRUE(write_key_file(files_, path_, named("a"), false).ok());
  for (std::uint32_t mode = 0; mode < 01000; ++mode) {
    FileInfo info = *files_.info(path_, true);
    info.permissions = mode;
    const Status status = check_secret_file(path_, info, info.owner);
    EXPECT_EQ(status.ok(), (mode & ~0600U) == 0) << mode;
  }
  ASSERT_TRUE(files_.set_permissions(path_, 0640).ok());
  const Status wide = read_key_file(files_, path_).status();
  EXPECT_EQ(wide.code(), Code::kInvalidArgument);
  EXPECT_EQ(wide.message(), path_ +
                                " holds a secret but others may use it: chmod 600 it, and if "
                                "others can have read it, make a new key");
  FileInfo info = *files_.info(path_, true);
  EXPECT_EQ(info.owner, ::geteuid());
  info.permissions = 0600;
  EXPECT_EQ(check_secret_file(path_, info, info.owner + 1).message(),
            path_ + " belongs to user " + std::to_string(info.owner) + ", not to user " +
                std::to_string(info.owner + 1) +
                " who runs this: its key is not this user's secret");
  EXPECT_EQ(read_key_file(files_, directory_.path()).status().message(),
            directory_.path() + " is no regular file, so it holds no key");
  EXPECT_EQ(read_key_file(files_, directory_.at("none")).status().code(), Code::kNotFound);
}

TEST_F(KeyFileTest, DamagedOnesAreRefusedAndShowNoSecret) {
  const std::string whole = std::string("dcr-secret-key alice ") + kAliceSecret + "\n";
  const std::string refusal = path_ +
                              " is no key file: it should be one line, \"dcr-secret-key NAME "
                              "SECRET\", as dcr keygen writes it";
  for (std::size_t size = 0; size < whole.size(); ++size) {
    put_secret(whole.substr(0, size));
    const Status status = read_key_file(files_, path_).status();
    EXPECT_EQ(status.code(), Code::kCorrupt) << size;
    EXPECT_EQ(status.message(), refusal) << size;
  }
  for (const std::string& text :
       {whole + "\n", " " + whole, "dcr-secret-key  alice " + std::string(kAliceSecret) + "\n",
        "dcr-secret-key al/ice " + std::string(kAliceSecret) + "\n",
        "dcr-public-key alice " + std::string(kAliceSecret) + "\n"}) {
    put_secret(text);
    EXPECT_EQ(read_key_file(files_, path_).status().message(), refusal) << text;
  }
  put_secret(std::string(kKeyFileBytesMax + 1, 'a'));
  EXPECT_EQ(read_key_file(files_, path_).status().code(), Code::kTooLarge);
}

TEST(AllowListTest, NamesAndKeysGoTogether) {
  AllowList list;
  const PublicKey a = make_key_pair().public_key;
  const PublicKey b = make_key_pair().public_key;
  ASSERT_TRUE(list.add("a", a).ok());
  ASSERT_TRUE(list.add("b", b).ok());
  EXPECT_EQ(*list.key_of("a"), a);
  EXPECT_EQ(*list.name_of(b), "b");
  EXPECT_FALSE(list.key_of("c"));
  EXPECT_FALSE(list.name_of(make_key_pair().public_key));
  EXPECT_EQ(list.add("a", make_key_pair().public_key).message(), "a has a key already");
  EXPECT_EQ(list.add("c", b).message(),
            "the key of c is that of b: every endpoint has a key of its own");
  EXPECT_EQ(list.add("", b).code(), Code::kInvalidArgument);
  EXPECT_EQ(list.size(), 2U);
}

TEST(AllowListTest, HoldsAllEndpointsOfARunAndNoMore) {
  AllowList list;
  PublicKey key{};
  for (std::uint64_t i = 0; i < kEndpointsMax; ++i) {
    store_little(key.data(), i);
    ASSERT_TRUE(list.add("e" + std::to_string(i), key).ok());
  }
  store_little(key.data(), kEndpointsMax);
  const Status status = list.add("last", key);
  EXPECT_EQ(status.code(), Code::kTooLarge);
  EXPECT_EQ(status.message(), "an allow-list has at most 16384 endpoints");
}

TEST(AllowListTest, IsReadFromLines) {
  const PublicKey a = make_key_pair().public_key;
  const PublicKey b = make_key_pair().public_key;
  const Result<AllowList> list =
      parse_allow_list("# who may take part\n\n" + allow_list_line("a", a) + "b " + key_text(b));
  ASSERT_TRUE(list.ok()) << list.status().message();
  EXPECT_EQ(list->size(), 2U);
  EXPECT_EQ(*list->key_of("b"), b);
  EXPECT_EQ(parse_allow_list("")->size(), 0U);

  const std::string line = allow_list_line("a", a);
  const auto refusal = [](const std::string& text) {
    return parse_allow_list(text).status().message();
  };
  EXPECT_EQ(refusal(line + line), "line 2 of the allow-list: a has a key already");
  EXPECT_EQ(refusal("\n a " + key_text(a)),
            "line 2 of the allow-list is not \"NAME KEY\" with one space between");
  EXPECT_EQ(refusal("a\n"), "line 1 of the allow-list is not \"NAME KEY\" with one space between");
  EXPECT_EQ(refusal("a " + key_text(a) + "\r\n"),
            "line 1 of the allow-list: a public key is 64 lower-case hexadecimal digits, as dcr "
            "keygen prints them");
  EXPECT_EQ(refusal("a/b " + key_text(a)),
            "line 1 of the allow-list: a name has the byte 47: names are letters, digits, '.', "
            "'_' and '-'");
  EXPECT_EQ(parse_allow_list(std::string(kAllowListBytesMax + 1, '\n')).status().code(),
            Code::kTooLarge);
}

}  // namespace
}  // namespace dcr
