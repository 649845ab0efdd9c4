#include "cli/run_text.h"

#include <gtest/gtest.h>

#include "cli/json.h"
#include "cli/test_run.h"

namespace dcr {
namespace {

RunStatus some_status() {
  RunStatus status;
  ControlRecords& records = status.membership.records;
  records.commit = {{3, 4}, "step 3"};
  records.leader.holder = {"coordinator-1", 9};
  records.transition.attempt = 5;
  records.transition.base = {3, 4};
  records.transition.state = AttemptState::kActive;
  Member owner;
  owner.endpoint = {"owner-0", 2};
  owner.role = Role::kOwner;
  owner.state = MemberState::kMember;
  Member receiver;
  receiver.endpoint = {"receiver-0", 3};
  receiver.role = Role::kReceiver;
  receiver.state = MemberState::kMember;
  receiver.engine = "engine-0";
  Member gate;
  gate.endpoint = {"engine-0", 4};
  gate.role = Role::kGate;
  status.membership.members = {owner, receiver, gate};
  StatusReply applies;
  applies.state = "applies";
  applies.detail = "waits for owner 1's end";
  applies.held = VersionId{1, 1};
  status.endpoints["receiver-0"] = applies;
  status.silent = {"owner-0"};
  return status;
}

std::vector<EngineStatus> some_engines() {
  EngineStatus closed{"engine-0", true, false, "receiver-0 writes, or is about to", 2.5, 1};
  EngineStatus open{"engine-1", true, true, "", 61, 3};
  EngineStatus silent;
  silent.name = "engine-2";
  return {closed, open, silent};
}

TEST(RunText, StatusSaysHowEachEngineStands) {
  EXPECT_EQ(status_text(some_status(), some_engines()),
            "committed: version 3 (step 3)\n"
            "transition: attempt 5 is active, for version 4, mixed\n"
            "leader: coordinator-1\n"
            "engine engine-0: closed for 2.50 s: receiver-0 writes, or is about to; holds version "
            "1, committed is version 3: 2 versions behind\n"
            "engine engine-1: open for 1 min 1 s; holds version 3, committed is version 3\n"
            "engine engine-2: gate is silent; holds no version, committed is version 3\n"
            "owner owner-0: member, silent\n"
            "receiver receiver-0: member, applies (waits for owner 1's end), holds version 1\n");
}

TEST(RunText, StatusJsonSaysNullWhereNobodyKnows) {
  RunCounts counts;
  nlohmann::json told = nlohmann::json::parse(status_json(some_status(), some_engines(), counts));
  EXPECT_EQ(told["committed_version"], 3);
  EXPECT_EQ(told["attempts"], 5);
  EXPECT_EQ(told["refits"], 3);
  EXPECT_EQ(told["receivers"], 1);
  for (const char* key : {"kills", "bytes_compared", "bytes_differing", "reads", "reads_different",
                          "gate_seconds", "seconds", "payload_bytes"}) {
    EXPECT_TRUE(told[key].is_null()) << key;
  }
  EXPECT_EQ(told["engines"][0]["lag"], 2);
  EXPECT_EQ(told["engines"][1]["gate"], "open");
  EXPECT_TRUE(told["engines"][2]["gate"].is_null());
  EXPECT_TRUE(told["engines"][2]["lag"].is_null());
  counts.engines.engines = 1;
  counts.engines.bytes_compared = 70;
  counts.owners = 1;
  counts.payload_bytes = 80;
  told = nlohmann::json::parse(status_json(some_status(), some_engines(), counts));
  EXPECT_EQ(told["bytes_compared"], 70);
  EXPECT_EQ(told["bytes_differing"], 0);
  EXPECT_EQ(told["payload_bytes"], 80);
  EXPECT_TRUE(told["kills"].is_null());
}

TEST(RunText, ProgressShowsEveryStage) {
  RunStatus status = some_status();
  EXPECT_EQ(status_line(status),
            "attempt 5 is active, for version 4, mixed; no leader answers; "
            "receivers: 1 applies");
  status.endpoints["coordinator-1"].state = "attempt";
  status.endpoints["coordinator-1"].detail = "waits for owner-0 to send; 1 of 2 done";
  status.endpoints["owner-0"].state = "constructing";
  status.endpoints["engine-0"].state = "closed";
  Member another;
  another.endpoint = {"owner-1", 7};
  another.role = Role::kOwner;
  status.membership.members.push_back(another);
  status.endpoints["owner-1"].state = "sent";
  EXPECT_EQ(status_line(status),
            "attempt 5 is active, for version 4, mixed; attempt: waits for owner-0 to send; 1 of 2 "
            "done; owners: 1 constructing, 1 sent; receivers: 1 applies; gates: 1 closed");
}

TEST(RunText, AnAbortSaysWhichCommitItFound) {
  ControlRecords after = some_status().membership.records;
  after.transition.state = AttemptState::kObsolete;
  EXPECT_EQ(abort_text(false, after),
            "attempt 5 is obsolete, for version 4, mixed; version 3 (step 3) stays committed\n");
  EXPECT_EQ(nlohmann::json::parse(abort_json(false, after))["commit_found"], false);
  after.commit = {{4, 5}, "step 4"};
  after.transition.state = AttemptState::kCommitted;
  EXPECT_EQ(abort_text(true, after), "a commit was found: version 4 (step 4)\n");
  const nlohmann::json told = nlohmann::json::parse(abort_json(true, after));
  EXPECT_EQ(told["commit_found"], true);
  EXPECT_EQ(told["committed_version"], 4);
}

TEST(RunText, ARefitSaysThatItsGatesWereClosedEarly) {
  RefitReport report;
  report.committed = {{4, 6}, "step 4"};
  report.attempts = 1;
  EXPECT_EQ(run_refit_text(report),
            "version 4 (step 4) is committed after 1 attempt, 0 bytes of payloads\n");
  EXPECT_TRUE(nlohmann::json::parse(run_refit_json(report))["gate_closed_early"].is_null());
  report.gate_closed_early = EarlyClose{"node-0 has no room", 1500};
  EXPECT_EQ(run_refit_text(report),
            "version 4 (step 4) is committed after 1 attempt, 0 bytes of payloads\n"
            "gates were closed early, 1.50 s after the attempt was prepared: node-0 has no room\n");
  EXPECT_EQ(nlohmann::json::parse(run_refit_json(report))["gate_closed_early"],
            (nlohmann::json{{"reason", "node-0 has no room"}, {"seconds", 1.5}}));
}

}  // namespace
}  // namespace dcr
