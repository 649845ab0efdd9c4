#include "run/run_peers.h"

#include <gtest/gtest.h>

#include "tests/support/temp_directory.h"

namespace dcr {
namespace {

PublicKey some_key() { return make_key_pair().public_key; }

TEST(ListedPeers, FindsByNameAndByKey) {
  ListedPeers peers;
  const PublicKey key = some_key();
  ASSERT_TRUE(peers.add("a", {"tcp://127.0.0.1:1", {Role::kOwner}, key}).ok());
  EXPECT_EQ(peers.find("a")->address, "tcp://127.0.0.1:1");
  EXPECT_EQ(peers.name_of(key), "a");
  EXPECT_EQ(peers.key_of("a"), key);
  EXPECT_FALSE(peers.find("b"));
  EXPECT_FALSE(peers.key_of("b"));
  EXPECT_EQ(peers.add("b", {"", {Role::kNode}, key}).code(), Code::kExists);
}

// One process publishes, another, which looked before, finds.
TEST(DirectoryPeers, WhoComesLaterIsFoundByNameAndByKey) {
  const TempDirectory directory;
  DirectoryPeers ours(directory.path(), "/run"), theirs(directory.path(), "/run");
  const PublicKey a = some_key(), b = some_key();
  EXPECT_FALSE(ours.find("a"));
  EXPECT_FALSE(ours.name_of(b));
  ASSERT_TRUE(theirs.publish("a", {Role::kOwner}, a).ok());
  ASSERT_TRUE(theirs.publish("b", {Role::kCoordinator, true}, b).ok());
  EXPECT_EQ(ours.name_of(b), "b");
  EXPECT_EQ(ours.key_of("a"), a);
  EXPECT_EQ(ours.find("a")->address, "ipc:///run/a.socket");
  EXPECT_EQ(ours.find("a")->role.role, Role::kOwner);
  EXPECT_FALSE(ours.find("a")->role.is_operator);
  EXPECT_TRUE(ours.find("b")->role.is_operator);
  EXPECT_TRUE(ours.publish("a", {Role::kOwner}, a).ok());
  EXPECT_EQ(ours.publish("a", {Role::kOwner}, b).message(),
            "a is known in this run as owner and under another key: name this endpoint otherwise");
  EXPECT_EQ(ours.publish("a", {Role::kGate}, a).message(),
            "a is known in this run as owner: name this endpoint otherwise");
  EXPECT_EQ(ours.publish("c.partial", {Role::kGate}, some_key()).code(), Code::kInvalidArgument);
}

TEST(DirectoryPeers, WhatIsNoPeersFileIsNobody) {
  const TempDirectory directory;
  const std::string key = key_text(some_key());
  directory.put("a", "b owner " + key + "\n");
  directory.put("b", "b king " + key + "\n");
  directory.put("c", "c owner " + key);
  directory.put("d", "d owner " + key + " \n");
  directory.put("e", std::string(300, 'e'));
  directory.put("f", "");
  const DirectoryPeers peers(directory.path(), "/run");
  for (const char* name : {"a", "b", "c", "d", "e", "f", "..", "a/b", ""}) {
    EXPECT_FALSE(peers.find(name)) << name;
  }
  EXPECT_FALSE(peers.name_of(*parse_key(key)));
}

// A key that two files have is the first one's that was looked for.
TEST(DirectoryPeers, AKeyIsOneEndpoints) {
  const TempDirectory directory;
  const std::string key = key_text(some_key());
  directory.put("a", "a owner " + key + "\n");
  directory.put("b", "b node " + key + "\n");
  const DirectoryPeers peers(directory.path(), "/run");
  EXPECT_TRUE(peers.find("a"));
  EXPECT_FALSE(peers.find("b"));
}

}  // namespace
}  // namespace dcr
