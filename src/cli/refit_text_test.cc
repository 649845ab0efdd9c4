// `dcr refit` over a stand-in for the library.
#include "cli/refit_text.h"

#include <gtest/gtest.h>

#include <optional>

#include "cli/test_run.h"
#include "dcr/refit.h"
#include "runtime/clock.h"

namespace dcr {
namespace {

// What the stand-in was asked, and what it answers.
struct Refits {
  std::string call;
  RefitOptions options;
  std::uint64_t thread_nanoseconds = 0;
  std::optional<Status> failure;
  RefitResult result;
};
Refits asked;

class RefitCliTest : public testing::Test {
 protected:
  void SetUp() override { asked = {}; }
};

}  // namespace

Result<RefitResult> refit(const std::string& old_path, const std::string& new_path,
                          const RefitOptions& options) {
  asked.call = old_path + " " + new_path;
  asked.options = options;
  if (options.progress) options.progress({"scan", 4'000'000, 4'000'000});
  // The clock lives as long as the call.
  if (options.clock != nullptr) asked.thread_nanoseconds = options.clock->thread_nanoseconds();
  if (asked.failure) return *asked.failure;
  return asked.result;
}

namespace {

RefitResult some_refit() {
  RefitResult result;
  result.owners = 8;
  result.receivers = 1;
  result.tensors = 3;
  result.elements = 20'000'000;
  result.changed = 160'000;
  result.canonical_elements = 20'000'000;
  result.canonical_changed = 200'000;
  result.model_bytes = 40'000'000;
  result.payloads = 9;
  result.payload_bytes = 182'000;
  result.encodings = {{"add", 100}, {"overwrite", 3}};
  result.destinations = 320'000;
  result.owned_bytes_max = 6'000'000;
  result.owned_bytes_mean = 5'000'000;
  result.paths = {{"dense", 1}, {"traced", 2}};
  result.not_traced = {{"scale\x1b", 0, "dense", "its dtype has no placeholder"}};
  result.uneven = {{"inv_freq\x1b", "every rank's loader skips it"}};
  result.stages = {{"load", 1.5, 3}, {"scan", 0.25, 0.5}};
  result.startup_seconds = 2;
  result.refit_seconds = 0.5;
  result.owner_memory_bytes = std::uint64_t{1} << 30;
  result.receiver_memory_bytes = 3'000'000;
  result.compared_bytes = 41'000'000;
  return result;
}

TEST_F(RefitCliTest, PassesWhatWasAskedFor) {
  EXPECT_EQ(run({"refit", "a", "b"}).exit_code, 0);
  EXPECT_EQ(asked.call, "a b");
  EXPECT_EQ(asked.options.owners.file, "");
  EXPECT_EQ(asked.options.owners.generate, "fsdp:8");
  EXPECT_EQ(asked.options.receivers.file, "");
  EXPECT_EQ(asked.options.receivers.generate, "fused-tp:8");
  EXPECT_FALSE(asked.options.verify);
  EXPECT_EQ(asked.options.construction, RefitConstruction::kMixed);
  EXPECT_EQ(asked.options.threads, 0U);
  EXPECT_EQ(asked.options.memory_bytes_max, std::uint64_t{1} << 30);
  EXPECT_EQ(asked.options.arena_directory, "");
  EXPECT_FALSE(asked.options.post_apply_checks);
  EXPECT_NE(asked.options.cancel, nullptr);
  EXPECT_NE(asked.options.clock, nullptr);
  EXPECT_GT(asked.thread_nanoseconds, 0U);

  EXPECT_EQ(
      run({"refit", "a", "b", "--layout", "o.json", "--loader", "r.json", "--mode", "verify",
           "--threads", "3", "--memory", "512M", "--arena", "/var/tmp", "--post-apply-checks"})
          .exit_code,
      0);
  EXPECT_EQ(asked.options.owners.file, "o.json");
  EXPECT_EQ(asked.options.receivers.file, "r.json");
  EXPECT_TRUE(asked.options.verify);
  EXPECT_EQ(asked.options.threads, 3U);
  EXPECT_EQ(asked.options.memory_bytes_max, std::uint64_t{512} << 20);
  EXPECT_EQ(asked.options.arena_directory, "/var/tmp");
  EXPECT_TRUE(asked.options.post_apply_checks);

  EXPECT_EQ(
      run({"refit", "a", "b", "--owners", "tp:4", "--receivers", "fused-tp:2", "--mode", "write"})
          .exit_code,
      0);
  EXPECT_EQ(asked.options.owners.generate, "tp:4");
  EXPECT_EQ(asked.options.receivers.generate, "fused-tp:2");
  EXPECT_FALSE(asked.options.verify);
}

TEST_F(RefitCliTest, UsageErrorsExitWithTwoAndCallNothing) {
  const std::vector<std::pair<std::vector<const char*>, std::string>> cases = {
      {{"refit", "a"}, "NEW"},
      {{"refit", "a", "b", "c"}, "c"},
      {{"refit", "a", "b", "--layout", "x", "--owners", "fsdp:2"}, "excludes"},
      {{"refit", "a", "b", "--loader", "x", "--receivers", "fused-tp:2"}, "excludes"},
      {{"refit", "a", "b", "--mode", "compare"}, "--mode"},
      {{"refit", "a", "b", "--mode"}, "--mode"},
      {{"refit", "a", "b", "--memory", "255M"}, "at least 256M"},
      {{"refit", "a", "b", "--force"}, "--force"},
      {{"refit", "a", "b", "-o", "x"}, "-o"},
  };
  for (const auto& [arguments, words] : cases) {
    asked.call.clear();
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.exit_code, 2) << words;
    EXPECT_EQ(ran.out, "") << words;
    EXPECT_TRUE(holds(ran.err, words)) << ran.err;
    EXPECT_EQ(asked.call, "") << words;
  }
}

TEST_F(RefitCliTest, Text) {
  asked.result = some_refit();
  const Ran ran = run({"refit", "a", "b"});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_TRUE(ran.err.starts_with("scan: 4.00 MB of 4.00 MB (100 %)")) << ran.err;
  EXPECT_EQ(without_time(ran.out),
            R"(  stage    wall    busy
  load   1.50 s  3.00 s
  scan   0.25 s  0.50 s
paths of tensors on receivers: 1 dense, 2 traced
  scale\x1b on receiver 0: dense (its dtype has no placeholder)
  inv_freq\x1b: every rank's loader skips it
owned per owner: 6.00 MB at most, 1.20 of the mean
working memory at its peak: owners 1.07 GB, receivers 3.00 MB
8 owners to 1 receiver: 0.800 % of 20.0 M elements changed, 182 kB in 9 payloads, 0.50 s; )"
            "41.0 MB equal to a dense load");
  EXPECT_TRUE(ran.out.ends_with(" s in all\n")) << ran.out;
}

