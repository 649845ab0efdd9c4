#include "run/run_config.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace dcr {
namespace {

RunConfig sample() {
  RunConfig config;
  config.directory = "/run";
  config.objects = "/objects";
  config.work = "/work";
  config.base = "/checkpoints/0";
  config.owners = "fsdp:2";
  config.receivers = "/layouts/receivers.json";
  config.threads = 3;
  config.requests = false;
  config.waits.leader_ms = 123;
  auto peer = [port = 1000](const std::string& name) mutable {
    return PeerConfig{name, "tcp://127.0.0.1:" + std::to_string(port++), "key of " + name};
  };
  config.coordinators = {peer("coordinator-0"), peer("coordinator-1")};
  config.owner_peers = {peer("owner-0"), peer("owner-1")};
  config.owner_peers[1].collective = "tcp://127.0.0.1:2000";
  config.nodes = {peer("node-0")};
  config.engines = {{peer("engine-0"), "node-0", {peer("receiver-0"), peer("receiver-1")}}};
  config.operators = {peer("operator")};
  return config;
}

void expect_refused(const std::string& text, const std::string& message) {
  const auto parsed = parse_run_config(text, "/run");
  ASSERT_FALSE(parsed.ok()) << text;
  EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(parsed.status().message(), message);
}

TEST(RunConfig, WhatIsWrittenIsRead) {
  const std::string text = format_run_config(sample());
  const auto parsed = parse_run_config(text, "/elsewhere");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message() << "\n" << text;
  EXPECT_EQ(format_run_config(*parsed), text);
  EXPECT_EQ(parsed->waits.leader_ms, 123U);
  EXPECT_EQ(parsed->threads, 3U);
  EXPECT_FALSE(parsed->requests);
  EXPECT_EQ(parsed->owner_peers[0].collective, "");
  EXPECT_EQ(parsed->owner_peers[1].collective, "tcp://127.0.0.1:2000");
  ASSERT_EQ(parsed->engines.size(), 1U);
  EXPECT_EQ(parsed->engines[0].node, "node-0");
  EXPECT_EQ(parsed->engines[0].receivers[1].address, "tcp://127.0.0.1:1007");
}

TEST(RunConfig, PathsCountFromWhereTheFileLies) {
  RunConfig config = sample();
  config.directory = "run";
  config.objects = "../objects";
  config.work = ".";
  config.base = "../base";
  config.receivers = "./receivers.json";
  const auto parsed = parse_run_config(format_run_config(config), "/place");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->directory, "/place/run");
  EXPECT_EQ(parsed->objects, "/place/../objects");
  EXPECT_EQ(parsed->work, "/place/.");
  EXPECT_EQ(parsed->base, "/place/../base");
  EXPECT_EQ(parsed->receivers, "/place/./receivers.json");
  EXPECT_EQ(parsed->owners, "fsdp:2");
}

TEST(RunConfig, UnknownKeysSuggestTheNearest) {
  const std::string good = format_run_config(sample());
  expect_refused("memory_bytes = 5\n" + good,
                 "line 1: unknown key memory_bytes in the file; did you mean memory_bytes_max?");
  expect_refused("zebra = 5\n" + good, "line 1: unknown key zebra in the file");
  expect_refused(good + "\n[[owner]]\nname = 'a'\naddress = 'b'\npublic_key = 'c'\nadress = 'd'\n",
                 "line " + std::to_string(std::count(good.begin(), good.end(), '\n') + 6) +
                     ": unknown key adress in owner; did you mean address?");
}

TEST(RunConfig, SaysWhatIsWrong) {
  const std::string head =
      "directory = 'run'\nbase = 'base'\nowners = 'fsdp:1'\nreceivers = 'fused-tp:1'\n";
  const std::string owner = "[[owner]]\nname = 'o'\naddress = 'a'\npublic_key = 'k'\n";
  ASSERT_TRUE(parse_run_config(head + owner, "/").ok());
  EXPECT_TRUE(parse_run_config(head + owner, "/")->requests);
  expect_refused("base = 'base'\n", "line 1: the file has no directory");
  expect_refused("directory = 'run'\nbase = 'base'\nowners = 'fsdp:1'\n" + owner,
                 "the file has owners and no receivers: a run of checkpoints has base, owners and "
                 "receivers, one of trainers and engines none of them");
  expect_refused(head, "the run has no owner");
  expect_refused(head + owner + owner, "two endpoints are named o");
  expect_refused(head + "threads = 0\n" + owner, "line 5: threads is no whole number from 1");
  expect_refused(head + "threads = 5000\n" + owner, "threads is above 1024");
  expect_refused(head + "threads = 'two'\n" + owner, "line 5: threads is no whole number from 1");
  expect_refused(head + "requests = 1\n" + owner, "line 5: requests is neither true nor false");
  expect_refused(head + "owner = 5\n", "line 5: owner is no list of tables");
  expect_refused(head + "[waits]\nlook_m = 5\n" + owner,
                 "line 6: unknown key look_m in waits; did you mean look_ms?");
  expect_refused(head + owner +
                     "[[engine]]\nname = 'e'\naddress = 'a'\npublic_key = 'k'\nnode = 'n'\n"
                     "[[engine.receiver]]\nname = 'r'\naddress = 'a'\npublic_key = 'k'\n",
                 "e is on node n, which there is not");
  expect_refused(
      head + owner + "[[engine]]\nname = 'e'\naddress = 'a'\npublic_key = 'k'\nnode = 'n'\n",
      "line 9: e has no receiver");
}

TEST(RunConfig, TrainersAndEnginesBringTheWeights) {
  const auto parsed = parse_run_config(
      "directory = 'run'\n[[owner]]\nname = 'o'\naddress = 'a'\npublic_key = 'k'\n", "/");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->base + parsed->owners + parsed->receivers, "");
  EXPECT_EQ(check_has_base(*parsed, "dcr owner is for others").message(),
            "the run's file has no base: its owners and engines are trainers and servers, which "
            "take part by themselves; dcr owner is for others");
  EXPECT_TRUE(check_has_base(sample(), "").ok());
}

TEST(RunConfig, NearestIsNearEnoughOrNothing) {
  EXPECT_EQ(nearest("adress", {"name", "address"}), "address");
  EXPECT_EQ(nearest("bitdif", {"bitdiff", "encode"}), "bitdiff");
  EXPECT_EQ(nearest("zebra", {"name", "address"}), "");
  EXPECT_EQ(nearest("", {}), "");
}

TEST(RunConfig, FindsPeersByTheirNames) {
  const RunConfig config = sample();
  EXPECT_EQ(all_peers(config).size(), 9U);
  ASSERT_TRUE(find_peer(config, "receiver-1").ok());
  EXPECT_EQ(find_peer(config, "receiver-1")->public_key, "key of receiver-1");
  EXPECT_EQ(find_peer(config, "reciever-1").status().message(),
            "no endpoint is named reciever-1; did you mean receiver-1?");
}

}  // namespace
}  // namespace dcr
