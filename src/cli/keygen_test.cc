// dcr keygen on real files.
#include <gtest/gtest.h>

#include <string>

#include "channel/keys.h"
#include "cli/test_run.h"
#include "tests/support/temp_directory.h"

namespace dcr {
namespace {

class KeygenTest : public testing::Test {
 protected:
  std::string content(const std::string& name) {
    const Result<Bytes> bytes = read_file(posix_file_system(), directory_.at(name), 1000);
    EXPECT_TRUE(bytes.ok()) << bytes.status().message();
    return bytes.ok() ? std::string(bytes->begin(), bytes->end()) : "";
  }
  std::size_t file_count() { return posix_file_system().list(directory_.path())->size(); }

  TempDirectory directory_;
};

TEST_F(KeygenTest, MakesASecretAndItsLine) {
  const Ran ran = run({"keygen", "owner-0", "-o", directory_.path().c_str()});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  const Result<NamedKeys> keys = read_key_file(posix_file_system(), directory_.at("owner-0.key"));
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  EXPECT_EQ(keys->name, "owner-0");
  EXPECT_EQ(ran.out, "owner-0 " + key_text(keys->keys.public_key) + "\n");
  EXPECT_EQ(content("owner-0.pub"), ran.out);
  EXPECT_EQ(*parse_allow_list(ran.out)->key_of("owner-0"), keys->keys.public_key);
  EXPECT_EQ(file_count(), 2U);
}

TEST_F(KeygenTest, SaysItInJson) {
  const Ran ran = run({"keygen", "a", "-o", directory_.path().c_str(), "--json"});
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_EQ(ran.json()["name"], "a");
  EXPECT_EQ(ran.json()["secret_file"], directory_.at("a.key"));
  EXPECT_EQ(ran.json()["public_file"], directory_.at("a.pub"));
  EXPECT_EQ("a " + ran.json()["public_key"].get<std::string>() + "\n", content("a.pub"));
  EXPECT_EQ(content("a.key").find(ran.json()["public_key"]), std::string::npos);
}

TEST_F(KeygenTest, AnExistingKeyNeedsForce) {
  ASSERT_EQ(run({"keygen", "a", "-o", directory_.path().c_str()}).exit_code, 0);
  const std::string secret = content("a.key"), line = content("a.pub");
  const Ran refused = run({"keygen", "a", "-o", directory_.path().c_str()});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.err, "dcr keygen: " + directory_.at("a.key") +
                             " exists and its key would be lost: --force replaces it\n");
  EXPECT_EQ(content("a.key"), secret);
  EXPECT_EQ(content("a.pub"), line);
  ASSERT_EQ(run({"keygen", "a", "-o", directory_.path().c_str(), "--force"}).exit_code, 0);
  EXPECT_NE(content("a.key"), secret);
  EXPECT_NE(content("a.pub"), line);
  EXPECT_EQ(file_count(), 2U);
}

TEST_F(KeygenTest, Errors) {
  const Ran name = run({"keygen", "a/b", "-o", directory_.path().c_str()});
  EXPECT_EQ(name.exit_code, 2);
  EXPECT_EQ(name.err,
            "dcr keygen: a name has the byte 47: names are letters, digits, '.', '_' and '-'\n");
  EXPECT_EQ(run({"keygen", "a"}).exit_code, 2);
  EXPECT_EQ(run({"keygen", "a", "-o", directory_.at("none").c_str()}).exit_code, 3);
  EXPECT_EQ(file_count(), 0U);
}

}  // namespace
}  // namespace dcr