TEST_F(RefitCliTest, DifferencesExitWithOne) {
  asked.result = some_refit();
  asked.result.differing_bytes = 7;
  asked.result.differing = {"lm_head.weight of receiver 0"};
  const Ran ran = run({"refit", "a", "b"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_TRUE(holds(ran.out, "\ndiffers: lm_head.weight of receiver 0\n")) << ran.out;
  EXPECT_TRUE(holds(ran.out, "; 7 bytes of 41.0 MB differ from a dense load, ")) << ran.out;
  const auto json = run({"refit", "a", "b", "--json"}).json();
  EXPECT_EQ(json["equal"], false);
  EXPECT_EQ(json["differing_bytes"], 7);
  EXPECT_EQ(json["differing"], nlohmann::json({"lm_head.weight of receiver 0"}));
}

TEST_F(RefitCliTest, VerifySaysWhatReceiversHold) {
  asked.result = some_refit();
  Ran ran = run({"refit", "a", "b", "--mode", "verify"});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_TRUE(holds(ran.out,
                    "; receivers hold the new weights, nothing was written: 41.0 MB equal "
                    "to a dense load, "))
      << ran.out;
  asked.result.resident_different = 320'000;
  ran = run({"refit", "a", "b", "--mode", "verify"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_TRUE(holds(ran.out,
                    "; 320 k words of receivers are not the new weights', nothing was "
                    "written: 41.0 MB equal to a dense load, "))
      << ran.out;
  ran = run({"refit", "a", "b", "--mode", "verify", "--json"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_EQ(ran.json()["equal"], false);
  EXPECT_EQ(ran.json()["resident_different"], 320'000);
}

TEST_F(RefitCliTest, Json) {
  asked.result = some_refit();
  const Ran ran = run({"refit", "a", "b", "--json"});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(ran.out.find('\n'), ran.out.size() - 1);
  auto json = ran.json();
  EXPECT_GE(json["seconds"].get<double>(), 0);
  EXPECT_GT(json["peak_rss_bytes"].get<std::uint64_t>(), 100'000U);
  json.erase("seconds");
  json.erase("peak_rss_bytes");
  EXPECT_EQ(json, nlohmann::json::parse(R"({
    "equal": true, "owners": 8, "receivers": 1, "tensors": 3, "elements": 20000000,
    "changed": 160000, "change_rate": 0.008, "canonical_change_rate": 0.01,
    "model_bytes": 40000000, "payloads": 9, "payload_bytes": 182000,
    "encodings": {"add": 100, "overwrite": 3}, "destinations": 320000, "checked": 0,
    "owned_bytes_max": 6000000, "owned_bytes_mean": 5000000.0,
    "paths": {"dense": 1, "traced": 2},
    "not_traced": [{"tensor": "scale\u001b", "receiver": 0, "path": "dense",
                    "reason": "its dtype has no placeholder"}],
    "uneven": [{"tensor": "inv_freq\u001b", "reason": "every rank's loader skips it"}],
    "stages": [{"name": "load", "wall_seconds": 1.5, "busy_seconds": 3.0},
               {"name": "scan", "wall_seconds": 0.25, "busy_seconds": 0.5}],
    "startup_seconds": 2.0, "refit_seconds": 0.5, "owner_memory_bytes": 1073741824,
    "receiver_memory_bytes": 3000000, "resident_different": 0, "compared_bytes": 41000000,
    "differing_bytes": 0, "differing": []})"));
}

TEST_F(RefitCliTest, ErrorsKeepCodeMessageAndTensor) {
  asked.failure = Status(Code::kUnsupported, "receiver 0 refuses w: it is normalised", "w");
  Ran ran = run({"refit", "a", "b"});
  EXPECT_EQ(ran.exit_code, 3);
  EXPECT_EQ(ran.out, "");
  EXPECT_TRUE(holds(ran.err, "dcr refit: receiver 0 refuses w: it is normalised\n")) << ran.err;
  ran = run({"refit", "a", "b", "--json"});
  EXPECT_EQ(ran.exit_code, 3);
  EXPECT_EQ(ran.out,
            "{\"error\":{\"code\":\"unsupported\",\"message\":\"receiver 0 refuses w: it is "
            "normalised\",\"tensor\":\"w\"}}\n");
  asked.failure = Status(Code::kInvalidArgument, "layout \"x\": no");
  EXPECT_EQ(run({"refit", "a", "b"}).exit_code, 2);
  asked.failure = Status(Code::kIo, "No space left on device");
  EXPECT_EQ(run({"refit", "a", "b"}).exit_code, 4);
}

}  // namespace
}  // namespace dcr
